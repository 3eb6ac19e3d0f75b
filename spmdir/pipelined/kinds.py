"""The kinds of orders of a pipeline-parallel step, and the search for the fastest order within a memory limit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import attrs

from spmdir.core.errors import SpmdirError, did_you_mean
from spmdir.pipelined.actions import CHANGE_OF_LIVE, Action, Kind, StageMap, StepOrder, folded, looped
from spmdir.pipelined.list_order import (
    FORWARDS_FIRST,
    GRADIENTS_FIRST,
    by_groups,
    deepest_first,
    list_order,
)
from spmdir.pipelined.rows import with_messages
from spmdir.pipelined.times import StageTimes, lower_bound, replay


def interleaved_order(stage_map: StageMap, micro: int) -> StepOrder:
    """Return the order of interleaved 1F1B.

    A rank runs the forwards of its stages in groups of as many micro-batches as there are ranks. First it runs some
    forwards ahead; then it alternates between a forward and a backward. With 2 ranks, stages 0 and 2 on rank 0, and 4
    micro-batches, rank 0 runs 4 forwards ahead:

        0F0 0F1 2F0 2F1   0F2 2B0   0F3 2B1   2F2 0B0   2F3 0B1   2B2 2B3 0B2 0B3

    Source: Narayanan et al., Efficient large-scale language model training on GPU clusters, 2021.

    Raises:
        SpmdirError: the ranks do not divide the micro-batches.
    """
    ranks, stages_per_rank = stage_map.ranks, stage_map.stages // stage_map.ranks
    if micro % ranks:
        raise SpmdirError(
            f"found {micro} micro-batches for interleaved 1f1b on {ranks} ranks; expected a multiple of "
            f"{ranks}: change their number"
        )
    rows: list[list[Action]] = []
    for rank in range(ranks):
        stages = stage_map.stages_on(rank)
        forwards = [Action(stage, "F", number) for stage, number in _in_groups(stages, ranks, micro)]
        backwards = [Action(stage, "B", number) for stage, number in _in_groups(stages[::-1], ranks, micro)]
        ahead = min(2 * (ranks - rank - 1) + (stages_per_rank - 1) * ranks, len(forwards))
        row = forwards[:ahead]
        for index, backward in enumerate(backwards):
            next_forward = forwards[ahead + index : ahead + index + 1]  # empty after the last forward
            row += [*next_forward, backward]
        rows.append(row)
    return with_messages(stage_map, micro, rows, False)


def _in_groups(stages: tuple[int, ...], ranks: int, micro: int) -> Iterator[tuple[int, int]]:
    """Yield (stage, micro-batch): each group of `ranks` micro-batches passes all stages before the next group."""
    for first in range(0, micro, ranks):
        for stage in stages:
            yield from ((stage, number) for number in range(first, first + ranks))


def search_order(stage_map: StageMap, micro: int, times: StageTimes, live: int | None) -> StepOrder:
    """Return the fastest order among list schedules and the orders of the other kinds.

    With two stages a rank, both placements are tried: looped and folded. The order is never slower than that of another
    kind that fits `live`. Of orders within `TOLERANCE`, that with the fewest activations is returned.

    Args:
        live: how many activations of a stage a rank may hold; None for no limit.
    """
    maps = [stage_map]
    if stage_map.stages == 2 * stage_map.ranks:
        maps.append(attrs.evolve(stage_map, coordinates=folded(stage_map.ranks).coordinates))
    splits = (True, False) if stage_map.is_split is None else (stage_map.is_split,)
    bound = min(lower_bound(placement, micro, times, split) for placement in maps for split in splits)
    orders = [order for order in _other_kinds(stage_map, micro, times) if not live or most_live(order) <= live]
    for order in _list_orders(maps, micro, times, live, splits):
        orders.append(order)
        if replay(order, times).seconds <= bound * (1 + TOLERANCE):
            break
    seconds = [replay(order, times).seconds for order in orders]
    limit = min(seconds) * (1 + TOLERANCE)
    fastest = [order for order, time in zip(orders, seconds, strict=True) if time <= limit]
    return min(fastest, key=most_live)


TOLERANCE = 1e-6
"""The relative difference of times that counts as equal."""

_LIMITS = (1.0, 1.5, 2.0, 3.0)
"""The limits on activations that `search_order` tries, in terms of the number of stages."""


def _list_orders(
    maps: Sequence[StageMap], micro: int, times: StageTimes, live: int | None, splits: Sequence[bool]
) -> Iterator[StepOrder]:
    """Yield list schedules, in ascending order of their limit on activations."""
    ranks, stages = maps[0].ranks, maps[0].stages
    most = micro * stages // ranks  # the activations of a rank if no backward has run yet
    limits = [live] if live else sorted({min(math.ceil(factor * stages), most) for factor in _LIMITS} | {most})
    for limit, placement, split in itertools.product(limits, maps, splits):
        for priority, preference in itertools.product((GRADIENTS_FIRST, FORWARDS_FIRST), (deepest_first, by_groups)):
            # Patience is about weight gradients, so it has no effect on whole backwards.
            for patience in (0.0, 0.5, 1.0) if split else (0.0,):
                yield list_order(placement, micro, times, split, [limit] * ranks, priority, preference, patience)


def _other_kinds(stage_map: StageMap, micro: int, times: StageTimes) -> Iterator[StepOrder]:
    """Yield the orders of the other kinds that fit the stages. Whole backwards are split if stages have split ones."""
    for kind in KINDS.values():
        if kind.make is search_order or (stage_map.is_split is False and kind.make is _zero_bubble):
            continue
        try:
            coordinates = _placement(kind.shape, stage_map.ranks, stage_map.stages).coordinates
            order = kind.make(attrs.evolve(stage_map, coordinates=coordinates, is_split=None), micro, times, None)
            if stage_map.is_split and not order.is_split:
                order = _with_split(order)
        except SpmdirError:  # such as an order that links between stages do not permit
            continue
        yield order


def _with_split(order: StepOrder) -> StepOrder:
    """Return an order with whole backwards as one with split backwards: each `W` follows its `I`."""
    stage_map = attrs.evolve(order.stage_map, is_split=True)
    rows: list[list[Action]] = []
    for row in order.rows:
        rows.append([])
        for entry in row:
            if isinstance(entry, Action):
                kinds: tuple[Kind, ...] = ("I", "W") if entry.kind == "B" else (entry.kind,)
                rows[-1] += [attrs.evolve(entry, kind=kind) for kind in kinds]
    return with_messages(stage_map, order.micro, rows, True)


def most_live(order: StepOrder) -> int:
    """Return the largest number of activations of a stage that a rank holds."""
    live, most = [0] * order.stage_map.ranks, 0
    for action in order.actions:
        rank = order.stage_map.coordinates[action.stage]
        live[rank] += CHANGE_OF_LIVE[action.kind]
        most = max(most, live[rank])
    return most


def _gpipe(stage_map: StageMap, micro: int, times: StageTimes, live: int | None) -> StepOrder:
    """Return the order of GPipe: a rank may hold all activations, so all its forwards run first."""
    limits = [micro * len(stage_map.stages_on(rank)) for rank in range(stage_map.ranks)]
    return list_order(stage_map, micro, times, False, limits, FORWARDS_FIRST)


def _1f1b(stage_map: StageMap, micro: int, times: StageTimes, live: int | None) -> StepOrder:
    """Return the order of 1F1B: rank r of n holds at most n - r activations. Several stages a rank are interleaved."""
    ranks = stage_map.ranks
    if stage_map.stages > ranks:
        return interleaved_order(stage_map, micro)
    return list_order(stage_map, micro, times, False, [ranks - rank for rank in range(ranks)])


def _zero_bubble(stage_map: StageMap, micro: int, times: StageTimes, live: int | None) -> StepOrder:
    """Return the order of zero bubble: split backwards, and at most as many activations as stages."""
    return list_order(stage_map, micro, times, True, [stage_map.stages] * stage_map.ranks)


@attrs.frozen
class OrderKind:
    """A kind of order.

    Attributes:
        make: (placement of stages, micro-batches, times, most activations of a stage on a rank or None) → the order.
        shape: "looped" or "folded", the placement of stages.
    """

    make: Callable[[StageMap, int, StageTimes, int | None], StepOrder]
    shape: Literal["looped", "folded"] = "looped"


KINDS = {
    "gpipe": OrderKind(_gpipe),
    "1f1b": OrderKind(_1f1b),
    "zb": OrderKind(_zero_bubble),
    "zbv": OrderKind(_zero_bubble, "folded"),
    "search": OrderKind(search_order),
}
"""Name → the kind of order. The kinds are those of GPipe (arXiv 1811.06965), PipeDream (2104.04473), zero bubble
(2401.10241) and V-shaped schedules (2405.15362)."""


def make_order(
    kind: str,
    ranks: int,
    micro: int,
    times: StageTimes,
    live: int | None = None,
    stages: StageMap | None = None,
) -> StepOrder:
    """Return the order of a kind for the given times.

    Args:
        kind: a key of KINDS.
        ranks: the size of the pipeline axis.
        micro: the number of micro-batches.
        times: the times of the stages; their number is a multiple of `ranks`.
        live: how many activations of a stage a rank may hold, for "search"; no limit if None.
        stages: the links of stages and whether their backward is split. Their placement is not used. The order has the
            placement of its kind.

    Raises:
        SpmdirError: the kind is unknown, or does not fit the number of stages or micro-batches.

    Example:
        >>> order = make_order("1f1b", 2, 2, equal_stages(2, 1, 1, 1))
        >>> print(*order.row(1))
        0F0>1 1F0 1B0 1B0>0 0F1>1 1F1 1B1 1B1>0
    """
    if kind not in KINDS:
        raise SpmdirError(f"unknown kind '{kind}'; expected one of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    stage_map = stage_map_of(kind, ranks, times.stages)
    if stages is not None:
        stage_map = attrs.evolve(stage_map, links=stages.links, is_split=stages.is_split)
    return KINDS[kind].make(stage_map, micro, times, live)


def stage_map_of(kind: str, ranks: int, stages: int) -> StageMap:
    """Return the placement of `stages` for a kind of order.

    Raises:
        SpmdirError: the number of stages does not fit.
    """
    return _placement(KINDS[kind].shape, ranks, stages)


def _placement(shape: Literal["looped", "folded"], ranks: int, stages: int) -> StageMap:
    """Return the placement of stages in a shape."""
    if shape == "folded":
        if stages != 2 * ranks:
            raise SpmdirError(
                f"found {stages} stages for 'zbv' on {ranks} ranks; expected {2 * ranks}, two for each rank"
            )
        return folded(ranks)
    if stages % ranks or not stages:
        raise SpmdirError(f"found {stages} stages for {ranks} ranks; expected a multiple of {ranks}")
    return looped(ranks, stages // ranks)
