"""Emit the ops of methods of packed placements in local forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from spmdir.core.errors import RuleError, SpmdirError
from spmdir.core.placement.call import Call
from spmdir.core.placement.packed import PackedPlacement, find_packed_placement
from spmdir.core.placement.standard import Placement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.placement.text import head_of
from spmdir.rules.language.syntax_tree import STATE_METHODS, StateCall
from spmdir.rules.local.expansion import Value


class StateBuilder(Protocol):
    """The part of the emitter that a call on states uses.

    Attributes:
        packed: name → the packed placement of that name that the strategy gives to results.
    """

    packed: Mapping[str, PackedPlacement]

    def add(self, call: Call, operands: tuple[Value, ...]) -> tuple[Value, ...]: ...

    def meta(self, value: Value) -> TensorMeta: ...


def state_call(
    emitter: StateBuilder, expression: StateCall, arguments: Sequence[Any], local_results: Sequence[TensorMeta | None]
) -> tuple[Value, ...]:
    """Add the op of a method of a packed placement, and return the resulting state or results.

    Args:
        arguments: the arguments of the method, see STATE_METHODS. A state is a tuple of values.
        local_results: for `finish`, the types of the local results of the op; element types follow from the parts.

    Raises:
        RuleError: the arguments do not fit the method; located.
    """
    try:
        placement = emitter.packed.get(expression.placement) or find_packed_placement(expression.placement)
        parts = placement.parts
    except SpmdirError as error:
        raise RuleError(error.message, expression.location) from None
    method = expression.method
    # The text of a placement in the strategy contains its fields.
    name = str(placement) if expression.placement in emitter.packed else expression.placement
    states = [tuple(arguments)] if method == "identity" else [*arguments]  # `identity` takes the parts of one state
    if len(states) != (2 if method == "combine" else 1) or not all(_is_state(state, len(parts)) for state in states):
        raise RuleError(
            f"{expression.placement}.{method} takes {STATE_METHODS[method]}; expected {len(parts)} tensors in each, "
            f"for {', '.join(parts)}",
            expression.location,
        )
    operands = tuple(value for state in states for value in state)
    metas = tuple(map(emitter.meta, operands))
    results: tuple[TensorMeta | None, ...] = metas[: len(parts)]  # a state, for `identity` and `combine`
    if method == "finish":
        pairs = zip(local_results, metas, strict=False)
        results = tuple(meta and attrs.evolve(meta, dtype=part.dtype) for meta, part in pairs)
    if method == "pack":
        results = (TensorMeta(*placement.packed_type([(meta.shape, meta.dtype) for meta in metas])),)
    return emitter.add(Call(f"spmd.{method}", metas, (("by", name),), results), operands)


def packed_by_name(placements: Iterable[Placement]) -> dict[str, PackedPlacement]:
    """Return name → the first packed placement of that name among `placements`, as its part 0."""
    packed: dict[str, PackedPlacement] = {}
    for placement in placements:
        if isinstance(placement, PackedPlacement):
            part_0 = attrs.evolve(placement, part=0) if placement.part else placement  # type: ignore[call-arg]
            packed.setdefault(head_of(type(placement).text), part_0)
    return packed


def _is_state(state: Any, parts: int) -> bool:
    """Return whether an argument is a state: a tuple of `parts` values."""
    return isinstance(state, tuple) and len(state) == parts and all(isinstance(value, Value) for value in state)
