"""`visualize`: a tensor with the ranks that hold each part, wherever it is to be shown."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import attrs

from spmdir.core.arguments import Kind, accepts
from spmdir.core.errors import ParseError, UnsupportedError, wrong_argument
from spmdir.core.limits import check_shape
from spmdir.core.mesh import Mesh, as_mesh
from spmdir.core.number_text import integer
from spmdir.core.placement.sharding import Sharding, ShardingLike, as_sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.pictures.tensor_svg import svg_text
from spmdir.pictures.tensor_text import terminal_text
from spmdir.pictures.tiling import Tiling, tiling

_TEXT = re.compile(r"\s*(?:tensor<)?(?P<shape>(?:[0-9]+x)*)(?P<dtype>[a-z]\w*)>?\s*(?:<(?P<sharding>[^<>]*)>)?\s*")


def _are_slices(value: Any) -> bool:
    return isinstance(value, Mapping) and all(type(one) is int for one in (*value.keys(), *value.values()))


@attrs.frozen(repr=False)
class TensorPicture:
    """A tensor with the ranks that hold each part; in a terminal its text, in a notebook itself.

    Attributes:
        meta: global shape and element type.
        sharding: of the tensor.
        mesh: of the ranks.
        slices: dimension → the position at which the tensor is cut.
    """

    meta: TensorMeta
    sharding: Sharding
    mesh: Mesh
    slices: Mapping[int, int] = attrs.field(factory=dict)

    def tiling(self, most: int) -> Tiling:
        """Return who holds what, of at most so many pieces of a dimension."""
        return tiling(self.meta, self.sharding, self.mesh, self.slices, most)

    def text(self, *, color: bool = False) -> str:
        """Return it in characters; `color` with the escapes of a terminal that fill the rectangles."""
        return terminal_text(self.tiling(16), color)

    def svg(self) -> str:
        """Return it as an SVG element, which is also a file, for light and dark pages."""
        return svg_text(self.tiling(64))

    def _repr_html_(self) -> str:
        return self.svg()

    def __str__(self) -> str:
        return self.text(color=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))

    __repr__ = __str__


@accepts(slices=Kind(_are_slices, "a dict of positions by dimension, as in {2: 0}").optional)
def visualize(
    what: Any,
    mesh: Mesh | None = None,
    *,
    sharding: ShardingLike | None = None,
    slices: Mapping[int, int] | None = None,
) -> TensorPicture:
    """Return a picture of a tensor that shows which ranks hold each part of it.

    Print it in a terminal, show it in a notebook, or write its `svg()` to a file. At most two dimensions are drawn:
    those that are sharded, or else the last ones.

    Args:
        what: a value of the IR; the text of a type, perhaps with its sharding, as "8x12xf32 <dp: S(0)>"; a
            TensorMeta; or a sharding, drawn on the smallest tensor that it cuts evenly.
        mesh: of the ranks; a value of the IR knows its own.
        sharding: of the tensor, where `what` has none, or instead of it.
        slices: dimension → the position at which the tensor is cut.

    Raises:
        SpmdirError: the tensor cannot have the sharding, or it is not known.

    Example:
        >>> print(spmdir.report.visualize("8x12xf32 <dp: S(0), tp: S(1)>", spmdir.Mesh({"dp": 2, "tp": 4})))
    """
    meta, given = _read(what)
    if meta is not None:
        if not all(type(size) is int for size in meta.shape):
            raise UnsupportedError(f"the sizes of {meta} are not known; expected numbers")
        check_shape(meta.shape)
    if mesh is None:
        mesh = _mesh_of(what)
    mesh = as_mesh(mesh)
    wanted = given if sharding is None else sharding
    if wanted is None:
        raise UnsupportedError('the sharding is not known; expected one, as in sharding="dp: S(0)"')
    chosen = as_sharding(wanted, mesh, None if meta is None else meta.rank)
    found = TensorPicture(meta or _smallest(chosen, mesh), chosen, mesh, slices or {})
    found.tiling(1)  # what cannot be drawn is an error here, not where it is shown
    return found


def _read(what: Any) -> tuple[TensorMeta | None, ShardingLike | None]:
    """Return the type and the sharding of what is to be drawn, as far as they are given."""
    if isinstance(what, TensorMeta):
        return what, None
    if isinstance(what, str) and (found := _TEXT.fullmatch(what)) and ":" not in what.partition("<")[0]:
        sizes = tuple(integer(size) for size in found["shape"].split("x") if size)
        return TensorMeta(sizes, found["dtype"]), found["sharding"]
    if isinstance(what, (str, Sharding, Mapping)):
        return None, what
    if hasattr(what, "owner"):
        from spmdir.dialects.values import global_type, sharding_of

        return global_type(what, _mesh_of(what)), sharding_of(what)
    raise wrong_argument("what", what, 'a value of the IR, a text as "8x12xf32 <dp: S(0)>", or a sharding')


def _mesh_of(value: Any) -> Mesh:
    """Return the mesh of the module that a value of the IR is in."""
    if not hasattr(value, "owner"):
        raise ParseError('a picture needs a mesh; expected one, as in Mesh({"dp": 2, "tp": 4})')
    from xdsl.dialects.builtin import ModuleOp

    from spmdir.dialects import ir

    found = value.owner
    while found is not None and not isinstance(found, ModuleOp):
        found = found.parent_op()
    if found is None:
        raise ParseError("the value is in no module, so its mesh is not known; give the mesh")
    return ir.mesh(found)


def _smallest(sharding: Sharding, mesh: Mesh) -> TensorMeta:
    """Return the type of the smallest tensor that a sharding cuts evenly, as standard placements do."""
    dims = [placement.dim for _, placement in sharding.entries if placement.dim is not None]
    shape = tuple(
        math.prod(mesh.sizes[axis] for axis in sharding.dim_axes(dim)) for dim in range(max(dims, default=-1) + 1)
    )
    return TensorMeta(shape, "f32")
