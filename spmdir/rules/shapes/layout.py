"""Which factors make up which dimension of one call: the finished result of shape matching."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.binding import Binding
from spmdir.rules.language.syntax_tree import Rule
from spmdir.rules.shapes.call_reader import CallReader
from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.window_geometry import Window


@attrs.define(frozen=True, slots=False, eq=False)
class Layout(CallReader):
    """The factors of one call, and the dimensions that they make up. Made by `shape_matching.fit`.

    Attributes:
        names, sizes: of each factor.
        unsharded: factors that may not be sharded whatever the clauses say.
        operand_dims, result_dims: per operand and result, the factors of its dimensions; None for an absent result.
        shape_arguments: literal arguments that hold the sizes of the first result.
        windows: factor of an output dimension → the window that slides along it; None if it may not be sharded.
        paddings: the elements that are added in front of each dimension that a window slides over.
        halo_bytes: factor of an output dimension → the bytes of the halos of one block along it.
    """

    rule: Rule
    binding: Binding
    operands: tuple[TensorMeta, ...]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    unsharded: frozenset[int]
    operand_dims: tuple[Dims, ...]
    result_dims: tuple[Dims | None, ...]
    shape_arguments: tuple[str, ...]
    windows: Mapping[int, Window | None]
    paddings: tuple[int, ...]
    halo_bytes: Mapping[int, int]
    named: Mapping[str, int]
    variadic: Mapping[str, tuple[int, ...]]
    separated: Mapping[str, Mapping[int, tuple[int, ...]]]
