"""The laws of placements: what a declaration promises, tried on many examples."""

from spmdir.checking.placements.check_placement import Report, Verdict, check_placement, check_plugin
from spmdir.checking.placements.law import Example, Law
from spmdir.checking.placements.table import LAWS

__all__ = ["LAWS", "Example", "Law", "Report", "Verdict", "check_placement", "check_plugin"]
