"""The torch calls of ops: arguments by torch's schema, and a check of result types against the IR.

Calls are cached. Equal ops, such as those of repeated layers, differ only in their operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import fx

import spmdir.torch_interop.cache_ops  # registers torch.ops.cache
import spmdir.torch_interop.expert_ops  # registers torch.ops.experts
import spmdir.torch_interop.sampling_ops  # noqa: F401  # registers torch.ops.sampling
from spmdir.core.admitted_ops import draws
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.call import Local, slots_of
from spmdir.core.placement.declaration import MODULE, is_local_map
from spmdir.dialects.value_op import ValueOp
from spmdir.lowering.result_types import Results, check_results
from spmdir.torch_interop.ops import schema_of
from spmdir.torch_interop.schemas import resolve, torch_op
from spmdir.torch_interop.torch_literals import schema, torch_literal

STRIDE_FREE = {"aten.view": "aten.reshape", "aten._unsafe_view": "aten.reshape"}
"""Op that depends on strides → its replacement. The IR has no strides, and slices and collectives change them."""


@attrs.frozen
class Operand:
    """A placeholder for operand `index` in the arguments of a call."""

    index: int


@attrs.frozen
class TorchCall:
    """A call of a torch op.

    Attributes:
        target: the overload.
        args, kwargs: its arguments, with an `Operand` for each tensor.
        is_single: whether it returns one tensor, not a list.
        draws: whether it draws random numbers.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_single: bool
    draws: bool


class TorchCalls:
    """The calls of the ops of one rank's program.

    Args:
        evaluate: number that depends on the rank → its value on this rank.
        device: returns the device of the program, or its node.
    """

    def __init__(self, evaluate: Callable[[Local], int], device: Callable[[], Any]):
        self._evaluate, self._device = evaluate, device
        self._calls: dict[object, TorchCall] = {}

    def of(self, op: ValueOp, operand_types: Results, result_types: Results) -> TorchCall:
        """Return the torch call of `op`.

        Args:
            operand_types, result_types: the local types of operands and results; None if the IR has no sizes.

        Raises:
            UnsupportedError: torch has no such op or argument, or its results have other types than in the IR.
        """
        key = (op.name, op.properties.get("arguments"), op.properties.get("structure"), operand_types, result_types)
        if key not in self._calls:
            self._calls[key] = call = self._read(op)
            if None not in operand_types:
                args = _without_nodes(fill_operands(call.args, operand_types))
                kwargs = fill_operands(call.kwargs, operand_types)
                kwarg_pairs = tuple((name, _without_nodes(value)) for name, value in kwargs.items())
                check_results(call.target, args, kwarg_pairs, result_types)
        return self._calls[key]

    def _read(self, op: ValueOp) -> TorchCall:
        """Return the torch call of `op`, without a check of its types."""
        if is_local_map(op.name) and resolve(op.name) is None:
            module = op.argument.get(MODULE)
            raise UnsupportedError(
                f"the function of this local map is not loaded; expected its module: load '{module}', which "
                "defines it, with --load-plugin, or import it"
            )
        target = torch_op(STRIDE_FREE.get(op.name, op.name))
        args, kwargs = self._arguments(op, target)
        returns = schema_of(target).returns
        is_single = len(returns) == 1 and str(returns[0].real_type) == "Tensor"
        return TorchCall(target, args, kwargs, is_single, draws(op.name, op.argument.get("dropout_p", 0)))

    def _arguments(self, op: ValueOp, target: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments of `target`: literals by name, operands in order.

        An argument that is not given has its default value. Trailing defaults are omitted.

        Raises:
            UnsupportedError: the op has a literal that is not in its schema.
        """
        literals, structure = op.argument, op.structure.data if op.structure else None
        slots = iter(slots_of(structure, len(op.tensors)))
        parameters = schema(torch_op(op.name))
        positional: list[tuple[bool, Any]] = []  # (whether the argument is given, its value)
        kwargs: dict[str, Any] = {}
        for name, type_, keyword_only in parameters:
            value, is_given = None, False
            # A number in place of a tensor is a literal, and has no slot if the op has no structure.
            if "Tensor" in type_ and not (structure is None and name in literals):
                slot = next(slots, None)
                value = _operands(slot)
                is_given = slot is not None
            if name in literals:
                value, is_given = torch_literal(literals.pop(name), type_, self._evaluate), True
            if type_ in ("Device", "Optional[Device]"):
                # A program runs on the device of its inputs, which may differ from the device during tracing.
                value, is_given = (None, False) if op.operands else (self._device(), True)
            if keyword_only and is_given:
                kwargs[name] = value
            elif not keyword_only:
                positional.append((is_given, value))
        if literals:
            names = ", ".join(name for name, _, _ in parameters)
            raise UnsupportedError(f"the op has no argument '{next(iter(literals))}'; expected {names}")
        positions = schema_of(target).arguments
        while positional and not positional[-1][0] and positions[len(positional) - 1].has_default_value():
            positional.pop()
        defaults = (argument.default_value for argument in positions)
        args = (
            value if is_given else default for (is_given, value), default in zip(positional, defaults, strict=False)
        )
        return tuple(args), kwargs


def _operands(slot: Any) -> Any:
    """Return the placeholder of a tensor argument: a list for a list of tensors, None for an absent tensor."""
    if isinstance(slot, tuple):
        return [_operands(item) for item in slot]
    return None if slot is None else Operand(slot)


def fill_operands(value: Any, operands: Sequence[Any]) -> Any:
    """Return `value` with each `Operand` replaced by the operand."""
    if type(value) is Operand:
        return operands[value.index]
    if isinstance(value, (list, tuple)):
        return type(value)([fill_operands(item, operands) for item in value])
    if isinstance(value, dict):
        return {name: fill_operands(item, operands) for name, item in value.items()}
    return value


def _without_nodes(value: Any) -> Any:
    """Return `value`, an argument of a call, in a hashable form without nodes.

    Lists become tuples. A node can only be the device of the inputs, and becomes the CPU.
    """
    if isinstance(value, (list, tuple)):
        return tuple(map(_without_nodes, value))
    return torch.device("cpu") if isinstance(value, fx.Node) else value
