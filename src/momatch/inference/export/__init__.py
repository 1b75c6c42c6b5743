"""Export of a trained model as one graph from raw pixels to the full prediction (docs/export.md)."""

from momatch.inference.export.export import Exported as Exported
from momatch.inference.export.export import export_model as export_model
from momatch.inference.export.formats import FORMATS as FORMATS
