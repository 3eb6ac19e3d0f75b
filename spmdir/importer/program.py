"""The input of the importer: one functional graph with the kinds and names of its inputs and outputs."""

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
        names: the name in the IR, then other names that plans may use.
        kind: "parameter", "buffer" or "input" for a function argument, "tangent" for the gradient of an output,
            "late_buffer" for the value of a buffer at the time of the backward, "constant" for a tensor that becomes a
            constant, "literal" for a user input that is not a tensor.
        value: the tensor or literal, if it is known.
        buffer: the name of the buffer, for a late buffer.
    """

    node: fx.Node
    names: tuple[str, ...]
    kind: str
    value: Any = None
    buffer: str | None = None

    @property
    def label(self) -> str:
        """The name in errors about shardings. A tangent gets the sharding, and thus the name, of its output."""
        name = self.names[0]
        return f"output {name.rpartition('.')[2]}" if self.kind == "tangent" else f"'{name}'"

    @property
    def is_argument(self) -> bool:
        """Return whether the input becomes an argument of the function."""
        return self.kind in ("parameter", "buffer", "input", "tangent", "late_buffer")


@attrs.frozen(eq=False)
class Output:
    """A leaf of the outputs of the graph.

    Attributes:
        value: an fx node, or a literal.
        names: the names, the best first; empty if the leaf has only a position.
        kind: "output", or "mutation" for the new value of the input of this name.
        like: the input whose new value or gradient the output is, if the signature of the graph contains it.
        sources: for a result of the backward, the indices of the outputs on whose gradients it depends.
    """

    value: Any
    names: tuple[str, ...]
    kind: str = "output"
    like: str | None = None
    sources: frozenset[int] = frozenset()


@attrs.frozen(eq=False)
class Program:
    """A functional graph, whose nodes have `meta["val"]`. Its only in-place ops are `copy_` to placeholders.

    Attributes:
        ranges: torch symbol of a size → the range that the user declared.
    """

    graph: fx.Graph
    inputs: list[Input]
    outputs: list[Output]
    ranges: Mapping[Any, Any] = attrs.field(factory=dict)


def is_small(value: Any) -> bool:
    """Return whether `value` is a tensor with values in memory that fits in the text as a constant."""
    has_values = type(value) in (Tensor, torch.nn.Parameter, torch.nn.Buffer) and not value.is_meta
    has_values = has_values and not is_of_transform(value)  # exported programs may contain such wrappers
    return has_values and value.layout == torch.strided and value.numel() * value.element_size() <= CONSTANT_BYTES


def plain_tensor(value: Tensor) -> Tensor:
    """Return `value` on the CPU, without gradients, and with all elements in memory.

    Lazy conjugates and negations are resolved. A tensor of zeros without memory gets memory.
    """
    if is_zero_tensor(value):
        return torch.zeros(value.shape, dtype=value.dtype)
    return value.detach().cpu().resolve_conj().resolve_neg()
