"""What a classifier is worth: metrics as pure functions, and the evaluation of a model's outputs."""
