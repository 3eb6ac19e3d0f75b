"""Shardings in Shardy's form: for each dimension the axes that shard it.

On the mesh `<dp = 2, tp = 4>`, these are equal for a matrix:

    spmdir                          Shardy
    <dp: S(0), tp: S(1)>            <@mesh, [{"dp"}, {"tp"}]>
    <tp(1)2: S(0), dp: S(0)>        <@mesh, [{"tp":(1)2, "dp"}, {}]>
    <dp: S(0), tp: P(sum)>          <@mesh, [{"dp"}, {}], unreduced={"tp"}>
    <dp: S(0), tp: ?>               <@mesh, [{"dp", ?}, {?}]>
    <dp: ?>                         <@mesh, [{?}, {?}], replicated={"tp"}>

In Shardy, dimensions are open: the compiler may add axes to them. In spmdir, axes are open: the compiler may let them
shard any dimension. Both can represent that all dimensions are open to the same axes: those that the sharding does not
list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs

from spmdir.core.axes import axis_part, is_part
from spmdir.core.errors import ParseError, ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import OPEN, Partial, Shard


@attrs.frozen
class DimensionSharding:
    """The sharding of one dimension.

    Attributes:
        axes: axes and sub-axes as spmdir names them, major first.
        is_open: whether the compiler may add axes.
    """

    axes: tuple[str, ...] = ()
    is_open: bool = False

    def __str__(self) -> str:
        return "{" + ", ".join([*map(_axis_text, self.axes), *["?"] * self.is_open]) + "}"


@attrs.frozen
class TensorSharding:
    """The sharding of one tensor, as in `#sdy.sharding<@mesh, [{"dp"}, {?}], replicated={"tp"}>`.

    Attributes:
        mesh: the name of the mesh.
        dims: one entry for each dimension.
        replicated: the axes that must not shard an open dimension.
        unreduced: the axes along which the tensor is a partial sum.
    """

    mesh: str
    dims: tuple[DimensionSharding, ...]
    replicated: tuple[str, ...] = ()
    unreduced: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"<@{self.mesh}, [{', '.join(map(str, self.dims))}]"
        for name, axes in (("replicated", self.replicated), ("unreduced", self.unreduced)):
            if axes:
                text += f", {name}={{{', '.join(map(_axis_text, axes))}}}"
        return f"{text}>"


def _axis_text(axis: str) -> str:
    """Return `"dp"` for an axis, and `"tp":(1)2` for the sub-axis `tp(1)2`."""
    # The tuple after `or` is not used: a whole axis has no part.
    name, outer, size = axis_part(axis) or (axis, 1, 0)
    return f'"{name}":({outer}){size}' if is_part(axis) else f'"{axis}"'


_AXIS = re.compile(r'"([^"\\]*)"(?::\(([0-9]{1,18})\)([0-9]{1,18}))?')
_AXES = r'\{((?:"[^"\\]*"(?::\([0-9]+\)[0-9]+)?|[\s,?])*)\}'
_DIMENSION = re.compile(rf"\s*{_AXES}(?:p([0-9]+))?\s*(?:,|\Z)")
_SHARDING = re.compile(r"<\s*@(\w+)\s*,\s*\[(.*?)\]\s*(.*)>", re.DOTALL | re.ASCII)
_LISTED = re.compile(rf"\s*,\s*(replicated|unreduced)\s*=\s*(\w*)\s*{_AXES}")


def parse_tensor_sharding(text: str) -> TensorSharding:
    """Parse `<@mesh, [{"dp"}, {?}], replicated={"tp"}>`.

    Raises:
        ParseError: the text is malformed, or uses a form of Shardy that spmdir cannot represent.
    """
    match = _SHARDING.fullmatch(text)
    if match is None:
        raise ParseError(f"found '{text}'; expected a sharding on a named mesh, as in <@mesh, [{{\"dp\"}}, {{}}]>")
    dims, position = [], 0
    while match[2][position:].strip():
        dim = _DIMENSION.match(match[2], position)
        if dim is None:
            raise ParseError(f"found '[{match[2]}]'; expected the axes of each dimension, as in [{{\"dp\"}}, {{?}}]")
        if dim[2] not in (None, "0"):
            raise ParseError(
                f"dimension {len(dims)} has priority {dim[2]}; expected none, since spmdir has no "
                f"priorities: remove 'p{dim[2]}'"
            )
        dims.append(DimensionSharding(_axes(dim[1]), "?" in dim[1]))
        position = dim.end()
    axes: dict[str, tuple[str, ...]] = {}
    position = 0
    while match[3][position:].strip():
        listed = _LISTED.match(match[3], position)
        if listed is None:
            raise ParseError(f"found '{match[3].strip()}'; expected replicated={{…}} or unreduced={{…}}")
        if listed[2] not in ("", "sum"):
            raise ParseError(f'values are unreduced by {listed[2]}; expected sums, as in unreduced={{"tp"}}')
        axes[listed[1]] = _axes(listed[3])
        position = listed.end()
    return TensorSharding(match[1], tuple(dims), **axes)


def _axes(text: str) -> tuple[str, ...]:
    """Return the axes in `"dp", "tp":(1)2`, as spmdir names them: `dp`, `tp(1)2`."""
    axes = []
    for match in _AXIS.finditer(text):
        axes.append(f"{match[1]}({match[2]}){match[3]}" if match[2] else match[1])
    return tuple(axes)


def to_tensor_sharding(sharding: Sharding, mesh: Mesh, shape: Sequence[int]) -> TensorSharding:
    """Return the sharding of a tensor of this shape in Shardy's form.

    For example, `dp: S(0), tp: P(sum)` of a matrix is `[{"dp"}, {}], unreduced={"tp"}`.

    Raises:
        ShardingError: Shardy cannot represent a placement, or a shard is uneven.
    """
    dims = []
    for dim, size in enumerate(shape):
        axes = sharding.dim_axes(dim)
        count = mesh.group_size(axes)
        if size % count:
            raise ShardingError(f"dimension {dim} of size {size} is sharded over {count} ranks; {_UNEVEN}")
        dims.append(axes)
    for axis, placement in sharding.entries:
        if type(placement) is not Shard and placement not in (Partial("sum"), OPEN):
            raise ShardingError(
                f"{placement} on axis '{axis}' has no counterpart in sdy; expected S, R, P(sum) or an open axis"
            )
    if sharding.open_axes and not shape:
        raise ShardingError(
            f"axis '{sharding.open_axes[0]}' of a scalar is open, but only dimensions can be open in sdy; expected a "
            "placement, such as R"
        )
    refined = mesh.refine([axis for axis, _ in sharding.entries])
    placed = {part for axis, _ in sharding.entries for part in refined.parts(axis)}
    is_open = bool(sharding.open_axes)
    replicated = refined.merge(axis for axis in refined.axis_names if axis not in placed) if is_open else ()
    return TensorSharding(
        sharding.mesh,
        tuple(DimensionSharding(axes, is_open) for axes in dims),
        replicated,
        tuple(axis for axis, _ in sharding.partial),
    )


_UNEVEN = "expected a size that the ranks divide, since sdy pads uneven shards and spmdir does not: choose such a size"


def from_tensor_sharding(sharding: TensorSharding, mesh: Mesh, shape: Sequence[int]) -> Sharding:
    """Return the sharding of a tensor of this shape: the inverse of `to_tensor_sharding`.

    Raises:
        ShardingError: the sharding does not fit the mesh or the shape, or spmdir cannot represent it.
    """
    if sharding.mesh != mesh.name:
        raise ShardingError(f"the sharding is on @{sharding.mesh}; expected the mesh of the module, @{mesh.name}")
    if len(sharding.dims) != len(shape):
        raise ShardingError(
            f"the sharding has {len(sharding.dims)} dimensions, but the tensor has {len(shape)}; expected one entry "
            "for each dimension"
        )
    entries = [(axis, Shard(dim)) for dim, entry in enumerate(sharding.dims) for axis in entry.axes]
    entries += [(axis, Partial("sum")) for axis in sharding.unreduced]
    named = [*(axis for axis, _ in entries), *sharding.replicated]
    for axis in named:
        mesh.require(axis)
    refined = mesh.refine(named)
    taken = {part for axis in named for part in refined.parts(axis)}
    free = [axis for axis in refined.axis_names if axis not in taken]
    are_open = [entry.is_open for entry in sharding.dims]
    if free and True in are_open and False in are_open:
        raise ShardingError(
            f"dimension {are_open.index(True)} is open and dimension {are_open.index(False)} is closed; "
            "expected all open or all closed, since spmdir leaves axes open for all dimensions: open or "
            f"close all, or list {', '.join(free)} in replicated"
        )
    if any(are_open):
        entries += [(axis, OPEN) for axis in free]
    result = Sharding(entries, mesh.name).merged(mesh)
    for dim, size in enumerate(shape):
        count = mesh.group_size(result.dim_axes(dim))
        if size % count:
            raise ShardingError(f"dimension {dim} of size {size} is sharded over {count} ranks; {_UNEVEN}")
    return result


@contextmanager
def errors_of(subject: str) -> Iterator[None]:
    """Name an argument or result in errors that are raised inside the context."""
    try:
        yield
    except SpmdirError as error:
        raise error.at(None, subject) from None
