"""The public function that lists the strategies of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spmdir.core.arguments import FLAG, Kind, accepts, instance, keyed
from spmdir.core.dtype import DType
from spmdir.core.errors import RuleError, require_type, shown
from spmdir.core.placement.standard import Placement, parse_placement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.obstacle import Dropped
from spmdir.rules.strategies.strategy import Strategy


def _is_meta(value: object) -> bool:
    """Return whether `value` is a TensorMeta whose shape is a tuple of sizes."""
    return (
        isinstance(value, TensorMeta)
        and isinstance(value.shape, tuple)
        and all(isinstance(size, int) and size >= 0 for size in value.shape)
    )


def _is_literal(value: object) -> bool:
    """Return whether `value` is a literal argument: a number, a string, None, a DType, or a list of these."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_literal, value))
    return value is None or isinstance(value, (bool, int, float, complex, str, DType))


_META = Kind(_is_meta, 'one such as TensorMeta((4, 8), "f32")')
_LITERAL = Kind(_is_literal, "a number, a string, None, a DType, or a tuple of these")


@accepts(
    name=instance(str, expected="an op's name such as aten.mm"),
    operands=instance(list, tuple, expected='operands such as TensorMeta((4, 8), "f32")'),
    arguments=keyed("a dict of literals by the names in the op's schema, as in {'dim': 0}"),
    placements=instance(list, tuple, expected='placements such as ("Cyclic(0, 2)",)'),
    why=FLAG,
)
def op_strategies(
    name: str,
    operands: Sequence[TensorMeta | Sequence[TensorMeta] | None],
    arguments: Mapping[str, Any],
    axis_size: int,
    placements: Sequence[str | Placement] = (),
    why: bool = False,
) -> tuple[Strategy | Dropped, ...]:
    """Return the strategies of op `name` on tensors like `operands` for a mesh axis of `axis_size` ranks.

    The result is empty if no rule of the op fits the call.

    Args:
        name: the name of the op, such as "aten.mm".
        operands: the global shape and element type of each tensor argument, in order; a sequence of these for a list
            of tensors, None for an absent tensor.
        arguments: the other arguments by name.
        axis_size: the number of ranks, at least 1.
        placements: plug-in placements, as text or value. They may shard any dimension. Their strategies come last.
        why: also return the omitted strategies, each with its `reason`.

    Raises:
        RuleError: the op has no rule, or the call does not fit it.
        ParseError, ShardingError: a placement is invalid.

    Example:
        >>> from spmdir.core.placement.tensor import TensorMeta
        >>> rows = spmdir.rules.op_strategies("aten.relu", (TensorMeta((8, 4), "f32"),), {}, axis_size=2)
    """
    flat: list[Any] = []
    for operand in operands:
        if isinstance(operand, (list, tuple)):
            flat += operand
        elif operand is not None:
            flat.append(operand)
    for operand in flat:
        _META.check("an operand", operand)
    for key, value in arguments.items():
        _LITERAL.check(f"argument '{key}'", value)
    if not isinstance(axis_size, int) or axis_size < 1:
        raise RuleError(f"axis_size is {shown(axis_size)}; expected a number of ranks, at least 1")
    plugins = tuple(parse_placement(placement) if isinstance(placement, str) else placement for placement in placements)
    for placement in plugins:
        require_type("a placement", placement, Placement, 'one such as "Cyclic(0, 2)"')
    rules = default()
    structure = tuple(
        (1,) * len(operand) if isinstance(operand, (list, tuple)) else int(operand is not None) for operand in operands
    )
    is_plain = all(entry == 1 for entry in structure)
    call = rules.infer_call(name, tuple(flat), arguments, None if is_plain else structure)
    op_rule = rules.instantiate(call)
    if op_rule is None:
        return ()
    listing = op_rule.considered if why else op_rule.strategies
    return listing(axis_size, placements=plugins)
