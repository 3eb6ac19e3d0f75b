"""Ops that write into memory that is no longer needed, in the program of a rank just before it runs.

**Updates.** The caller overwrites its state with results of the program. Each new value is copied into the old one as
soon as it is computed, and its own memory is freed. So a step never holds the old and the new state at once:

    new_exp_avg = lerp(exp_avg, g)        →   exp_avg_1 = copy_(exp_avg, lerp(exp_avg, g))
    new_w = addcdiv(w, new_exp_avg, …)        w_1 = copy_(w, addcdiv(w, exp_avg_1, …))

**Sums.** In a pipelined step, a stage adds the gradients of each micro-batch to its sums. The addition is in place:

    new_sum = add(sum, g)   →   new_sum = add_(sum, g)

**All-reduces**, for programs that run without a compiler. The functional `all_reduce` copies its operand first. If the
operand is new memory without other users, such as the packed buffer of a bucket, the copy is not needed:

    bucket = cat(gradients); all_reduce(bucket)   →   bucket = cat(gradients); all_reduce_(bucket)

**Caches.** The functional `cache.write` copies the whole cache. A cache is written once, and no op reads it later as it
was, see `spmdir.dialects.caches`. So it is always written in place:

    new = write(cache, rows); attend(…, new)   →   write_(cache, rows); attend(…, cache)

The simulator needs the functional program, and Inductor the functional all-reduces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch
from torch import fx

import spmdir.torch_interop.cache_ops  # noqa: F401  # registers torch.ops.cache
from spmdir.core.undeclared_aliases import may_return_operand
from spmdir.lowering.exchange_rows import REQUIRE_CAPACITY
from spmdir.lowering.ranges import aten
from spmdir.lowering.site import WAIT, functional
from spmdir.torch_interop.schemas import declares_aliases

REDUCE = functional.all_reduce_.default
COPY = aten.copy_.default
ADD = aten.add_.Tensor
IN_PLACE = frozenset({REDUCE, COPY, ADD})
"""The ops that write to an operand, which only users of their result read afterwards."""

_NEW = frozenset({aten.cat.default, aten.mm.default, aten.bmm.default, aten.addmm.default, aten.sum.dim_IntList})
"""Ops whose result is always new memory."""


def write_updates(program: fx.GraphModule, arguments: Mapping[int, int]) -> None:
    """Copy new values into the arguments that they replace, where no later op reads the old value.

    The copy is inserted after the op that computes the value, and after the last check of capacities, because a failed
    check must leave the state unchanged. The program then returns the argument instead of the value. The graph changes
    in place. The caller generates the code.

    Args:
        arguments: index of a result → index of the argument that the caller overwrites with it.
    """
    uses = _MemoryUses.of(program)
    position = uses.position
    checks = program.graph.find_nodes(op="call_function", target=REQUIRE_CAPACITY)
    for value, old_value in uses.new_values(program, arguments):
        previous = max(value, *checks, key=position.__getitem__) if checks else value
        if uses.last_use.get(old_value, -1) > position[previous]:
            continue
        with program.graph.inserting_after(previous):
            copy = program.graph.call_function(COPY, (old_value, value))
        copy.meta.update(value.meta)
        position[copy] = position[previous]  # so that later copies after this node come after this copy
        later = {user for user in value.users if user is not copy and position[user] >= position[copy]}
        value.replace_all_uses_with(copy, later.__contains__)


def add_in_place(program: fx.GraphModule, arguments: Mapping[int, int]) -> None:
    """Let additions to arguments write into them, where no later op reads the old value.

    The graph changes in place. The caller generates the code. The result of such an addition is the argument itself.

    Args:
        arguments: index of a result → index of the argument that the result replaces, of the same type.
    """
    uses = _MemoryUses.of(program)
    for value, old_value in uses.new_values(program, arguments):
        is_addition = value.target is aten.add.Tensor and value.args[0] is old_value
        is_last_use = uses.last_use.get(old_value) == uses.position[value]
        if is_addition and is_last_use and old_value not in uses.viewed.get(value.args[1], ()):
            value.target = ADD


@attrs.frozen
class _MemoryUses:
    """The uses of the memory of a program's arguments.

    Attributes:
        position: node → its index in the graph.
        viewed: node → the arguments whose memory it may share.
        last_use: argument → the index of the last node that uses its memory.
    """

    position: dict[fx.Node, int]
    viewed: dict[Any, frozenset[fx.Node]]
    last_use: dict[fx.Node, int]

    @staticmethod
    def of(program: fx.GraphModule) -> _MemoryUses:
        """Return the uses in `program`."""
        uses = _MemoryUses({}, {}, {})
        for index, node in enumerate(program.graph.nodes):
            used = frozenset().union(*(uses.viewed[operand] for operand in node.all_input_nodes))
            uses.position[node] = index
            uses.last_use.update(dict.fromkeys(used, index))
            is_view = _may_view(node)
            uses.viewed[node] = frozenset([node]) if node.op == "placeholder" else used if is_view else frozenset()
        return uses

    def new_values(self, program: fx.GraphModule, arguments: Mapping[int, int]) -> Iterator[tuple[fx.Node, fx.Node]]:
        """Yield (new value, argument that it replaces) for each value that is new memory and is returned only once.

        Args:
            arguments: as in `write_updates`.
        """
        placeholders, output = program.graph.find_nodes(op="placeholder"), program.graph.output_node()
        results = list(output.args[0])  # type: ignore[arg-type]  # emit returns a tuple
        for index, argument in arguments.items():
            value = results[index]
            is_new = isinstance(value, fx.Node) and value.op == "call_function" and not self.viewed[value]
            if is_new and results.count(value) == 1:
                yield value, placeholders[argument]


def _may_view(node: fx.Node) -> bool:
    """Return whether the result of a node may be in the memory of an operand."""
    tensors: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), tensors.append)
    name = str(node.target).removesuffix(".default")
    return node.target is WAIT or declares_aliases(node.target) or may_return_operand(name, len(tensors))


def reduce_in_place(program: fx.GraphModule) -> None:
    """Let an all-reduce write into its operand, if the operand is new memory that only the all-reduce uses.

    The graph changes in place. The caller generates the code.
    """
    for node in program.graph.find_nodes(op="call_function", target=functional.all_reduce.default):
        if _is_unshared(node.args[0]):
            node.target = REDUCE


def write_caches_in_place(program: fx.GraphModule) -> None:
    """Let each write of a cache change the cache. The graph changes in place; the caller generates the code."""
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.cache.write.default):
        node.replace_all_uses_with(node.args[0])
        node.target = torch.ops.cache.write_.default


def _is_unshared(value: object) -> bool:
    """Return whether a value is new memory with a single user."""
    if not isinstance(value, fx.Node) or len(value.users) != 1:
        return False
    if value.target is aten.contiguous.default:  # may return its operand
        return _is_unshared(value.args[0])
    if value.target is aten.einsum.default:  # of one operand, it may return a view
        return len(value.args[1]) > 1  # type: ignore[arg-type]
    return value.target in _NEW
