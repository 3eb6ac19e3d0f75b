"""Extract the part of a rank's program that computes some of its results."""

from __future__ import annotations

from collections.abc import Set

from torch import fx

from spmdir.lowering.exchange_rows import REQUIRE_CAPACITY
from spmdir.lowering.in_place import IN_PLACE
from spmdir.lowering.process_groups import generate
from spmdir.torch_interop.schemas import is_mutable, is_random


def extract_results(program: fx.GraphModule, results: Set[int]) -> fx.GraphModule:
    """Return the part of the program that computes the results with the indices `results`; other results are None.

    Ops that write to memory, draw random numbers or check capacities are kept. All ranks have the same ops in the same
    order, so they remove the same collectives.
    """
    graph = fx.Graph()
    returned = graph.graph_copy(program.graph, {})
    assert isinstance(returned, (tuple, list))  # emit returns a tuple
    graph.output(tuple(value if index in results else None for index, value in enumerate(returned)))
    graph.eliminate_dead_code(_has_effect)
    return generate(fx.GraphModule(program, graph))


def _has_effect(node: fx.Node) -> bool:
    """Return whether a node must remain even if no node uses its result."""
    if node.target in IN_PLACE:
        return False
    is_kept = node.op in ("placeholder", "output") or node.target is REQUIRE_CAPACITY
    return is_kept or is_mutable(node.target) or is_random(node.target)
