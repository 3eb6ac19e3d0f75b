"""User annotations: the sharding of each argument and each output."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from fnmatch import fnmatchcase

import attrs

from spmdir.core.errors import Location, ShardingError, SpmdirError, did_you_mean, did_you_mean_glob, require_type
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import ShardPlacement
from spmdir.core.placement.sharding import Sharding, ShardingLike, as_sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.toml_text import key_location
from spmdir.importer.program import Input

_POSITION = re.compile(r"input:([0-9]+)")
_POSITIONS = re.compile(r"input:(?:\*|([0-9]+)-([0-9]+))")
LIKE = "like:"

SHOWN = 8
"""The number of names that an error lists."""


def input_shardings(
    shardings: Mapping[str, ShardingLike | None] | None,
    names: Sequence[tuple[str, ...]],
    nodes: Sequence[str],
    positions: Sequence[int | None],
    metas: Sequence[TensorMeta],
    mesh: Mesh,
    labels: Sequence[str],
    hidden: Set[str] = frozenset(),
) -> list[Sharding | None]:
    """Return the sharding of each argument; None if the compiler decides it.

    A key is a name, `input:N`, or a glob over names, `input:N-M` or `input:*`. An exact key overrides a glob, and a
    later glob an earlier one. A sharding for a range of inputs applies to the dimensions that each input has. A value
    of None makes an argument that an earlier glob matches undecided.

    Entries of an optimizer have the names of parameters too. So 0-d tensors, such as counts of steps, are skipped if
    the key also matches other tensors. Statistics of rows or columns are not sharded in dimensions of size 1.

    Args:
        shardings: key → sharding.
        names: the names of each argument, the preferred one first.
        nodes: the name of each argument in the graph, for exact keys that match no other name.
        positions: the index of each argument among the user inputs; None for other arguments.
        metas: the shape and element type of each argument.
        labels: the name of each argument in errors.
        hidden: the names that errors do not list, because the user did not create them.

    Raises:
        ShardingError, ParseError: a key matches nothing, or a sharding does not fit the mesh or its argument.
    """
    given: list[tuple[bool, Sharding | None]] = [(False, None)] * len(names)
    whole = {entry[-1]: meta for entry, meta in zip(reversed(names), reversed(metas), strict=True) if entry}
    for key, value in (shardings or {}).items():
        require_type("a key of shardings", key, str, "an input's name, 'input:N' or a glob")
        found, exact = _find(key, names, nodes, positions)
        if not found:
            raise _unknown(key, names, nodes, positions, hidden)
        for index in _shardable(found, value, metas, mesh):
            if exact or not given[index][0]:
                own = _fitting(value, metas[index], mesh) if _POSITIONS.fullmatch(key) else value
                sharding = _checked(own, metas[index], mesh, labels[index], key_location(key))
                given[index] = (exact, sharding and _of_part(sharding, metas[index], whole[names[index][-1]]))
    return [sharding for _, sharding in given]


def _unknown(
    key: str,
    names: Sequence[tuple[str, ...]],
    nodes: Sequence[str],
    positions: Sequence[int | None],
    hidden: Set[str],
) -> ShardingError:
    """Return the error of a key that matches nothing, with the available names."""
    inputs = [entry[0] for entry, position in zip(names, positions, strict=True) if position is not None]
    if _POSITION.fullmatch(key):
        message = f"sharding is given for '{key}', but the program has {len(inputs)} tensor inputs"
        return ShardingError(message, key_location(key))
    others = [entry[0] for entry, position in zip(names, positions, strict=True) if position is None and entry]
    state = [name for name in others if name not in hidden]
    groups = {"inputs": inputs, "parameters and buffers": state}
    told = [f"its {what} are {_first(group)}" for what, group in groups.items() if group]
    there = f"; {', and '.join(told)}" if told else ""
    if any(character in key for character in "*?["):
        near = did_you_mean_glob(key, [name for entry in names for name in entry]) or there
        message = f"sharding is given for '{key}', which matches no input, parameter or buffer{near}"
        return ShardingError(message, key_location(key))
    known = dict.fromkeys([name for entry in names for name in entry] + list(nodes))
    return ShardingError(
        f"sharding is given for '{key}', which is not an input, parameter or buffer{did_you_mean(key, known) or there}",
        key_location(key),
    )


def _first(names: Sequence[str]) -> str:
    return ", ".join([*names[:SHOWN], *(["…"] if len(names) > SHOWN else [])])


def _find(
    key: str, names: Sequence[tuple[str, ...]], nodes: Sequence[str], positions: Sequence[int | None]
) -> tuple[list[int], bool]:
    """Return (indices of the arguments that a key matches, whether the match is exact)."""
    position = _POSITION.fullmatch(key)
    if position:
        return [i for i, p in enumerate(positions) if p == int(position[1])], True
    several = _POSITIONS.fullmatch(key)
    if several:
        first, last = (int(several[1]), int(several[2])) if several[1] else (0, len(positions))
        return [i for i, p in enumerate(positions) if p is not None and first <= p <= last], False
    for level in range(max(map(len, names), default=0)):
        found = [i for i, entry in enumerate(names) if level < len(entry) and entry[level] == key]
        if found:
            return found, True
    if key in nodes:
        return [nodes.index(key)], True
    return [i for i, entry in enumerate(names) if any(fnmatchcase(name, key) for name in entry)], False


def _shardable(found: list[int], value: object, metas: Sequence[TensorMeta], mesh: Mesh) -> list[int]:
    """Return `found` without 0-d tensors; all of it if all are 0-d or `value` shards no dimension."""
    with_dimensions = [index for index in found if metas[index].rank]
    if value is None or not with_dimensions or len(with_dimensions) == len(found):
        return found
    entries = as_sharding(value, mesh, metas[with_dimensions[0]].rank).entries
    return with_dimensions if any(isinstance(placement, ShardPlacement) for _, placement in entries) else found


def _fitting(value: object, meta: TensorMeta, mesh: Mesh) -> object:
    """Return `value` without placements on dimensions that the tensor does not have."""
    if value is None:
        return None
    sharding = as_sharding(value, mesh)
    return Sharding([(axis, p) for axis, p in sharding.entries if p.dim is None or p.dim < meta.rank], sharding.mesh)


def _of_part(sharding: Sharding, part: TensorMeta, whole: TensorMeta) -> Sharding:
    """Return the sharding of `whole` for statistics `part` of its rows or columns: without dimensions of size 1."""
    if part.shape == whole.shape or part.rank != whole.rank:
        return sharding
    gone = [size == 1 and size != full for size, full in zip(part.shape, whole.shape, strict=True)]
    entries = [e for e in sharding.entries if not (isinstance(e[1], ShardPlacement) and gone[e[1].dim])]
    return attrs.evolve(sharding, entries=tuple(entries))


def _checked(value: object, meta: TensorMeta, mesh: Mesh, what: str, place: Location | None = None) -> Sharding | None:
    if value is None:
        return None
    try:
        sharding = as_sharding(value, mesh, meta.rank)
        sharding.check(mesh, meta.rank)
    except SpmdirError as error:
        raise error.at(place, f"sharding of {what} ({meta})") from None
    return sharding


def like_input(value: object, index: int, inputs: Mapping[str, Input]) -> Input | None:
    """Return the input in an entry `like:NAME` of `out_shardings`; None for another entry.

    Args:
        value: the entry.
        index: the index of the output.
        inputs: name → input, for every name of every argument.

    Raises:
        ShardingError: the name is unknown.
    """
    if not isinstance(value, str) or not value.startswith(LIKE):
        return None
    name = value.removeprefix(LIKE).strip()
    if name not in inputs:
        raise ShardingError(f"output {index} is to be like '{name}', which is not an input{did_you_mean(name, inputs)}")
    return inputs[name]


def output_sharding(value: object, meta: TensorMeta, mesh: Mesh, index: int) -> Sharding | None:
    """Return the sharding of the entry `value` for output `index`.

    Raises:
        ShardingError, ParseError: the sharding does not fit.
    """
    return _checked(value, meta, mesh, f"output {index}")
