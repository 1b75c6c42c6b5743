"""``momatch embed``: images once through a backbone, in several views, kept on disk (docs/features.md)."""

from momatch.embedding.dataset import Embedded as Embedded
from momatch.embedding.dataset import embed as embed
from momatch.embedding.options import EmbedOptions as EmbedOptions
