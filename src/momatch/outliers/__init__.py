"""Outlier detection: scores, thresholds, conformal p-values, false-discovery control."""

from momatch.outliers.detector import DISTANCES, OutlierDetector, Score
from momatch.outliers.discovery import benjamini_hochberg

__all__ = ["DISTANCES", "OutlierDetector", "Score", "benjamini_hochberg"]
