"""Where things lie on disk: the data directory of known datasets and the cache of decoded images."""

import os
from pathlib import Path

from platformdirs import user_cache_dir


def cache_root(cache_dir: str | Path | None = None) -> Path:
    """The cache folder: `cache_dir`, else ``$MOMATCH_CACHE``, else the user's cache folder of the system."""
    return Path(cache_dir or os.environ.get("MOMATCH_CACHE") or user_cache_dir("momatch", appauthor=False))


def data_root(data_dir: str | Path | None = None) -> Path:
    """The folder of known datasets: `data_dir`, else ``$MOMATCH_DATA``, else ``datasets`` in the cache folder."""
    return Path(data_dir or os.environ.get("MOMATCH_DATA") or cache_root() / "datasets")
