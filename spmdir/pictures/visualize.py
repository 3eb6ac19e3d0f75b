"""`visualize`: a picture of a tensor with the ranks that hold each part, as text or SVG."""

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
    """Return whether a value is a mapping of ints to ints."""
    return isinstance(value, Mapping) and all(type(number) is int for number in (*value.keys(), *value.values()))


@attrs.frozen(repr=False)
class TensorPicture:
    """A picture of a tensor with the ranks that hold each part: text in a terminal, SVG in a notebook.

    Attributes:
        meta: the global shape and element type.
        sharding: the sharding of the tensor.
        mesh: the mesh of its ranks.
        slices: dimension → the position of the slice.
    """

    meta: TensorMeta
    sharding: Sharding
    mesh: Mesh
    slices: Mapping[int, int] = attrs.field(factory=dict)

    def tiling(self, max_pieces: int) -> Tiling:
        """Return the rectangles of the picture, with at most `max_pieces` pieces of each dimension."""
        return tiling(self.meta, self.sharding, self.mesh, self.slices, max_pieces)

    def text(self, *, color: bool = False) -> str:
        """Return the picture as text; with `color`, terminal escapes fill the rectangles."""
        return terminal_text(self.tiling(16), color)

    def svg(self) -> str:
        """Return the picture as an SVG element, for light and dark pages. The text is a valid SVG file."""
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
    sharded ones first, then the last ones.

    Args:
        what: a value of the IR; the text of a type with or without a sharding, such as "8x12xf32 <dp: S(0)>"; a
            TensorMeta; or a sharding, which is drawn for the smallest tensor that it shards evenly.
        mesh: the mesh of the ranks; the default for a value of the IR is the mesh of its module.
        sharding: the sharding of the tensor; overrides the sharding of `what`.
        slices: dimension → the position of the slice.

    Raises:
        SpmdirError: the tensor cannot have the sharding, or the sharding is unknown.

    Example:
        >>> print(spmdir.report.visualize("8x12xf32 <dp: S(0), tp: S(1)>", spmdir.Mesh({"dp": 2, "tp": 4})))
    """
    meta, own_sharding = _type_and_sharding(what)
    if meta is not None:
        if not all(type(size) is int for size in meta.shape):
            raise UnsupportedError(
                f"{meta} has symbolic sizes; expected a type with numbers: replace the sizes, or run bind-sizes"
            )
        check_shape(meta.shape)
    if mesh is None:
        mesh = _mesh_of(what)
    mesh = as_mesh(mesh)
    chosen_sharding = own_sharding if sharding is None else sharding
    if chosen_sharding is None:
        raise UnsupportedError('the tensor has no sharding; expected one: pass it, as in sharding="dp: S(0)"')
    checked_sharding = as_sharding(chosen_sharding, mesh, None if meta is None else meta.rank)
    drawn_meta = meta or _smallest_evenly_sharded(checked_sharding, mesh)
    picture = TensorPicture(drawn_meta, checked_sharding, mesh, slices or {})
    picture.tiling(1)  # raise errors here, not when the picture is shown
    return picture


def _type_and_sharding(what: Any) -> tuple[TensorMeta | None, ShardingLike | None]:
    """Return the type and the sharding in `what`; None for each that it does not contain."""
    if isinstance(what, TensorMeta):
        return what, None
    match = _TEXT.fullmatch(what) if isinstance(what, str) else None
    if match and ":" not in what.partition("<")[0]:
        sizes = tuple(integer(size) for size in match["shape"].split("x") if size)
        return TensorMeta(sizes, match["dtype"]), match["sharding"]
    if isinstance(what, (str, Sharding, Mapping)):
        return None, what
    if hasattr(what, "owner"):
        from spmdir.dialects.values import global_type, sharding_of

        return global_type(what, _mesh_of(what)), sharding_of(what)
    raise wrong_argument("what", what, 'a value of the IR, a text as "8x12xf32 <dp: S(0)>", or a sharding')


def _mesh_of(value: Any) -> Mesh:
    """Return the mesh of the module of a value."""
    if not hasattr(value, "owner"):
        raise ParseError('a picture requires a mesh; pass one, such as Mesh({"dp": 2, "tp": 4})')
    from xdsl.dialects.builtin import ModuleOp

    from spmdir.dialects import ir

    owner = value.owner
    while owner is not None and not isinstance(owner, ModuleOp):
        owner = owner.parent_op()
    if owner is None:
        raise ParseError("the value is not in a module, so its mesh is unknown; expected a mesh: pass mesh=")
    return ir.mesh(owner)


def _smallest_evenly_sharded(sharding: Sharding, mesh: Mesh) -> TensorMeta:
    """Return the type of the smallest tensor that a sharding with standard placements shards evenly."""
    dims = [placement.dim for _, placement in sharding.entries if placement.dim is not None]
    shape = []
    for dim in range(max(dims, default=-1) + 1):
        shape.append(math.prod(mesh.sizes[axis] for axis in sharding.dim_axes(dim)))
    return TensorMeta(tuple(shape), "f32")
