"""The factors of each dimension of one call: the result of shape matching."""

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
    """The factors of one call and of its dimensions. `shape_matching.fit` returns it.

    Attributes:
        names, sizes: the name and size of each factor.
        unsharded: factors that may not be sharded, independent of clauses.
        operand_dims, result_dims: the factors of the dimensions of each operand and result; None for an absent result.
        shape_arguments: literal arguments that list the sizes of the first result.
        windows: factor of an output dimension → the window that slides along it; None if it may not be sharded.
        paddings: the padding before each dimension that a window slides over.
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
