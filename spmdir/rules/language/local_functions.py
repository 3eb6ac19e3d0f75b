"""Functions of local forms: what one rank has of a sharded dimension, and what it must do along it.

A name of several dimensions means those that are sharded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs

from spmdir.core.errors import RuleError
from spmdir.core.placement.call import Local
from spmdir.rules.language.scope import Scope, rank_integer


def shard_end(kind: str) -> Callable[[Scope, str], int | Local]:
    """offset(f), end(f): where a rank's shard of a dimension begins, and the position behind it."""

    def value(scope: Scope, reference: str) -> int | Local:
        return rank_integer(kind, scope.one(kind, reference))

    return value


def size(scope: Scope, *references: str) -> int | Local:
    """size(f, …): the length of a rank's shard of a dimension that is the product of these factors, major first."""
    found = [scope.one("size", reference) for reference in references]
    if len(found) == 1:
        return rank_integer("size", found[0])
    extent = math.prod(shard.extent for shard in found)
    sharded = [shard for shard in found if shard.axes]
    if not any(shard.placements for shard in sharded):
        axes = tuple(axis for shard in sharded for axis in shard.axes)
        return rank_integer("size", Local("shard", extent, axes))
    if len(sharded) > 1:
        raise RuleError(f"size({', '.join(references)}) is of several sharded factors; expected one")
    return attrs.evolve(sharded[0], kind="size", times=extent // sharded[0].extent)


@attrs.frozen
class ShardIndices:
    """What an op on the positions of a shard gives: global ones in local order, or local ones of a tensor's.

    Attributes:
        op: the op, `spmd.positions` or `spmd.local_index`.
        shard: a Local of kind "shard".
        index: the tensor of global positions, for `spmd.local_index`.
    """

    op: str
    shard: Local
    index: Any = None


def positions(scope: Scope, reference: str) -> ShardIndices:
    """positions(f): the positions of a rank's shard of a dimension, in local order: a vector of i64."""
    return ShardIndices("spmd.positions", scope.one("positions", reference))


def local_index(scope: Scope, index: str, reference: str) -> ShardIndices:
    """local_index(index, f): where in a rank's shard each of these positions is; -1 for those that it has not."""
    return ShardIndices("spmd.local_index", scope.one("local_index", reference), scope.names[index])


def of_two(kind: str, unconditional: Callable[[Scope, str, str], Any]) -> Callable[..., Any]:
    """Return the function of two factors of this kind, a key of PRECEDENCE.

    Its third argument may name an argument of the op; if that is false, nothing hides anything, and it gives what
    `unconditional` does.
    """

    def value(scope: Scope, first: str, second: str, *condition: str) -> int | Local:
        if condition and not scope.argument(condition[0]):
            return unconditional(scope, first, second)
        return attrs.evolve(scope.one(kind, first), kind=kind, other=scope.one(kind, second))

    return value


both = of_two("both", lambda scope, first, second: True)
"""both(l, s): a rank has some of each of these dimensions."""

since = of_two("since", lambda scope, first, second: 0)
"""since(l, s), since(l, s, is_causal): how many of a rank's first positions of l are before all those of s."""

upto = of_two("upto", lambda scope, first, second: size(scope, first))
"""upto(s, l), upto(s, l, is_causal): where a rank's positions of s end that are not behind all those of l."""

beyond = of_two("beyond", lambda scope, first, second: 0)
"""beyond(s, l), beyond(s, l, is_causal): how many of a rank's last positions of s are behind all those of l."""

reaches = of_two("reaches", lambda scope, first, second: both(scope, first, second))
"""reaches(l, s), reaches(l, s, is_causal): some position of l is not before some position of s."""

triangle = of_two("triangle", lambda scope, first, second: False)
"""triangle(l, s), triangle(l, s, is_causal): of the positions from `since` and up to `upto`, the i-th of l is not
before the j-th of s if and only if j <= i."""

irregular = of_two("irregular", lambda scope, first, second: False)
"""irregular(l, s), irregular(l, s, is_causal): of these some are before some others, but not as in a triangle."""


def parts(scope: Scope, name: str) -> tuple[int | Local, ...]:
    """parts(dim): the lengths of a rank's shards of the results in a list, along the dimension of argument dim."""
    return tuple(rank_integer("size", shard) for shard in scope.parts(scope.argument(name)))


def position(scope: Scope, tensor: str, reference: str) -> int:
    """position(x, f): the number of the dimension of tensor x."""
    return scope.position(tensor, reference)


def column(scope: Scope, tensor: str, reference: str) -> tuple[int, ...]:
    """column(x, f): the sizes by which a view puts a vector along this dimension of tensor x."""
    chosen = scope.dims(tensor, (reference,))
    return tuple(-1 if d in chosen else 1 for d in range(scope.meta(tensor).rank))


def pick(scope: Scope, tensors: str, reference: str) -> Any:
    """pick(xs, f): of a list with one tensor for each dimension of self, the one for this dimension."""
    return scope.names[tensors][scope.position("self", reference)]


def put(scope: Scope, tensors: str, reference: str, new: str) -> tuple[Any, ...]:
    """put(xs, f, y): the list xs with y in the place of what `pick` gives."""
    values = list(scope.names[tensors])
    values[scope.position("self", reference)] = scope.names[new]
    return tuple(values)


def tail(scope: Scope, tensor: str, indices: str) -> tuple[int, ...]:
    """tail(x, xs): the sizes into which the last dimension of an index among xs unfolds, to be along x[xs]."""
    at = [d for d, index in enumerate(scope.names[indices]) if index is not None]
    adjacent = at[-1] - at[0] == len(at) - 1
    return (-1, *(1,) * (scope.meta(tensor).rank - (at[-1] + 1 if adjacent else len(at))))


def begin(scope: Scope, name: str, reference: str) -> int:
    """begin(a, f): the first element that argument a leaves of a dimension, counted from 0; a may be none."""
    return _slice_end(scope, name, reference, missing=0)


def until(scope: Scope, name: str, reference: str) -> int:
    """until(a, f): the place behind the last element that argument a leaves; a may be none."""
    return _slice_end(scope, name, reference, missing=_extent(scope, reference))


def _slice_end(scope: Scope, name: str, reference: str, missing: int) -> int:
    """Return an end of a slice as in Python: negative numbers count from the end, those beyond an end mean it."""
    value, extent = scope.argument(name), _extent(scope, reference)
    if value is None:
        return missing
    assert isinstance(value, int)
    return min(max(value + extent if value < 0 else value, 0), extent)


def _extent(scope: Scope, reference: str) -> int:
    return math.prod(shard.extent for shard in scope.factors(reference))


def margins(scope: Scope, name: str, tensor: str, reference: str) -> tuple[int | Local, ...]:
    """margins(pad, x, f): the padding `pad`, pairs from the last dimension on, around a rank's shard of x."""
    pad: list[Any] = list(scope.argument(name))
    last = scope.meta(tensor).rank - 1
    for dim, shard in zip(scope.dims(tensor, (reference,)), scope.factors(reference), strict=True):
        if shard.axes:
            low = 2 * (last - dim)
            pad[low] = attrs.evolve(shard, kind="offset", plus=pad[low])
            pad[low + 1] = attrs.evolve(shard, kind="end", times=-1, plus=shard.extent + pad[low + 1])
    return tuple(pad)


def around(scope: Scope, tensor: str, reference: str, low: str, high: str) -> tuple[int | Local, ...]:
    """around(x, f, a, b): padding of x by a in front and b behind, along f alone."""
    rank, at = scope.meta(tensor).rank, scope.position(tensor, reference)
    return (*(0,) * (2 * (rank - 1 - at)), scope.names[low], scope.names[high])


def inner(scope: Scope, name: str) -> Any:
    """inner(padding): the padding that is left to the op where `spmd.halo` has put the rest."""
    found = scope.inner()
    return scope.argument(name) if found is None else found
