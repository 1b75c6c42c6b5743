"""A trained model as one graph from raw pixels to all that a prediction says (docs/export.md)."""

from momatch.inference.export.files import FORMATS as FORMATS
from momatch.inference.export.files import Exported as Exported
from momatch.inference.export.files import export_model as export_model
