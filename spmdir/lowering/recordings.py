"""Calls that were appended to a graph for some operands, to be appended again for others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from torch import fx

from spmdir.lowering.ranges import Emit
from spmdir.lowering.torch_calls import Operand, filled


@attrs.frozen
class Recording:
    """Calls one after the other.

    Attributes:
        calls: target, positional and keyword arguments of each, with `Operand(n)` for operand `n`, and the numbers
            after those of the operands for what each call gives.
        results: the numbers of the results.
    """

    calls: tuple[tuple[Any, Any, Any], ...]
    results: tuple[int, ...]

    @staticmethod
    def of(operands: Sequence[fx.Node], nodes: Sequence[fx.Node], results: Sequence[fx.Node]) -> Recording:
        """Return the recording of `nodes`, appended for `operands`; other nodes among their arguments stay."""
        number = {node: index for index, node in enumerate((*operands, *nodes))}

        def fixed(node: fx.Node) -> Any:
            return Operand(number[node]) if node in number else node

        calls = tuple((node.target, *fx.map_arg((node.args, node.kwargs), fixed)) for node in nodes)
        return Recording(calls, tuple(number[result] for result in results))

    def replay(self, append: Emit, operands: Sequence[fx.Node]) -> list[fx.Node]:
        """Append the calls for `operands` by `append`, given target, args and kwargs; return the results."""
        values = [*operands]
        for target, args, kwargs in self.calls:
            values.append(append(target, filled(args, values), filled(kwargs, values)))
        return [values[number] for number in self.results]


@attrs.define
class Recorder:
    """Emits by `emit`, and keeps what it gave."""

    emit: Emit
    nodes: list[fx.Node] = attrs.field(factory=list)

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        self.nodes.append(node := self.emit(target, *args, **kwargs))
        return node
