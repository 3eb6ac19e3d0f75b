"""Laws of placements, properties that every placement must have, checked on examples."""

from spmdir.checking.placements.check_placement import Effort, check_placement, check_plugin, verdicts_of
from spmdir.checking.placements.law import Example, Law
from spmdir.checking.placements.law_table import LAWS
from spmdir.checking.placements.verdict import PlacementReport, Unchecked, Verdict

__all__ = [
    "LAWS",
    "Effort",
    "Example",
    "Law",
    "PlacementReport",
    "Unchecked",
    "Verdict",
    "check_placement",
    "check_plugin",
    "verdicts_of",
]
