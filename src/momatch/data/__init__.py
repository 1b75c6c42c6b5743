"""Data that feeds the method: datasets as tensors, labelled/unlabelled splits and batch streams."""
