"""States of packed placements in local forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from spmdir.core.errors import RuleError, SpmdirError
from spmdir.core.placement.call import Call
from spmdir.core.placement.packed import PackedPlacement, joint_placement
from spmdir.core.placement.standard import Placement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.placement.text import head_of
from spmdir.rules.language.syntax_tree import STATE_METHODS, StateCall
from spmdir.rules.local.expansion import Value


class StateBuilder(Protocol):
    """What a call on states needs of the emitter that runs a form.

    Attributes:
        joint: name → the packed placement of that name which the form's strategy gives to results.
    """

    joint: Mapping[str, PackedPlacement]

    def add(self, call: Call, operands: tuple[Value, ...]) -> tuple[Value, ...]: ...

    def meta(self, value: Value) -> TensorMeta: ...


def state_call(
    emitter: StateBuilder, expression: StateCall, arguments: Sequence[Any], wanted: Sequence[TensorMeta | None]
) -> tuple[Value, ...]:
    """Add the op of a method of a packed placement, and return the state or the results that it gives.

    Args:
        arguments: the tensors that parts are like, two states, or one.
        wanted: what a rank has of each result of the op, for `finish`; the element types are those of the parts.

    Raises:
        RuleError: the arguments are not what the method takes; located.
    """
    try:
        placement = emitter.joint.get(expression.placement) or joint_placement(expression.placement)
        parts = placement.parts
    except SpmdirError as error:
        raise RuleError(error.message, expression.location) from None
    method = expression.method
    by = str(placement) if expression.placement in emitter.joint else expression.placement
    states = [tuple(arguments)] if method == "identity" else [*arguments]
    if len(states) != (2 if method == "combine" else 1) or not all(_is_state(state, len(parts)) for state in states):
        raise RuleError(
            f"{expression.placement}.{method} takes {STATE_METHODS[method]}; expected {len(parts)} tensors in each, "
            f"for {', '.join(parts)}",
            expression.location,
        )
    operands = tuple(value for state in states for value in state)
    metas = tuple(map(emitter.meta, operands))
    results: tuple[TensorMeta | None, ...] = metas[: len(parts)]
    if method == "finish":
        pairs = zip(wanted, metas, strict=False)
        results = tuple(meta and attrs.evolve(meta, dtype=part.dtype) for meta, part in pairs)
    if method == "pack":
        results = (TensorMeta(*placement.packed_type([(meta.shape, meta.dtype) for meta in metas])),)
    return emitter.add(Call(f"spmd.{method}", metas, (("by", by),), results), operands)


def joint_of(placements: Iterable[Placement]) -> dict[str, PackedPlacement]:
    """Return name → part 0 of the first packed placement of that name among `placements`."""
    found: dict[str, PackedPlacement] = {}
    for placement in placements:
        if isinstance(placement, PackedPlacement):
            first = attrs.evolve(placement, part=0) if placement.part else placement  # type: ignore[call-arg]
            found.setdefault(head_of(type(placement).text), first)
    return found


def _is_state(state: Any, parts: int) -> bool:
    return isinstance(state, tuple) and len(state) == parts and all(isinstance(value, Value) for value in state)
