"""Match the user's shardings with the arguments and outputs of a program."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from fnmatch import fnmatchcase

import attrs

from spmdir.core.errors import Location, ShardingError, SpmdirError, did_you_mean, did_you_mean_glob, require_type
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, ShardingLike, as_sharding
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.toml_text import key_location
from spmdir.importer.program import Input

_POSITION = re.compile(r"input:([0-9]+)")
_POSITIONS = re.compile(r"input:(?:\*|([0-9]+)-([0-9]+))")
LIKE = "like:"

SHOWN = 8
"""The number of names that an error lists."""


def match_input_shardings(
    shardings: Mapping[str, ShardingLike | None] | None,
    names: Sequence[tuple[str, ...]],
    node_names: Sequence[str],
    positions: Sequence[int | None],
    metas: Sequence[TensorMeta],
    mesh: Mesh,
    labels: Sequence[str],
    hidden: Set[str] = frozenset(),
) -> list[Sharding | None]:
    """Return the sharding of each argument; None if the compiler decides it.

    A key is exact (a name or `input:N`), or a glob over names, or a range of inputs (`input:N-M` or `input:*`). An
    exact key overrides a glob or range, and a later glob overrides an earlier one. A sharding for a range of inputs
    applies to the dimensions that each input has. The value None undoes an earlier glob.

    The state of an optimizer also matches the names of its parameters. 0-d tensors in it, such as step counts, are
    skipped if the key also matches other tensors. Statistics of rows or columns are not sharded in dimensions of
    size 1.

    Args:
        shardings: key → sharding.
        names: the names of each argument, the preferred one first.
        node_names: the name of each argument in the graph, for exact keys that match no other name.
        positions: the index of each argument among the user inputs; None for other arguments.
        metas: the shape and element type of each argument.
        labels: the name of each argument in errors.
        hidden: the names that errors do not list, because the user did not choose them.

    Raises:
        ShardingError: a key matches nothing, or a sharding does not fit the mesh or its argument.
        ParseError: the text of a sharding is malformed.
    """
    matches: list[tuple[bool, Sharding | None]] = [(False, None)] * len(names)
    # Last name of an argument → its meta, the first argument wins. The last name of a state of the optimizer is that of
    # its parameter, which comes before it.
    metas_by_name = {entry[-1]: meta for entry, meta in zip(reversed(names), reversed(metas), strict=True) if entry}
    for key, value in (shardings or {}).items():
        require_type("a key of shardings", key, str, "an input's name, 'input:N' or a glob")
        indices, is_exact = _match_key(key, names, node_names, positions)
        if not indices:
            raise _unknown_key_error(key, names, node_names, positions, hidden)
        for index in _select_shardable(indices, value, metas, mesh):
            if is_exact or not matches[index][0]:
                meta, full_meta = metas[index], metas_by_name[names[index][-1]]
                fitting_value = _drop_missing_dimensions(value, meta, mesh) if _POSITIONS.fullmatch(key) else value
                sharding = _check_sharding(fitting_value, meta, mesh, labels[index], key_location(key))
                matches[index] = (is_exact, sharding and _drop_reduced_dimensions(sharding, meta, full_meta))
    return [sharding for _, sharding in matches]


def check_kept_names(plan: ShardingPlan, names: Sequence[tuple[str, ...]]) -> None:
    """Raise ShardingError if an entry `axis: name or glob` of `plan.keep` matches no argument."""
    every_name = [name for entry in names for name in entry]
    for entry in plan.keep:
        pattern = entry.partition(":")[2].strip()
        if pattern and not any(fnmatchcase(name, pattern) for name in every_name):
            raise ShardingError(
                f"`keep` has the entry '{entry}', which matches no argument; expected an axis, or an axis and a name or"
                f" glob, as in 'ep: *.experts.*'{did_you_mean_glob(pattern, every_name)}"
            )


def _unknown_key_error(
    key: str,
    names: Sequence[tuple[str, ...]],
    node_names: Sequence[str],
    positions: Sequence[int | None],
    hidden: Set[str],
) -> ShardingError:
    """Return the error of a key that matches nothing, with the available names."""
    inputs = [entry[0] for entry, position in zip(names, positions, strict=True) if position is not None]
    if _POSITION.fullmatch(key):
        message = f"sharding is given for '{key}', but the program has {len(inputs)} tensor inputs"
        return ShardingError(message, key_location(key))
    state_names = [entry[0] for entry, position in zip(names, positions, strict=True) if position is None and entry]
    groups = {"inputs": inputs, "parameters and buffers": [name for name in state_names if name not in hidden]}
    lists = [f"its {kind} are {_list_first(group)}" for kind, group in groups.items() if group]
    available = f"; {', and '.join(lists)}" if lists else ""
    all_names = [name for entry in names for name in entry]
    if any(character in key for character in "*?["):
        hint = did_you_mean_glob(key, all_names) or available
        message = f"sharding is given for '{key}', which matches no input, parameter or buffer{hint}"
    else:
        hint = did_you_mean(key, dict.fromkeys([*all_names, *node_names])) or available
        message = f"sharding is given for '{key}', which is not an input, parameter or buffer{hint}"
    return ShardingError(message, key_location(key))


def _list_first(names: Sequence[str]) -> str:
    """Return the first `SHOWN` names, followed by `…` if there are more."""
    return ", ".join([*names[:SHOWN], *(["…"] if len(names) > SHOWN else [])])


def _match_key(
    key: str, names: Sequence[tuple[str, ...]], node_names: Sequence[str], positions: Sequence[int | None]
) -> tuple[list[int], bool]:
    """Return (indices of the arguments that a key matches, whether the match is exact).

    The arguments are those of `match_input_shardings`.
    """
    index_of_position = {position: index for index, position in enumerate(positions) if position is not None}
    position_key = _POSITION.fullmatch(key)
    if position_key:
        position = int(position_key[1])
        return ([index_of_position[position]] if position in index_of_position else []), True
    range_key = _POSITIONS.fullmatch(key)
    if range_key:
        # `input:*` has no numbers, and is the range of all positions.
        begin, end = (int(range_key[1]), int(range_key[2])) if range_key[1] else (0, len(positions))
        return [index for position, index in index_of_position.items() if begin <= position <= end], False
    # The preferred names of all arguments come before the second names of any.
    for level in range(max(map(len, names), default=0)):
        indices = [index for index, entry in enumerate(names) if level < len(entry) and entry[level] == key]
        if indices:
            return indices, True
    if key in node_names:
        return [node_names.index(key)], True
    return [index for index, entry in enumerate(names) if any(fnmatchcase(name, key) for name in entry)], False


def _select_shardable(indices: list[int], value: object, metas: Sequence[TensorMeta], mesh: Mesh) -> list[int]:
    """Return those of `indices`, the arguments that a key matches, to which the sharding `value` can apply.

    If `value` shards a dimension and some of the tensors have dimensions, 0-d tensors are left out. Otherwise, all
    indices are returned.
    """
    with_dimensions = [index for index in indices if metas[index].rank]
    if value is None or not with_dimensions or len(with_dimensions) == len(indices):
        return indices
    entries = as_sharding(value, mesh, metas[with_dimensions[0]].rank).entries
    return with_dimensions if any(isinstance(placement, ShardPlacement) for _, placement in entries) else indices


def _drop_missing_dimensions(value: object, meta: TensorMeta, mesh: Mesh) -> object:
    """Return `value` without placements on dimensions that the tensor does not have."""
    if value is None:
        return None
    sharding = as_sharding(value, mesh)
    entries = [
        (axis, placement) for axis, placement in sharding.entries if placement.dim is None or placement.dim < meta.rank
    ]
    return Sharding(entries, sharding.mesh)


def _drop_reduced_dimensions(sharding: Sharding, meta: TensorMeta, full_meta: TensorMeta) -> Sharding:
    """Return the sharding of a parameter for statistics of its rows or columns: without dimensions of size 1.

    Args:
        meta: the shape of the statistics, such as 1×8.
        full_meta: the shape of the parameter, such as 16×8.
    """
    if meta.shape == full_meta.shape or meta.rank != full_meta.rank:
        return sharding
    is_reduced = [size == 1 and size != full for size, full in zip(meta.shape, full_meta.shape, strict=True)]
    entries = []
    for axis, placement in sharding.entries:
        if not (isinstance(placement, ShardPlacement) and is_reduced[placement.dim]):
            entries.append((axis, placement))
    return attrs.evolve(sharding, entries=tuple(entries))


def _check_sharding(
    value: object, meta: TensorMeta, mesh: Mesh, label: str, location: Location | None = None
) -> Sharding | None:
    """Return the user's `value` as a sharding that fits a tensor; None for None. Errors name the tensor by `label`."""
    if value is None:
        return None
    try:
        sharding = as_sharding(value, mesh, meta.rank)
        sharding.check(mesh, meta.rank)
    except SpmdirError as error:
        raise error.at(location, f"sharding of {label} ({meta})") from None
    return sharding


def find_like_input(value: object, index: int, inputs: Mapping[str, Input]) -> Input | None:
    """Return the input NAME of an entry `like:NAME` of `out_shardings`; None for another entry.

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
        message = f"out_shardings[{index}] is 'like:{name}'; expected the name of an input"
        raise ShardingError(message + did_you_mean(name, inputs))
    return inputs[name]


def check_output_sharding(value: object, meta: TensorMeta, mesh: Mesh, index: int) -> Sharding | None:
    """Return the entry `value` of `out_shardings` as a sharding that fits output `index`.

    Raises:
        ShardingError: the sharding does not fit the output.
        ParseError: its text is malformed.
    """
    return _check_sharding(value, meta, mesh, f"output {index}")
