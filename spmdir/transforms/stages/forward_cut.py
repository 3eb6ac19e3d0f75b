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
from typing import Any, NamedTuple

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
    """Return the positions in the forward at which stages 1, 2, … begin, such that m micro-batches take least time.

    The cut with the shortest longest stage is found first. Longer stages allow cuts where less is sent, so for each of
    some limits on the longest stage, the cut with the least messages is an option too.

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
            f"the forward has {count} ops that depend on parameters; expected at least as many as the "
            f"{stages} stages: use fewer stages",
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


class _Prefix(NamedTuple):
    """The best cut of the ops before some position into some number of stages.

    Attributes:
        key: what the cut minimises, the most important number first. The last one is the sum of squared stage times.
        longest: the time of its longest stage or message.
        messages: the time of all messages.
        begin: the position where its last stage begins.
    """

    key: tuple[float, float, float]
    longest: float
    messages: float
    begin: int


@attrs.frozen
class _Partition:
    """A cut: its positions, the time of its longest stage or message, and that of all messages."""

    cuts: list[int]
    longest: float
    messages: float


def _partition(
    positions: Sequence[int], stages: int, total: Sequence[float], sent: Mapping[int, float], limit: float
) -> _Partition:
    """Return the cut into `stages` stages whose longest stage is shortest. With a `limit`, minimise messages instead.

    The time of a stage is that of its ops, or of the message at its end if that is longer. With a `limit`, no stage may
    take longer. For example, ops of 3, 1, 2 and 4 seconds without messages, in two stages, are cut after the second op:
    the longest stage takes 6 seconds.

    By dynamic programming: the best cut of the ops before `end` into n stages extends one into n - 1 stages.

    Args:
        positions: where stages may begin, with the end of the forward.
        total: [position], the time of all ops before it, in seconds.
        sent: position → the time of the message there, in seconds.
        limit: the most seconds of a stage; inf for no limit.
    """
    end_of_forward = positions[-1]
    # [number of stages][end] → the best cut of the ops before `end`
    best: list[dict[int, _Prefix]] = [{0: _Prefix((0.0, 0.0, 0.0), 0.0, 0.0, 0)}]
    for number in range(stages):
        is_last_stage = number == stages - 1
        row: dict[int, _Prefix] = {}
        for end in [end_of_forward] if is_last_stage else positions[1:]:
            for begin, prefix in best[-1].items():
                time = max(total[end] - total[begin], sent[end])
                if begin >= end or time > limit * (1 + 1e-9):  # a factor for rounding
                    continue
                longest, messages = max(prefix.longest, time), prefix.messages + sent[end]
                squares = prefix.key[2] + time**2
                key = (longest, messages, squares) if limit == math.inf else (messages, longest, squares)
                if end not in row or key < row[end].key:
                    row[end] = _Prefix(key, longest, messages, begin)
        best.append(row)
    whole = best[-1][end_of_forward]
    begins, end = list[int](), end_of_forward
    for row in reversed(best[1:]):
        end = row[end].begin
        begins.append(end)
    cuts = begins[::-1][1:]  # the first stage begins at 0, which is not a cut
    return _Partition(cuts, whole.longest, whole.messages)


def crossing_bytes(parts: StepParts) -> list[float]:
    """Return, for each position in the forward, the bytes of the values computed before it and used from there on.

    If the op at 0 computes 4 bytes, and the op at 2 is their last user, the positions 1 and 2 have 4 bytes.
    """
    position_of = {op: position for position, op in enumerate(parts.forward)}
    # [position] → the bytes that become live there, minus those that are not used from there on. The result is its
    # running sum.
    change: list[float] = [0.0] * (len(position_of) + 1)
    for op, position in position_of.items():
        for result in op.results:
            last = max((position_of.get(user, -1) for user in _users(result)), default=-1)
            if last > position:
                change[position + 1] += byte_size(result)
                change[last + 1] -= byte_size(result)
    return list(itertools.accumulate(change))


def _users(value: OpResult | Any) -> set[Operation]:
    return {use.operation for use in value.uses}
