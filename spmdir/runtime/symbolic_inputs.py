"""Fake tensors with symbolic sizes, to trace a step for calls with other sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import DimDynamic

from spmdir.core.errors import SpmdirError
from spmdir.runtime.dynamic_dims import is_dynamic
from spmdir.torch_interop.fake_tensors import FakeTensorMode
from spmdir.torch_interop.symbolic_numbers import size_source


def make_sizes_symbolic(values: Sequence[Any], dynamic_shapes: Any, mode: FakeTensorMode) -> tuple[Any, ...]:
    """Return `values`, a tree of fake tensors, with symbolic sizes for the dimensions in `dynamic_shapes`.

    Args:
        dynamic_shapes: one entry for each value, with its structure. The entry of a tensor is a dict or list of
            dimensions, as in torch.export.export, with `Dim("batch", max=64)`, `Dim.DYNAMIC` or `Dim.AUTO`; None is
            fixed. Dimensions of one name have one size.

    Raises:
        SpmdirError: the structure of `dynamic_shapes` differs from the values, or an example size is 0 or 1.
    """
    return _SizeSymbols(mode).open_sizes(tuple(values), dynamic_shapes, "dynamic_shapes")


class _SizeSymbols:
    """Replaces sizes of fake tensors by symbols.

    Attributes:
        named: name of a Dim → (its symbolic size, the example size).
    """

    def __init__(self, mode: FakeTensorMode):
        self.mode = mode
        self.named: dict[str, Any] = {}

    def open_sizes(self, value: Any, spec: Any, where: str) -> Any:
        """Return `value`, a tree of tensors, with symbolic sizes. If `spec` is None, `value` is returned unchanged.

        Args:
            spec: the entry of `value` in `dynamic_shapes`.
            where: the path of the entry, such as `dynamic_shapes[0]['x']`, for errors.
        """
        if spec is None:
            return value
        if isinstance(value, Tensor) and isinstance(spec, (Mapping, tuple, list)):
            specs = spec if isinstance(spec, Mapping) else dict(enumerate(spec))
            sizes = [
                self.symbol_of(size, specs.get(dim), f"{where}[{dim}]") if is_dynamic(specs.get(dim)) else size
                for dim, size in enumerate(value.shape)
            ]
            with self.mode:
                return torch.empty(sizes, dtype=value.dtype, device=value.device)
        if isinstance(value, Mapping) and isinstance(spec, Mapping) and set(spec) <= set(value):
            construct: Any = type(value)
            return construct(
                {key: self.open_sizes(item, spec.get(key), f"{where}[{key!r}]") for key, item in value.items()}
            )
        if isinstance(value, (tuple, list)) and isinstance(spec, (tuple, list)) and len(value) == len(spec):
            return type(value)(
                [
                    self.open_sizes(item, item_spec, f"{where}[{index}]")
                    for index, (item, item_spec) in enumerate(zip(value, spec, strict=True))
                ]
            )
        raise SpmdirError(
            f"{where} is {spec!r}; expected the structure of the arguments, with None for fixed dimensions"
        )

    def symbol_of(self, example: int, spec: Any, where: str) -> Any:
        """Return the symbol for the size of a dimension: that of its Dim if it has a name, else a new symbol.

        Args:
            example: the size in the example inputs.
            spec: the entry of the dimension in `dynamic_shapes`.
            where: the path of the entry, for errors.

        Raises:
            SpmdirError: the example is 0 or 1, is not in the range of the Dim, or differs from another of the Dim.
        """
        name = getattr(spec, "__name__", where)
        if name in self.named:
            size, previous_example = self.named[name]
            if previous_example != example:
                raise SpmdirError(
                    f"{where} is '{name}' with size {example}, but another '{name}' has size {previous_example}; "
                    "expected one size for one Dim: use two Dims, or example inputs of equal sizes"
                )
            return size
        if example < 2:
            raise SpmdirError(f"{where} has the example size {example}; expected at least 2 for a dynamic dimension")
        environment: Any = self.mode.shape_env
        source = size_source(where)
        symbol = environment.create_symbol(example, source, dynamic_dim=DimDynamic.DYNAMIC)
        size = environment.create_symintnode(symbol, hint=example, source=source)
        # These comparisons become assumptions of the program.
        low, high = getattr(spec, "min", None), getattr(spec, "max", None)
        if (low is not None and not size >= low) or (high is not None and not size <= high):
            bounds = f"{low if low is not None else 2}..{'' if high is None else high}"
            raise SpmdirError(
                f"{where} has the example size {example}, outside the range of '{name}'; expected {bounds}: pass other "
                "example inputs, or another range"
            )
        self.named[name] = size, example
        return size
