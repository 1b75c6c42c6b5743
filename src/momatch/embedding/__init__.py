"""``momatch embed``: images once through a backbone, in several views, kept on disk (docs/features.md)."""

from momatch.embedding.embedding import Embedded as Embedded
from momatch.embedding.embedding import EmbedOptions as EmbedOptions
from momatch.embedding.embedding import embed as embed
