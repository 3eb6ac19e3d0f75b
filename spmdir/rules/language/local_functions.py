"""The functions of local forms, whose values depend on the rank.

The docstrings are written as in `functions.py`. If a name refers to several dimensions, the sharded ones are meant. A
value that is equal on all ranks is an int, else it is a `Local`.
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
    """offset(f), end(f): the first position of a rank's shard of a dimension; the position after the last one."""

    def end_of_shard(scope: Scope, reference: str) -> int | Local:
        return rank_integer(kind, scope.single_factor(kind, reference))

    return end_of_shard


def size(scope: Scope, *references: str) -> int | Local:
    """size(f, …): the length of a rank's shard of the dimension that is the product of these factors, major first."""
    # A dimension (h g) with h = 8 and g = 4 has 32 elements. If an axis of 2 ranks shards h, its size is 16.
    shards = [scope.single_factor("size", reference) for reference in references]
    if len(shards) == 1:
        return rank_integer("size", shards[0])
    extent = math.prod(shard.extent for shard in shards)
    sharded = [shard for shard in shards if shard.axes]
    if not any(shard.placements for shard in sharded):  # all placements are S
        axes = tuple(axis for shard in sharded for axis in shard.axes)
        return rank_integer("size", Local("shard", extent, axes))
    if len(sharded) > 1:
        raise RuleError(f"size({', '.join(references)}) refers to several sharded factors; expected one: name it")
    # The other factors are whole, so their sizes multiply the length of this shard.
    return attrs.evolve(sharded[0], kind="size", times=extent // sharded[0].extent)


@attrs.frozen
class ShardIndices:
    """The result of `positions` or `local_index`, before its op is emitted.

    Attributes:
        op: the op, `spmd.positions` or `spmd.local_index`.
        shard: a Local of kind "shard".
        index: the tensor of global positions, for `spmd.local_index`.
    """

    op: str
    shard: Local
    index: Any = None


def positions(scope: Scope, reference: str) -> ShardIndices:
    """positions(f): the global positions in a rank's shard of a dimension, in local order: a vector of i64."""
    return ShardIndices("spmd.positions", scope.single_factor("positions", reference))


def local_index(scope: Scope, index: str, reference: str) -> ShardIndices:
    """local_index(index, f): the local index in a rank's shard of each position in the tensor index; -1 if the shard
    does not contain the position."""
    return ShardIndices("spmd.local_index", scope.single_factor("local_index", reference), scope.names[index])


def of_two(kind: str, unconditional: Callable[[Scope, str, str], Any]) -> Callable[..., Any]:
    """Return a function of rules that compares a rank's positions of two factors, such as `reaches(l, s)`.

    The function returns a Local, whose value on a rank follows from its shards of both factors. Its third argument may
    name an argument of the op, such as `is_causal`. If that argument is false, every position attends to every other
    one, and the value is that of `unconditional`.

    Args:
        kind: the name of the function, a key of PRECEDENCE.
        unconditional: (scope, first factor, second factor) → the value without causal masking.
    """

    def compare(scope: Scope, first: str, second: str, *condition: str) -> int | Local:
        if condition and not scope.argument(condition[0]):
            return unconditional(scope, first, second)
        return attrs.evolve(scope.single_factor(kind, first), kind=kind, other=scope.single_factor(kind, second))

    return compare


both = of_two("both", lambda scope, first, second: True)
"""both(l, s): true if the rank's shards of both dimensions are not empty."""

since = of_two("since", lambda scope, first, second: 0)
"""since(l, s), since(l, s, is_causal): the number of positions at the start of a rank's shard of l that are before all
positions of s."""

upto = of_two("upto", lambda scope, first, second: size(scope, first))
"""upto(s, l), upto(s, l, is_causal): the local index after the last position in a rank's shard of s that is not after
all positions of l."""

beyond = of_two("beyond", lambda scope, first, second: 0)
"""beyond(s, l), beyond(s, l, is_causal): the number of positions at the end of a rank's shard of s that are after all
positions of l."""

reaches = of_two("reaches", lambda scope, first, second: both(scope, first, second))
"""reaches(l, s), reaches(l, s, is_causal): true if at least one position of l is at or after a position of s."""

triangle = of_two("triangle", lambda scope, first, second: False)
"""triangle(l, s), triangle(l, s, is_causal): true if, for l from `since` on and s up to `upto`, the i-th position of l
is at or after the j-th of s if and only if j <= i."""

irregular = of_two("irregular", lambda scope, first, second: False)
"""irregular(l, s), irregular(l, s, is_causal): true if, for l from `since` on and s up to `upto`, some positions of l
are before some of s, but `triangle` is false."""


def parts(scope: Scope, name: str) -> tuple[int | Local, ...]:
    """parts(dim): the local sizes of the tensors in the list that the op returns, along the dimension that argument dim
    names."""
    return tuple(rank_integer("size", shard) for shard in scope.parts(scope.argument(name)))


def position(scope: Scope, tensor: str, reference: str) -> int:
    """position(x, f): the index of the dimension of tensor x that consists of this factor."""
    return scope.position(tensor, reference)


def column(scope: Scope, tensor: str, reference: str) -> tuple[int, ...]:
    """column(x, f): the shape for a view of a vector along the dimension f of tensor x: -1 for this dimension, 1 for
    all others."""
    factor_dims = scope.dims(tensor, (reference,))
    return tuple(-1 if dim in factor_dims else 1 for dim in range(scope.meta(tensor).rank))


def pick(scope: Scope, tensors: str, reference: str) -> Any:
    """pick(xs, f): from the list xs, which has one tensor for each dimension of self, the tensor for the dimension of
    f."""
    return scope.names[tensors][scope.position("self", reference)]


def put(scope: Scope, tensors: str, reference: str, new: str) -> tuple[Any, ...]:
    """put(xs, f, y): the list xs, in which y replaces the tensor that `pick` returns."""
    values = list(scope.names[tensors])
    values[scope.position("self", reference)] = scope.names[new]
    return tuple(values)


def tail(scope: Scope, tensor: str, indices: str) -> tuple[int, ...]:
    """tail(x, xs): the sizes into which a view unfolds the last dimension of an index in xs, to align it with x[xs]:
    -1, then 1 for each dimension of x[xs] after those of the indices."""
    # For x of shape [8, 5, 6] and xs = [index, none, none], the sizes are (-1, 1, 1). If the indexed dimensions are not
    # adjacent, x[xs] has the dimensions of the indices first.
    indexed_dims = [dim for dim, index in enumerate(scope.names[indices]) if index is not None]
    are_adjacent = indexed_dims[-1] - indexed_dims[0] == len(indexed_dims) - 1
    dims_before = indexed_dims[-1] + 1 if are_adjacent else len(indexed_dims)
    return (-1, *(1,) * (scope.meta(tensor).rank - dims_before))


def begin(scope: Scope, name: str, reference: str) -> int:
    """begin(a, f): the start of a slice of a dimension by argument a, counted from 0; a may be none."""
    return _slice_end(scope, name, reference, missing=0)


def until(scope: Scope, name: str, reference: str) -> int:
    """until(a, f): the end of a slice of a dimension by argument a, exclusive and counted from 0; a may be none."""
    return _slice_end(scope, name, reference, missing=_extent(scope, reference))


def _slice_end(scope: Scope, name: str, reference: str, missing: int) -> int:
    """Return a bound of a slice by argument `name`, as in Python; `missing` if the argument is none.

    Negative numbers count from the end. The result is clamped to the dimension.
    """
    value, extent = scope.argument(name), _extent(scope, reference)
    if value is None:
        return missing
    assert isinstance(value, int)
    return min(max(value + extent if value < 0 else value, 0), extent)


def _extent(scope: Scope, reference: str) -> int:
    """Return the global number of elements along the factors of `reference`."""
    return math.prod(shard.extent for shard in scope.factors(reference))


def margins(scope: Scope, name: str, tensor: str, reference: str) -> tuple[int | Local, ...]:
    """margins(pad, x, f): the padding that extends a rank's shard of x to the padded dimension; argument pad lists
    pairs, last dimension first."""
    # If 8 elements are padded by (1, 2), the shard 4-7 has 4 + 1 elements before it, and 8 - 8 + 2 after it.
    pad: list[Any] = list(scope.argument(name))
    last_dim = scope.meta(tensor).rank - 1
    for dim, shard in zip(scope.dims(tensor, (reference,)), scope.factors(reference), strict=True):
        if shard.axes:
            begin_index = 2 * (last_dim - dim)
            pad[begin_index] = attrs.evolve(shard, kind="offset", plus=pad[begin_index])
            pad[begin_index + 1] = attrs.evolve(shard, kind="end", times=-1, plus=shard.extent + pad[begin_index + 1])
    return tuple(pad)


def around(scope: Scope, tensor: str, reference: str, low: str, high: str) -> tuple[int | Local, ...]:
    """around(x, f, a, b): the argument of a padding that adds a elements before and b elements after x along f, and
    pads no other dimension."""
    rank, dim = scope.meta(tensor).rank, scope.position(tensor, reference)
    return (*(0,) * (2 * (rank - 1 - dim)), scope.names[low], scope.names[high])


def inner(scope: Scope, name: str) -> Any:
    """inner(padding): the padding that the op itself must still add, after `spmd.halo` has added the halos."""
    remaining = scope.inner()
    return scope.argument(name) if remaining is None else remaining
