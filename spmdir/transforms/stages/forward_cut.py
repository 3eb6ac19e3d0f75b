"""Cut the forward of a training step into consecutive stages, at modules that the user names, or balanced by time.

The balanced cut minimises the time of m micro-batches, `Σ message + (m − 1) · max(stage, message)`. The sum of the
times of stages does not depend on the cut. With ops of 3, 1, 2 and 4 seconds, messages of 0, 3 and 1 seconds between
them, two stages and m = 4, the cuts take 0 + 3 · 7, 3 + 3 · 6 and 1 + 3 · 6 seconds. The last one is chosen.

Source: the objective of Alpa (arXiv 2201.12023). Each of some limits on the longest stage is solved by dynamic
programming.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from xdsl.ir import Operation, OpResult, SSAValue

from spmdir.analysis.module_paths import module_paths
from spmdir.core.errors import UnsupportedError, did_you_mean
from spmdir.dialects.locations import location_of
from spmdir.transforms.stages.backward_cut import ForwardStages, byte_size
from spmdir.transforms.stages.step_parts import StepParts, free_sources

SLACK = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5)
"""The limits on the longest stage that are tried, in terms of the shortest possible one."""

CANDIDATES = 100
"""The number of places in the forward, those that the fewest bytes cross, at which a balanced cut may be."""


def cut_at_modules(parts: StepParts, modules: Sequence[str]) -> ForwardStages:
    """Return the stages that begin at the first op of each of `modules`. Stage 0 begins with the forward.

    Raises:
        UnsupportedError: a module has no op, or the modules are not in the order of the forward; located.
    """
    paths = module_paths(parts.function)
    cuts: list[int] = []
    for module in modules:
        position = next((i for i, op in enumerate(parts.forward) if _is_in(paths.get(op, ""), module)), None)
        if position is None:
            known = sorted({path for op in parts.forward if (path := paths.get(op, ""))})
            raise UnsupportedError(
                f"no op of the forward belongs to the module '{module}'; expected a path such as "
                f"{known[len(known) // 2] if known else 'layers.2'}{did_you_mean(module, known)}",
                location_of(parts.function),
            )
        if position <= (cuts[-1] if cuts else 0):
            raise UnsupportedError(
                f"the module '{module}' begins before the end of the previous stage; expected modules in the order "
                "of the forward, each after the first op",
                location_of(parts.function),
            )
        cuts.append(position)
    return stages_at(parts, cuts)


def _is_in(path: str, module: str) -> bool:
    """Return whether a module path is `module`, or a part of it. The path may begin with further names."""
    return f".{path}.".find(f".{module}.") >= 0


def stages_at(parts: StepParts, cuts: Sequence[int]) -> ForwardStages:
    """Return the stages that begin at the positions `cuts` of the forward."""
    stage_of = {op: sum(cut <= position for cut in cuts) for position, op in enumerate(parts.forward)}
    homes: dict[SSAValue, set[int]] = {value: set() for value in parts.parameters.values()}
    for op, stage in stage_of.items():
        for operand in op.operands:
            for source in free_sources(operand, parts.free.__contains__):
                if source in homes:
                    homes[source].add(stage)
    return ForwardStages(len(cuts) + 1, stage_of, {value: stages for value, stages in homes.items() if stages})


def balanced_cuts(
    parts: StepParts,
    stages: int,
    micro: int,
    seconds: Callable[[Operation], float],
    message: Callable[[float], float],
) -> list[int]:
    """Return the positions in the forward at which stages begin.

    Args:
        micro: the number of micro-batches.
        seconds: op → its time, with that of its backward.
        message: bytes → the time of a message.

    Raises:
        UnsupportedError: the forward has fewer ops than stages; located.
    """
    count = len(parts.forward)
    if count < stages:
        raise UnsupportedError(
            f"the forward has {count} ops that depend on parameters; expected at least as many as the {stages} stages",
            location_of(parts.function),
        )
    crossing = crossing_bytes(parts)
    by_size = sorted(range(1, count), key=lambda position: (crossing[position], position))
    positions = [0, *sorted(by_size[: max(CANDIDATES, stages)]), count]
    total = [0.0, *itertools.accumulate(seconds(op) for op in parts.forward)]
    sent = {position: message(crossing[position]) if 0 < position < count else 0.0 for position in positions}
    least = _partition(positions, stages, total, sent, math.inf)
    options = [least, *(_partition(positions, stages, total, sent, factor * least.longest) for factor in SLACK)]
    return min(options, key=lambda option: option.messages + (micro - 1) * option.longest).cuts


@attrs.frozen
class _Partition:
    """A cut: its positions, the time of its longest stage or message, and that of all messages."""

    cuts: list[int]
    longest: float
    messages: float


def _partition(
    positions: Sequence[int], stages: int, total: Sequence[float], sent: Mapping[int, float], limit: float
) -> _Partition:
    """Return the cut with the least messages whose stages are within `limit`; with no limit, that of the least longest.

    Args:
        positions: where stages may begin, with the end of the forward.
        total: [position], the time of all ops before it.
        sent: position → the time of the message there.
    """
    best: list[dict[int, tuple[tuple[float, ...], int]]] = [{0: ((0.0, 0.0, 0.0), 0)}]
    for number in range(stages):
        row: dict[int, tuple[tuple[float, ...], int]] = {}
        for end in positions[1:] if number < stages - 1 else positions[-1:]:
            for begin, ((first, second, squares), _) in best[-1].items():
                time = max(total[end] - total[begin], sent[end])
                if begin >= end or time > limit * (1 + 1e-9):
                    continue
                longest, messages = (first, second) if limit == math.inf else (second, first)
                longest, messages = max(longest, time), messages + sent[end]
                pair = (longest, messages) if limit == math.inf else (messages, longest)
                key = (*pair, squares + time**2)
                if end not in row or key < row[end][0]:
                    row[end] = key, begin
        best.append(row)
    cuts, end = list[int](), positions[-1]
    for row in reversed(best[1:]):
        cuts.append(row[end][1])
        end = row[end][1]
    first, second, _ = best[-1][positions[-1]][0]
    longest, messages = (first, second) if limit == math.inf else (second, first)
    return _Partition(cuts[:-1][::-1], longest, messages)


def crossing_bytes(parts: StepParts) -> list[float]:
    """Return, for each position in the forward, the bytes of the values computed before it and used from there on."""
    position_of = {op: position for position, op in enumerate(parts.forward)}
    change: list[float] = [0.0] * (len(position_of) + 1)
    for op, position in position_of.items():
        for result in op.results:
            last = max((position_of.get(user, -1) for user in _users(result)), default=-1)
            if last > position:
                change[position + 1] += byte_size(result)
                change[last + 1 if last + 1 < len(change) else -1] -= byte_size(result)
    return list(itertools.accumulate(change))


def _users(value: OpResult | Any) -> set[Operation]:
    return {use.operation for use in value.uses}
