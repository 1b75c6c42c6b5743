"""What fits a classifier: the step, the loop, checkpoints and the run directory."""
