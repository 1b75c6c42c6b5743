"""Console output: progress, warnings, and the handling of Ctrl-C."""
