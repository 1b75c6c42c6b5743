"""Outlier detection: scores, thresholds, conformal p-values, false-discovery control."""

from momatch.outliers.detector import DISTANCES, OutlierDetector, Score
from momatch.outliers.discovery import benjamini_hochberg
from momatch.outliers.judge import Judge
from momatch.outliers.stage_judge import StageJudge
from momatch.outliers.stages import StageReader, find_stages

__all__ = [
    "DISTANCES",
    "Judge",
    "OutlierDetector",
    "Score",
    "StageJudge",
    "StageReader",
    "benjamini_hochberg",
    "find_stages",
]
