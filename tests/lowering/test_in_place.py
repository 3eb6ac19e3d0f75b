"""A sum over ranks is made in the memory of its operand, where that is new and read by nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from spmdir.lowering.in_place import IN_PLACE, reduce_in_place
from spmdir.lowering.site import WAIT, functional
from spmdir.runtime.program_parts import extract_results

aten = torch.ops.aten


def program(kind: str) -> fx.GraphModule:
    """Return a program that sums its argument, what is made of it as `kind` says, or what else reads too."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    made = {
        "argument": lambda: x,
        "view": lambda: graph.call_function(aten.reshape.default, (x, [-1])),
        "bucket": lambda: graph.call_function(aten.cat.default, ([x, x],)),
        "product": lambda: graph.call_function(aten.einsum.default, ("ab,bc->ac", [x, x])),
        "permuted": lambda: graph.call_function(aten.einsum.default, ("ab->ba", [x])),
        "read": lambda: graph.call_function(aten.mm.default, (x, x)),
    }[kind]()
    sent = graph.call_function(aten.contiguous.default, (made,))
    summed = graph.call_function(functional.all_reduce.default, (sent, "sum", "mesh:dp"))
    waited = graph.call_function(WAIT, (summed,))
    graph.output((waited, made) if kind == "read" else (waited, x))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize(
    ("kind", "in_place"),
    [("argument", 0), ("view", 0), ("bucket", 1), ("product", 1), ("permuted", 0), ("read", 0)],
)
def test_only_new_memory_that_nothing_else_reads_is_written_to(kind: str, in_place: int) -> None:
    found = program(kind)
    reduce_in_place(found)
    assert len(found.graph.find_nodes(op="call_function", target=IN_PLACE)) == in_place


def test_a_part_of_a_program_leaves_out_sums_that_it_does_not_need() -> None:
    found = program("bucket")
    reduce_in_place(found)
    assert not extract_results(found, {1}).graph.find_nodes(op="call_function", target=IN_PLACE)
    assert extract_results(found, {0}).graph.find_nodes(op="call_function", target=IN_PLACE)
