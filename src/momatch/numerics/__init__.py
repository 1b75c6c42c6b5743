"""What the method's rooms share: argument checks, and float32 or better whatever autocast says."""
