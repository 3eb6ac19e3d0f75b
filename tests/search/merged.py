"""Problems with equal nodes merged, as the search merges them."""

from __future__ import annotations

from spmdir.search.colour_refinement import Colours
from spmdir.search.merged_nodes import Quotient, quotient
from spmdir.search.problem import Problem


def merged(problem: Problem, depth: int) -> Quotient:
    """Return `problem` with the nodes merged that look alike up to so many nodes away."""
    return quotient(problem, Colours(problem, depth).rounds[-1])
