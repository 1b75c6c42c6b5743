"""Training: the step, the loop, checkpoints and the run directory."""
