"""The strategies of an op, for who asks by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spmdir.call import Literal, TensorMeta
from spmdir.errors import RuleError, require_type
from spmdir.placement import Placement, parse_placement
from spmdir.rules.rule_set import default
from spmdir.rules.strategy import Strategy


def strategies(
    name: str,
    operands: tuple[TensorMeta, ...],
    arguments: Mapping[str, Literal],
    axis_size: int,
    placements: Sequence[str | Placement] = (),
) -> tuple[Strategy, ...]:
    """The strategies of op `name` on tensors like `operands` for a mesh axis of `axis_size` ranks.

    Args:
        placements: plug-in placements, as text or value, whose strategies come last, for whatever dimension.

    Raises:
        RuleError: no rule, or the call does not fit it.
        ParseError, ShardingError: a placement is none.
    """
    require_type("name", name, str, "an op's name such as aten.mm")
    require_type("operands", operands, (list, tuple), 'operands such as TensorMeta((4, 8), "f32")')
    for operand in operands:
        require_type("an operand", operand, TensorMeta, 'one such as TensorMeta((4, 8), "f32")')
    if not isinstance(axis_size, int) or axis_size < 1:
        raise RuleError(f"axis_size is {axis_size!r}; expected a number of ranks from 1 on")
    require_type("placements", placements, (list, tuple), 'placements such as ("Cyclic(0, 2)",)')
    extras = tuple(parse_placement(p) if isinstance(p, str) else p for p in placements)
    for placement in extras:
        require_type("a placement", placement, Placement, 'one such as "Cyclic(0, 2)"')
    rules = default()
    op_rule = rules.instantiate(rules.infer_call(name, operands, arguments))
    return op_rule.strategies(axis_size, extras=extras) if op_rule else ()
