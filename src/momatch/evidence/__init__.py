"""What the labels say by themselves, from independent views of the data (docs/method.md, "Evidence")."""

from momatch.evidence.blend import Blend
from momatch.evidence.evidence import Evidence, RowEvidence, gather_evidence
from momatch.evidence.neighborhood import Neighborhood
from momatch.evidence.temperature import matched_temperature

__all__ = ["Blend", "Evidence", "Neighborhood", "RowEvidence", "gather_evidence", "matched_temperature"]
