"""xDSL's clean-up passes: the traits of the ops say what they may do, see `spmdir.dialects.aten`."""

from __future__ import annotations

from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination
from xdsl.transforms.dead_code_elimination import DeadCodeElimination


class Canonicalize(CanonicalizePass):
    """Folds reshards of reshards and drops unused ops."""


class CSE(CommonSubexpressionElimination):
    """Merges equal ops of equal shardings and drops unused ones."""


class DCE(DeadCodeElimination):
    """Drops ops that nothing uses."""
