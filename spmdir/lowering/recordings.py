"""Calls that were appended to a graph for one operand, to be appended again for others."""

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
        calls: target, positional and keyword arguments of each, with `Operand(0)` for the operand and `Operand(n)` for
            what call `n`, counted from 1, gives.
        result: the number of the result; 0 is the operand.
    """

    calls: tuple[tuple[Any, Any, Any], ...]
    result: int

    @staticmethod
    def of(operand: fx.Node, nodes: Sequence[fx.Node], result: fx.Node) -> Recording:
        """Return the recording of `nodes`, appended for `operand`; other nodes among their arguments stay."""
        number = {node: index for index, node in enumerate((operand, *nodes))}

        def fixed(node: fx.Node) -> Any:
            return Operand(number[node]) if node in number else node

        calls = tuple((node.target, *fx.map_arg((node.args, node.kwargs), fixed)) for node in nodes)
        return Recording(calls, number[result])

    def replay(self, append: Emit, operand: fx.Node) -> fx.Node:
        """Append the calls for `operand` by `append`, given target, args and kwargs; return the result."""
        values = [operand]
        for target, args, kwargs in self.calls:
            values.append(append(target, filled(args, values), filled(kwargs, values)))
        return values[self.result]


@attrs.define
class Recorder:
    """Emits by `emit`, and keeps what it gave."""

    emit: Emit
    nodes: list[fx.Node] = attrs.field(factory=list)

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        self.nodes.append(node := self.emit(target, *args, **kwargs))
        return node
