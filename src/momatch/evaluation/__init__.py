"""Evaluation of a classifier: metrics as pure functions, and the evaluation of a model's outputs."""
