"""Datasets as tensors, labelled/unlabelled splits and batch streams."""
