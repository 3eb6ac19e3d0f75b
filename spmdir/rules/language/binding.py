"""Bind the operands and arguments of one call to the parameters of a rule."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from spmdir.core.errors import RuleError, did_you_mean
from spmdir.core.placement.call import Literal
from spmdir.rules.language.argument_types import check_kind
from spmdir.rules.language.syntax_tree import Rule

Slot = int | None | tuple["int | None", ...]
"""What fills a tensor parameter: the index of an operand, a tuple of these for a list of tensors, or None."""


@attrs.frozen
class Binding:
    """The parameters of a rule, bound to the operands and arguments of one call.

    Attributes:
        tensors: tensor parameter → the index of its operand, a tuple of these for a list, or None.
        arguments: literal argument → value; also tensor parameters that were passed as Python numbers.
    """

    tensors: Mapping[str, Slot]
    arguments: Mapping[str, Literal]

    def operands(self, name: str) -> tuple[int, ...]:
        """Return the indices of the operands of tensor parameter `name`."""
        slot = self.tensors.get(name)
        if slot is None:
            return ()
        return tuple(index for index in slot if index is not None) if isinstance(slot, tuple) else (slot,)


def bind(rule: Rule, slots: tuple[Slot, ...], positional: bool, arguments: Mapping[str, Literal]) -> Binding:
    """Bind the operands and arguments of a call to the parameters of `rule`.

    For example, `add(x, 2)` for `aten.add(self: *b, other: *b, alpha)` has the slots (0,) and the arguments {other: 2}.
    The binding has the tensors {self: 0, other: None} and the arguments {other: 2, alpha: 1}.

    Args:
        slots: the operands of the tensor parameters, in order.
        positional: whether `slots` omits the tensor parameters that were passed as Python numbers, such as `other`.

    Raises:
        RuleError: an argument is unknown or of the wrong kind, there are too many operands, a required operand is
            missing, or a list of tensors is passed for one tensor or the reverse.
    """
    for name, value in arguments.items():
        if rule.parameter(name) is None:
            names = [parameter.name for parameter in rule.parameters]
            raise RuleError(
                f"the rule of {rule.op} ({rule.location.file}:{rule.location.line}) has no parameter "
                f"'{name}'; expected one of {', '.join(names)}{did_you_mean(name, names)}"
            )
        check_kind(rule.op, name, value)
    filled_parameters = rule.tensors
    if positional and arguments:
        filled_parameters = [parameter for parameter in rule.tensors if parameter.name not in arguments]
    if len(slots) > len(filled_parameters):
        raise RuleError(
            f"{rule.op} has {len(slots)} tensor operands; expected at most {len(filled_parameters)}: remove the others"
        )
    tensors: dict[str, Slot] = dict.fromkeys((parameter.name for parameter in rule.tensors), None)
    tensors.update((parameter.name, slot) for parameter, slot in zip(filled_parameters, slots, strict=False))
    for parameter in rule.tensors:
        slot = tensors[parameter.name]
        if isinstance(slot, tuple) != parameter.is_list and slot is not None:
            form = "a list of tensors" if parameter.is_list else "one tensor"
            raise RuleError(f"operand '{parameter.name}' of {rule.op} has another form; expected {form}")
        if slot == () and not parameter.optional:
            raise RuleError(
                f"operand '{parameter.name}' of {rule.op} is an empty list; expected one or more tensors: pass them"
            )
        if slot is None and not parameter.optional and not parameter.is_list and parameter.name not in arguments:
            raise RuleError(f"{rule.op} has no operand '{parameter.name}'; expected a tensor: pass it")
    # None stands for the default of an argument.
    present = {name: value for name, value in arguments.items() if value is not None or name not in rule.defaults}
    return Binding(tensors, {**rule.defaults, **present})
