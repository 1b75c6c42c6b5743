"""What stands on disk: durable files, tensors, run directories, records. The bottom of the house; no torch at import."""
