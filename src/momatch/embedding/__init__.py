"""``momatch embed``: run images through a backbone once, in several views, and save the features (docs/features.md)."""

from momatch.embedding.embedding import Embedded as Embedded
from momatch.embedding.embedding import EmbedOptions as EmbedOptions
from momatch.embedding.embedding import embed as embed
