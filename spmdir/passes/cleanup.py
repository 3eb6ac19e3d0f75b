"""xDSL's clean-up passes. They respect the effects of ops, which are traits: see `spmdir.dialects.aten`."""

from __future__ import annotations

from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination
from xdsl.transforms.dead_code_elimination import DeadCodeElimination


class Canonicalize(CanonicalizePass):
    """Merges consecutive reshards, removes reshards to the same sharding, and removes unused ops."""


class CSE(CommonSubexpressionElimination):
    """Merges equal ops with equal shardings, and removes unused ops."""


class DCE(DeadCodeElimination):
    """Removes unused ops."""
