"""The figures of docs/figures, one script each: ``python -m reproduction.figures.NAME``."""
