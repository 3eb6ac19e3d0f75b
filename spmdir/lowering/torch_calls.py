"""The torch calls of ops: arguments by torch's schema, and a check that torch gives what the IR says.

All but the operands is the same for equal ops, such as those of the layers of a model, so it is worked out once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import fx

from spmdir.core.admission import draws
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.call import Local, slots_of
from spmdir.dialects.value_op import ValueOp
from spmdir.lowering.result_types import Results, check_results
from spmdir.torch_interop.ops import schema_of
from spmdir.torch_interop.schemas import torch_op
from spmdir.torch_interop.torch_literals import schema, torch_literal

STRIDE_FREE = {"aten.view": "aten.reshape", "aten._unsafe_view": "aten.reshape"}
"""Op that depends on strides → what is emitted instead: the IR has none, and slices and collectives change them."""


@attrs.frozen
class Operand:
    """The operand at `index`, among the arguments of a call."""

    index: int


@attrs.frozen
class TorchCall:
    """A call of a torch op.

    Attributes:
        target: the overload.
        args, kwargs: its arguments, with an `Operand` for each tensor.
        is_single: whether it gives one tensor and no list.
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
        evaluate: a number of a rank → what it is on this one.
        device: gives the node that is the device of the program, or that device.
    """

    def __init__(self, evaluate: Callable[[Local], int], device: Callable[[], Any]):
        self._evaluate, self._device = evaluate, device
        self._known: dict[object, TorchCall] = {}

    def of(self, op: ValueOp, given: Results, said: Results) -> TorchCall:
        """Return the call that `op` is.

        Args:
            given, said: the types of operands and results on this rank; None where the IR does not tell.

        Raises:
            UnsupportedError: torch has no such op or argument; or, given tensors as the IR types them, it does not
                give what the IR says.
        """
        key = (op.name, op.properties.get("arguments"), op.properties.get("structure"), given, said)
        if key not in self._known:
            self._known[key] = call = self._read(op)
            if None not in given:
                args, kwargs = filled(call.args, given), filled(call.kwargs, given)
                check_results(call.target, _fixed(args), tuple((name, _fixed(v)) for name, v in kwargs.items()), said)
        return self._known[key]

    def _read(self, op: ValueOp) -> TorchCall:
        target = torch_op(STRIDE_FREE.get(op.name, op.name))
        args, kwargs = self._arguments(op, target)
        returns = schema_of(target).returns
        is_single = len(returns) == 1 and str(returns[0].real_type) == "Tensor"
        return TorchCall(target, args, kwargs, is_single, draws(op.name, op.argument.get("dropout_p", 0)))

    def _arguments(self, op: ValueOp, target: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments of the schema, from literals by name and from operands in order."""
        literals, structure = op.argument, op.structure.data if op.structure else None
        slots = iter(slots_of(structure, len(op.tensors)))
        named = schema(torch_op(op.name))
        given: list[tuple[bool, Any]] = []
        kwargs: dict[str, Any] = {}
        for name, type_, keyword_only in named:
            value, known = None, False
            if "Tensor" in type_ and not (structure is None and name in literals):
                slot = next(slots, None)
                value = _operands(slot)
                known = slot is not None
            if name in literals:
                value, known = torch_literal(literals.pop(name), type_, self._evaluate), True
            if type_ in ("Device", "Optional[Device]"):
                # A program lives on one device, that of its inputs; whoever traced it may have used another.
                value, known = (None, False) if op.operands else (self._device(), True)
            if keyword_only and known:
                kwargs[name] = value
            elif not keyword_only:
                given.append((known, value))
        if literals:
            raise UnsupportedError(
                f"has no argument '{next(iter(literals))}'; it takes {', '.join(n for n, _, _ in named)}"
            )
        positions = schema_of(target).arguments
        while given and not given[-1][0] and positions[len(given) - 1].has_default_value():
            given.pop()
        defaults = (argument.default_value for argument in positions)
        args = (value if known else default for (known, value), default in zip(given, defaults, strict=False))
        return tuple(args), kwargs


def _operands(slot: Any) -> Any:
    """Return the operands that fill a tensor argument."""
    if isinstance(slot, tuple):
        return [_operands(one) for one in slot]
    return None if slot is None else Operand(slot)


def filled(value: Any, operands: Sequence[Any]) -> Any:
    """Return `value` with the operands in place of their `Operand`."""
    if type(value) is Operand:
        return operands[value.index]
    if isinstance(value, (list, tuple)):
        return type(value)([filled(item, operands) for item in value])
    if isinstance(value, dict):
        return {name: filled(item, operands) for name, item in value.items()}
    return value


def _fixed(value: Any) -> Any:
    """Return `value` with lists as tuples; the node that is no operand gives the device of the inputs."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_fixed, value))
    return torch.device("cpu") if isinstance(value, fx.Node) else value
