"""Record the calls of a lowered op, and append them again for other operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from torch import fx

from spmdir.lowering.ranges import Emit
from spmdir.lowering.torch_calls import Operand, fill_operands


@attrs.frozen
class Recording:
    """A sequence of calls.

    Values are numbered: first the operands, then the result of each call.

    Attributes:
        calls: (target, args, kwargs) of each call, with `Operand(n)` for value n.
        results: the numbers of the results.
    """

    calls: tuple[tuple[Any, Any, Any], ...]
    results: tuple[int, ...]

    @staticmethod
    def of(operands: Sequence[fx.Node], nodes: Sequence[fx.Node], results: Sequence[fx.Node]) -> Recording:
        """Return the recording of `nodes`, which were appended for `operands`, with the `results` among them.

        Arguments that are other nodes, such as constants, stay the same in each replay.
        """
        number = {node: index for index, node in enumerate((*operands, *nodes))}

        def as_operand(node: fx.Node) -> Any:
            return Operand(number[node]) if node in number else node

        calls = tuple((node.target, *fx.map_arg((node.args, node.kwargs), as_operand)) for node in nodes)
        return Recording(calls, tuple(number[result] for result in results))

    def replay(self, append: Emit, operands: Sequence[fx.Node]) -> list[fx.Node]:
        """Append the calls for other operands, and return the results.

        Args:
            append: (target, args, kwargs) → node.
        """
        values = [*operands]
        for target, args, kwargs in self.calls:
            values.append(append(target, fill_operands(args, values), fill_operands(kwargs, values)))
        return [values[number] for number in self.results]


@attrs.define
class Recorder:
    """An `Emit` that records the nodes of another one."""

    emit: Emit
    nodes: list[fx.Node] = attrs.field(factory=list)

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.emit(target, *args, **kwargs)
        self.nodes.append(node)
        return node
