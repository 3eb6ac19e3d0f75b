"""The dimension maps of rules: functions that compute the factors of results of views, indexing and products.

A rule calls a map where a pattern cannot describe the dimensions: `aten.view(self: *, size) -> reshape(self, size)`.
The map gets the layout of the call so far and the names in the round brackets. It returns the factors of each dimension
of the result. Some maps also describe operands: `layout.operand` is then the operand whose dimensions they return.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from spmdir.rules.shapes.diagonals import diagonal, embedded, undiagonal, unwindowed, windows
from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.indexing import index, take
from spmdir.rules.shapes.joining import concatenated, grid, interleave, join, repeat, tiled
from spmdir.rules.shapes.products import outer, product, scores, subscripts
from spmdir.rules.shapes.rearrange import expand, move, permute, reverse, rotated, squeeze, transpose, unsqueeze
from spmdir.rules.shapes.reshape import flatten, reshape, reshape_like, unflatten
from spmdir.rules.shapes.shape_arguments import drawn, drawn_like, front, leading, new, reduced, trailing, unused
from spmdir.rules.shapes.slicing import keep_equal, narrowed, padded, sliced


@attrs.frozen
class DimensionMap:
    """A function named in a rule, as in `-> reshape(self, size)`.

    Attributes:
        build: function from (layout, names in the rule) to the dimensions.
        sized: whether its last name is a literal argument that lists the sizes of the result.
        separates: the parameters for which it separates dimensions. Clauses refer to these by `~dim`, `~indices` etc.
    """

    build: Callable[..., Dims]
    sized: bool = False
    separates: tuple[str, ...] = ()


MAPS: dict[str, DimensionMap] = {
    # Dimensions split, joined, and put in another order.
    "reshape": DimensionMap(reshape, sized=True),
    "reshape_like": DimensionMap(reshape_like),
    "flatten": DimensionMap(flatten),
    "unflatten": DimensionMap(unflatten),
    "permute": DimensionMap(permute),
    "transpose": DimensionMap(transpose),
    "reverse": DimensionMap(reverse),
    "move": DimensionMap(move),
    "rotated": DimensionMap(rotated),
    "unsqueeze": DimensionMap(unsqueeze),
    "squeeze": DimensionMap(squeeze),
    "expand": DimensionMap(expand, sized=True),
    # Elements in strides.
    "diagonal": DimensionMap(diagonal),
    "undiagonal": DimensionMap(undiagonal),
    "embedded": DimensionMap(embedded),
    "windows": DimensionMap(windows),
    "unwindowed": DimensionMap(unwindowed),
    # Slices, and tensors joined.
    "sliced": DimensionMap(sliced, separates=("dim",)),
    "narrowed": DimensionMap(narrowed, separates=("dim",)),
    "padded": DimensionMap(padded, separates=("pad",)),
    "keep_equal": DimensionMap(keep_equal),
    "concatenated": DimensionMap(concatenated, separates=("dim",)),
    "join": DimensionMap(join),
    "grid": DimensionMap(grid),
    "repeat": DimensionMap(repeat),
    "tiled": DimensionMap(tiled),
    "interleave": DimensionMap(interleave),
    # Elements looked up.
    "index": DimensionMap(index, separates=("indices",)),
    "take": DimensionMap(take),
    # Products.
    "product": DimensionMap(product),
    "outer": DimensionMap(outer),
    "subscripts": DimensionMap(subscripts),
    "scores": DimensionMap(scores),
    # Shapes from an argument, or from some dimensions of an operand.
    "new": DimensionMap(new, sized=True),
    "drawn": DimensionMap(drawn, sized=True),
    "drawn_like": DimensionMap(drawn_like),
    "unused": DimensionMap(unused),
    "same": DimensionMap(front(0)),
    "rows": DimensionMap(front(1)),
    "batch": DimensionMap(front(2)),
    "leading": DimensionMap(leading),
    "trailing": DimensionMap(trailing),
    "reduced": DimensionMap(reduced),
}
"""Function in a rule → its dimension map."""
