"""Balanced cuts of a forward into stages."""

from __future__ import annotations

import itertools

import pytest

from spmdir.dialects import ir
from spmdir.pipeline.pipeline import run_passes
from spmdir.transforms.stages.forward_cut import balanced_cuts, crossing_bytes
from spmdir.transforms.stages.step_parts import StepParts, find_parts
from tests.simulator import pipelined_steps as cases


@pytest.fixture(scope="module")
def parts() -> StepParts:
    _, _, module = cases.step_of(cases.blocks)
    return find_parts(ir.main_function(run_passes(module, "propagate")))


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_without_messages_the_longest_stage_is_the_shortest_possible(parts: StepParts, stages: int) -> None:
    seconds = {op: 1.0 + number % 3 for number, op in enumerate(parts.forward)}
    cuts = balanced_cuts(parts, stages, 4, seconds.__getitem__, lambda size: 0.0)
    count = len(parts.forward)

    def longest(cuts: tuple[int, ...] | list[int]) -> float:
        ends = itertools.pairwise([0, *cuts, count])
        return max(sum(seconds[op] for op in parts.forward[begin:end]) for begin, end in ends)

    assert longest(cuts) == min(longest(other) for other in itertools.combinations(range(1, count), stages - 1))


def test_slow_messages_move_a_cut_to_where_fewer_bytes_cross(parts: StepParts) -> None:
    def position(seconds_per_byte: float) -> int:
        (cut,) = balanced_cuts(parts, 2, 4, lambda op: 1.0, lambda size: size * seconds_per_byte)
        return cut

    crossing = crossing_bytes(parts)
    assert crossing[position(0.0)] >= crossing[position(0.01)] > crossing[position(10.0)] == 8
