"""Fills the parameters of a rule with the operands and arguments of one call."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from spmdir.core.errors import RuleError, did_you_mean
from spmdir.core.placement.call import Literal
from spmdir.rules.language.argument_types import check_kind
from spmdir.rules.language.syntax_tree import Rule

Slot = int | None | tuple["int | None", ...]


@attrs.frozen
class Binding:
    """The parameters of a rule filled by one call.

    Attributes:
        tensors: tensor parameter → its operand's number, a tuple of these for a list, or None.
        arguments: literal argument → value; also a tensor parameter that was passed as a Python scalar.
    """

    tensors: Mapping[str, Slot]
    arguments: Mapping[str, Literal]

    def operands(self, name: str) -> tuple[int, ...]:
        """Return the numbers of the operands that fill tensor parameter `name`."""
        slot = self.tensors.get(name)
        if slot is None:
            return ()
        return tuple(s for s in slot if s is not None) if isinstance(slot, tuple) else (slot,)


def bind(rule: Rule, slots: tuple[Slot, ...], positional: bool, arguments: Mapping[str, Literal]) -> Binding:
    """Fill the parameters of `rule`; `positional` says that `slots` leave out the parameters passed as scalars.

    Raises:
        RuleError: an argument that the op does not have or of another kind, or more operands than it takes.
    """
    for name, value in arguments.items():
        if rule.parameter(name) is None:
            known = [p.name for p in rule.parameters]
            raise RuleError(
                f"the rule of {rule.op} ({rule.location.file}:{rule.location.line}) has no parameter '{name}'; "
                f"it has {', '.join(known)}{did_you_mean(name, known)}"
            )
        check_kind(rule.op, name, value)
    tensors = rule.tensors
    if positional and arguments:
        tensors = [p for p in tensors if p.name not in arguments]
    if len(slots) > len(tensors):
        raise RuleError(f"{rule.op} was given {len(slots)} tensor operands; it takes {len(tensors)}")
    filled: dict[str, Slot] = dict.fromkeys((p.name for p in rule.tensors), None)
    filled.update((p.name, slot) for p, slot in zip(tensors, slots, strict=False))
    for parameter in rule.tensors:
        slot = filled[parameter.name]
        if isinstance(slot, tuple) != parameter.is_list and slot is not None:
            form = "a list of tensors" if parameter.is_list else "one tensor"
            raise RuleError(f"operand '{parameter.name}' of {rule.op} must be {form}")
        if slot == () and not parameter.optional:
            raise RuleError(f"operand '{parameter.name}' of {rule.op} is an empty list; expected tensors")
        if slot is None and not parameter.optional and not parameter.is_list and parameter.name not in arguments:
            raise RuleError(f"{rule.op} was given no operand '{parameter.name}'")
    given = {name: value for name, value in arguments.items() if value is not None or name not in rule.defaults}
    return Binding(filled, {**rule.defaults, **given})
