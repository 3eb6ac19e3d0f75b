"""The laws of placements: what a declaration promises, tried on many examples."""

from spmdir.laws.check import Report, Verdict, check_file, check_placement
from spmdir.laws.law import Example, Law
from spmdir.laws.table import LAWS

__all__ = ["LAWS", "Example", "Law", "Report", "Verdict", "check_file", "check_placement"]
