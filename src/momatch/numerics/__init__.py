"""Shared by the method packages: argument checks, and computing in float32 or better under autocast."""
