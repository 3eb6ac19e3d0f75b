"""The message that the first rank sends all ranks before each call: one vector of i64 numbers of a fixed length.

The first number is the index of the call: `END`, `IDLE`, `FAILED`, or a program. The inputs of the program follow, in
the order of its arguments; floats are sent as the bits of f64. All ranks read the lengths from the same programs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from spmdir.runtime.signature import Argument
from spmdir.torch_interop.dtypes import TORCH_DTYPES

END = "end"
"""The call after the last one."""

IDLE = "idle"
"""No call: the first rank waits for requests, and the other ranks keep waiting for its messages."""

FAILED = "failed"
"""The first rank cannot schedule."""


@attrs.frozen(eq=False)
class CallMessages:
    """The messages of calls.

    Attributes:
        inputs: name of a call → its inputs.
    """

    inputs: Mapping[str, Sequence[Argument]]

    @property
    def width(self) -> int:
        """The number of numbers of a message."""
        return 1 + max(sum(map(_count, arguments)) for arguments in self.inputs.values())

    def encode(self, name: str, values: Mapping[str, Any]) -> Tensor:
        """Return the message of a call with nested lists of values for its inputs."""
        message = torch.zeros(self.width, dtype=torch.int64)
        message[0] = [*self.inputs].index(name)
        start = 1
        for argument in self.inputs[name]:
            numbers = torch.tensor(values[argument.name], dtype=_sent_type(argument)).reshape(-1)
            message[start : start + _count(argument)] = numbers.view(torch.int64)
            start += _count(argument)
        return message

    def decode(self, message: Tensor) -> tuple[str, dict[str, Tensor]]:
        """Return the name of a call and its inputs: the inverse of `encode`."""
        name = [*self.inputs][int(message[0])]
        tensors, start = {}, 1
        for argument in self.inputs[name]:
            numbers = message[start : start + _count(argument)].view(_sent_type(argument))
            tensors[argument.name] = numbers.to(TORCH_DTYPES[argument.meta.dtype]).reshape(argument.meta.shape)
            start += _count(argument)
        return name, tensors


def _count(argument: Argument) -> int:
    """Return the number of elements of an input."""
    return math.prod(argument.meta.shape)


def _sent_type(argument: Argument) -> torch.dtype:
    """Return the type, of 8 bytes, in which a message has an input."""
    return torch.float64 if TORCH_DTYPES[argument.meta.dtype].is_floating_point else torch.int64
