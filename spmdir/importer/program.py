"""What is imported: one functional graph whose placeholders and outputs say what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, fx

from spmdir.torch_interop.dispatch import is_of_transform
from spmdir.torch_interop.tensors import is_zero_tensor

CONSTANT_BYTES = 1 << 20
"""Tensors outside the state dict that are larger than this become arguments, not constants in the text."""


@attrs.frozen(eq=False)
class Input:
    """A placeholder.

    Attributes:
        node: its fx node.
        names: what it is called, the IR's name first; the others are only for finding it, as the node's name is.
        kind: "parameter", "buffer" or "input" for a function argument, "tangent" for the gradient of an output,
            "late_buffer" for a buffer as the backward takes it; "constant" for a tensor whose value is known; "literal"
            for a user input that is not a tensor.
        value: the tensor or the literal, where it is known.
        buffer: of a late buffer, the name of the buffer.
    """

    node: fx.Node
    names: tuple[str, ...]
    kind: str
    value: Any = None
    buffer: str | None = None

    @property
    def label(self) -> str:
        """What errors about its sharding call it: a gradient has the sharding of the output that it is of."""
        name = self.names[0]
        return f"output {name.rpartition('.')[2]}" if self.kind == "tangent" else f"'{name}'"

    @property
    def is_argument(self) -> bool:
        """Return whether it becomes an argument of the function."""
        return self.kind in ("parameter", "buffer", "input", "tangent", "late_buffer")


@attrs.frozen(eq=False)
class Output:
    """A leaf of what the graph returns.

    Attributes:
        value: an fx node, or a literal.
        names: what it is called, the best first; empty if only a position leads to it.
        kind: "output", or "mutation" for the new value of the input that the name says.
        like: the input whose new value or gradient it is, if the graph's signature says so.
        sources: of what the backward computes, the places of the outputs whose gradients it is computed for.
    """

    value: Any
    names: tuple[str, ...]
    kind: str = "output"
    like: str | None = None
    sources: frozenset[int] = frozenset()


@attrs.frozen(eq=False)
class Program:
    """A functional graph: no op mutates, but for `copy_` into placeholders, and nodes have `meta["val"]`.

    Attributes:
        ranges: torch's symbol of a size → its range, where the user gave one.
    """

    graph: fx.Graph
    inputs: list[Input]
    outputs: list[Output]
    ranges: Mapping[Any, Any] = attrs.field(factory=dict)


def is_small(value: Any) -> bool:
    """Return whether `value` is a real tensor that can stand in the text as a constant."""
    real = type(value) in (Tensor, torch.nn.Parameter, torch.nn.Buffer) and not value.is_meta
    real = real and not is_of_transform(value)  # as transforms leave behind in exported programs
    return real and value.layout == torch.strided and value.numel() * value.element_size() <= CONSTANT_BYTES


def plain_tensor(value: Tensor) -> Tensor:
    """Return `value` on the CPU with elements of its own in memory, which zero gradients and conjugates lack."""
    if is_zero_tensor(value):
        return torch.zeros(value.shape, dtype=value.dtype)
    return value.detach().cpu().resolve_conj().resolve_neg()
