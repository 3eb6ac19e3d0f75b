"""Ops that write into memory that is no longer needed, in the program of a rank just before it runs.

**Updates.** The caller overwrites its state with results of the program. Each new value is copied into the old one as
soon as it is computed, and its own memory is freed. So a step never holds the old and the new state at once:

    new_exp_avg = lerp(exp_avg, g)        →   exp_avg_1 = copy_(exp_avg, lerp(exp_avg, g))
    new_w = addcdiv(w, new_exp_avg, …)        w_1 = copy_(w, addcdiv(w, exp_avg_1, …))

**All-reduces**, for programs that run without a compiler. The functional `all_reduce` copies its operand first. If the
operand is new memory without other users, such as the packed buffer of a bucket, the copy is not needed:

    bucket = cat(gradients); all_reduce(bucket)   →   bucket = cat(gradients); all_reduce_(bucket)

**Caches.** The functional `cache.write` copies the whole cache. A cache is written once, and no op reads it later as it
was, see `spmdir.dialects.caches`. So it is always written in place:

    new = write(cache, rows); attend(…, new)   →   write_(cache, rows); attend(…, cache)

The simulator needs the functional program, and Inductor the functional all-reduces.
"""

from __future__ import annotations

from collections.abc import Mapping

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
IN_PLACE = frozenset({REDUCE, COPY})
"""The ops that write to an operand, which only users of their result read afterwards."""

_NEW = frozenset({aten.cat.default, aten.mm.default, aten.bmm.default, aten.addmm.default, aten.sum.dim_IntList})
"""Ops whose result is always new memory."""


def write_updates(program: fx.GraphModule, arguments: Mapping[int, int]) -> None:
    """Copy new values into the arguments that they replace, where no later op reads the old value.

    A copy follows its value, and the last check of capacities. The graph changes in place. The caller generates the
    code. The result of a copied value is the argument itself.

    Args:
        arguments: index of a result → index of the argument that the caller overwrites with it.
    """
    nodes = list(program.graph.nodes)
    placeholders, output = program.graph.find_nodes(op="placeholder"), nodes[-1]
    position = {node: index for index, node in enumerate(nodes)}
    viewed: dict[fx.Node, frozenset[fx.Node]] = {}  # node → the placeholders whose memory it may be in
    last_use: dict[fx.Node, int] = {}
    for index, node in enumerate(nodes):
        used = frozenset().union(*(viewed[operand] for operand in node.all_input_nodes))
        last_use.update(dict.fromkeys(used, index))
        viewed[node] = frozenset([node]) if node.op == "placeholder" else used if _may_view(node) else frozenset()
    results = list(output.args[0])  # type: ignore[arg-type]  # emit returns a tuple
    checks = program.graph.find_nodes(op="call_function", target=REQUIRE_CAPACITY)
    for index, argument in arguments.items():
        value, old_value = results[index], placeholders[argument]
        if not isinstance(value, fx.Node) or viewed[value] or results.count(value) > 1:
            continue
        if value.op != "call_function":
            continue
        previous = max(value, *checks, key=position.__getitem__) if checks else value
        if last_use.get(old_value, -1) > position[previous]:
            continue
        with program.graph.inserting_after(previous):
            copy = program.graph.call_function(COPY, (old_value, value))
        copy.meta.update(value.meta)
        position[copy] = position[previous]
        later = {user for user in value.users if user is not copy and position[user] >= position[copy]}
        value.replace_all_uses_with(copy, later.__contains__)


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
