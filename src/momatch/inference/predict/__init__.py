"""Prediction for any number of images in bounded memory: from paths to a table of labels, densities and p-values."""
