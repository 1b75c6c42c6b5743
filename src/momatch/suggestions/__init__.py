"""Which images to label: `suggest` for arrays, `read_pool` for features files and runs (docs/labeling.md)."""

from momatch.suggestions.choice import Suggestions, suggest
from momatch.suggestions.pool import Pool, page_labels, read_pool

__all__ = ["Pool", "Suggestions", "page_labels", "read_pool", "suggest"]
