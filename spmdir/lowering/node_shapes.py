"""Shapes of graph nodes in local forms. Their types in the IR may have no sizes, because ranks differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from spmdir.core.placement.tensor import TensorMeta
from spmdir.torch_interop.dtypes import TORCH_DTYPES
from spmdir.torch_interop.fake_tensors import FakeTensorMode


class NodeShapes:
    """Fake tensors of the nodes of one graph, computed from the nodes whose types the IR contains.

    Args:
        type_of: node → its type in the IR; None if the type has no sizes.
        constants: name → tensor of the constants of the graph.
    """

    def __init__(self, type_of: Callable[[fx.Node], TensorMeta | None], constants: Mapping[str, torch.Tensor]):
        self._type_of, self._constants = type_of, constants
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._values: dict[fx.Node, Any] = {}

    def of(self, node: fx.Node) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and element type of `node`."""
        if (meta := self._type_of(node)) is not None:
            return meta.shape, TORCH_DTYPES[meta.dtype]
        stack = [node]
        while stack:  # chains of rings are too long for recursion
            next_node = stack[-1]
            if next_node in self._values or self._store_declared(next_node):
                stack.pop()
            elif missing := [operand for operand in next_node.all_input_nodes if operand not in self._values]:
                stack += missing
            else:
                self._values[next_node] = self._run(next_node)
        value = self._values[node]
        return tuple(value.shape), value.dtype

    def _store_declared(self, node: fx.Node) -> bool:
        """Store the fake tensor of `node` if the IR contains its type or the node is a constant.

        Returns: whether the fake tensor is stored.
        """
        with self._mode:
            if (meta := self._type_of(node)) is not None:
                self._values[node] = torch.empty(meta.shape, dtype=TORCH_DTYPES[meta.dtype])
            elif node.op == "get_attr":
                self._values[node] = torch.empty_like(self._constants[str(node.target)])
        return node in self._values

    def _run(self, node: fx.Node) -> Any:
        """Return the fake tensor that `node` computes from the stored fake tensors of its operands."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
        with torch.no_grad(), self._mode:
            return node.target(*args, **kwargs)  # type: ignore
