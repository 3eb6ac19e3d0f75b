"""Shapes of graph nodes that the IR does not tell: inside local forms, where ranks differ, types have no sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from spmdir.core.placement.tensor import TensorMeta
from spmdir.torch_interop.dtypes import TORCH_DTYPES
from spmdir.torch_interop.fake_tensors import FakeTensorMode


class NodeShapes:
    """Fake tensors of the nodes of one graph, those that the IR tells of and what ops make of them.

    Args:
        known: a node → its type; None where the IR does not tell.
        constants: the tensors that the graph is to have, by name.
    """

    def __init__(self, known: Callable[[fx.Node], TensorMeta | None], constants: Mapping[str, torch.Tensor]):
        self._known, self._constants = known, constants
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._values: dict[fx.Node, Any] = {}

    def of(self, node: fx.Node) -> tuple[tuple[int, ...], torch.dtype]:
        """Return the shape and element type of `node`."""
        if (meta := self._known(node)) is not None:
            return meta.shape, TORCH_DTYPES[meta.dtype]
        pending = [node]
        while pending:  # rings make chains that are too long for recursion
            last = pending[-1]
            if last in self._values or self._tell(last):
                pending.pop()
            elif missing := [operand for operand in last.all_input_nodes if operand not in self._values]:
                pending += missing
            else:
                self._values[last] = self._run(last)
        value = self._values[node]
        return tuple(value.shape), value.dtype

    def _tell(self, node: fx.Node) -> bool:
        """Return whether the IR or a constant tells what `node` is, after noting it."""
        with self._mode:
            if (meta := self._known(node)) is not None:
                self._values[node] = torch.empty(meta.shape, dtype=TORCH_DTYPES[meta.dtype])
            elif node.op == "get_attr":
                self._values[node] = torch.empty_like(self._constants[str(node.target)])
        return node in self._values

    def _run(self, node: fx.Node) -> Any:
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
        with torch.no_grad(), self._mode:
            return node.target(*args, **kwargs)  # type: ignore
