"""The nodes that give the positions of a rank's shard, and where a position is in it, beside a list of both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from spmdir.core.intervals import Ranges
from spmdir.core.placement.base import parse_placement
from spmdir.lowering.ranges import Indices
from spmdir.lowering.shard_indices import emit_local_index, emit_positions

RANGES: dict[str, Ranges] = {
    "none": (),
    "one": ((3, 7),),
    "one element": ((5, 6),),
    "several in order": ((0, 2), (5, 9), (9, 10)),
    "from last to first": ((6, 7), (5, 6), (4, 5)),
    "every third": ((1, 2), (4, 5), (7, 8), (10, 11)),
    "out of order": ((8, 10), (0, 3), (5, 6)),
    "more than are joined one by one": tuple((at, at + 2) for at in (20, 4, 0, 12, 16, 8, 24, 30, 28, 36)),
}


def emit(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the op at once."""
    plain = [
        [a.tensor() if isinstance(a, Indices) else a for a in arg] if isinstance(arg, list) else arg for arg in args
    ]
    return op(*(arg.tensor() if isinstance(arg, Indices) else arg for arg in plain), **kwargs)


def listed(ranges: Ranges) -> list[int]:
    return [position for start, end in ranges for position in range(start, end)]


@pytest.mark.parametrize("ranges", RANGES.values(), ids=RANGES)
def test_positions_are_those_of_the_ranges_in_their_order(ranges: Ranges):
    found: Any = emit_positions(emit, ranges, torch.device("cpu"))
    assert found.dtype == torch.int64 and found.tolist() == listed(ranges)


@pytest.mark.parametrize("ranges", RANGES.values(), ids=RANGES)
def test_the_local_index_is_that_in_the_list_and_minus_one_elsewhere(ranges: Ranges):
    own = listed(ranges)
    asked = torch.tensor([[-100, -1, *range(40)], [1 << 40, -(1 << 40), *reversed(range(40))]])
    found: Any = emit_local_index(emit, asked, ranges)  # pyright: ignore[reportArgumentType]
    assert found.dtype == torch.int64
    assert found.tolist() == [[own.index(p) if p in own else -1 for p in row] for row in asked.tolist()]


@pytest.mark.parametrize(("placement", "most"), [("S(0)", 1), ("Strided(0, 4)", 5), ("Cyclic(0, 1)", 1)])
def test_nothing_as_long_as_the_dimension_is_kept(placement: str, most: int):
    graph, tables = fx.Graph(), []

    def node(op: Any, *args: Any, **kwargs: Any) -> fx.Node:
        given = [a for arg in args for a in (arg if isinstance(arg, list) else [arg])]
        tables.extend(a for a in given if isinstance(a, Indices))
        return graph.call_function(op, (), {})

    ranges = parse_placement(placement).ranges(1024, 4, 1)  # type: ignore[attr-defined]
    emit_positions(node, ranges, None)
    assert not tables and len(graph.nodes) - 1 <= most
