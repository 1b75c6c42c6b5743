"""The paper's claims in the order of the results page."""

from momatch.sweep.claims_accuracy import BEATS_NARROW, MATCHES_WIDE, REMOVAL_HURTS
from momatch.sweep.claims_centers import DEGENERATE, SHRINKS
from momatch.sweep.claims_density import BEATS_LINEAR, MEANS_SOMETHING, REFIT_REPAIRS
from momatch.sweep.claims_memory import FLAT_MEMORY
from momatch.sweep.verdict import Claim

CLAIMS: tuple[Claim, ...] = (
    MATCHES_WIDE,
    BEATS_NARROW,
    SHRINKS,
    DEGENERATE,
    REMOVAL_HURTS,
    FLAT_MEMORY,
    MEANS_SOMETHING,
    BEATS_LINEAR,
    REFIT_REPAIRS,
)
