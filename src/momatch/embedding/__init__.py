"""``momatch embed``: images once through a backbone, in several views, kept on disk (docs/features.md)."""

from momatch.embedding.embed import Embedded as Embedded
from momatch.embedding.embed import EmbedOptions as EmbedOptions
from momatch.embedding.embed import embed as embed
