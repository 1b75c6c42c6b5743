"""Prediction on any number of images: from paths to a table of labels, densities and outlier p-values, in bounded memory."""
