"""Simulate all ranks in one process in a random order, as real ranks may run.

A rank runs until it waits for a collective that has not ended. Each communicator (a process group) has a queue on each
of its ranks, with the issued collectives in order. It can run a collective that is first in all of its queues. The next
event is random: a ready rank runs on, or a communicator runs its next collective.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from typing import Any

import attrs
import torch
from torch import fx

from spmdir.core.errors import DivergenceError
from spmdir.core.mesh import Mesh
from spmdir.simulator.collective_steps import Steps, all_steps
from spmdir.simulator.rank_run import InFlight, Random, run
from spmdir.torch_interop.bits import flat_bytes


@attrs.frozen
class _Communicator:
    """A process group: its name, which differs between streams, and its sorted ranks."""

    name: str
    ranks: tuple[int, ...]


@attrs.frozen
class _Queued:
    """An issued collective in the queue of a communicator."""

    communicator: _Communicator
    in_flight: InFlight


@attrs.define
class _Rank:
    """The state of one rank.

    Attributes:
        number: the rank.
        steps: the generator that executes the program. It yields at each collective, and at each wait for a collective
            that has not ended.
        queue: the issued collectives that have not ended, in order.
        awaited: the collective that the rank waits for.
        output: the returned value, in a list of one; empty while the rank runs.
    """

    number: int
    steps: Generator[InFlight, None, Any]
    queue: list[_Queued] = attrs.field(factory=list)
    awaited: InFlight | None = None
    output: list[Any] = attrs.field(factory=list)

    @property
    def is_ready(self) -> bool:
        """Return whether the rank can run on: it has not ended, and does not wait."""
        return not self.output and (self.awaited is None or self.awaited.result is not None)

    def head(self, communicator: _Communicator, one_at_a_time: bool) -> _Queued | None:
        """Return the next collective of the rank on a communicator.

        Returns None if the rank has issued none there. With `one_at_a_time`, also if the rank must run a collective on
        another communicator first.
        """
        candidates = self.queue[:1] if one_at_a_time else self.queue
        return next((queued for queued in candidates if queued.communicator == communicator), None)

    def advance(self, mesh: Mesh) -> None:
        """Run until the rank issues a collective, waits for one, or returns."""
        try:
            in_flight = next(self.steps)
        except StopIteration as end:
            self.output.append(end.value)
            return
        # The generator yields a collective a second time if the rank waits for it.
        is_wait = any(in_flight is queued.in_flight for queued in self.queue)
        self.awaited = in_flight if is_wait else None
        if not is_wait:
            in_flight.issued.check(mesh)
            ranks = tuple(sorted(mesh.group(self.number, in_flight.issued.axes)))
            self.queue.append(_Queued(_Communicator(in_flight.issued.arguments[-1], ranks), in_flight))


def run_interleaved(
    programs: Sequence[fx.GraphModule],
    inputs: Sequence[Sequence[torch.Tensor]],
    mesh: Mesh,
    seed: int = 0,
    extra_steps: Steps | None = None,
    order: int = 0,
    one_at_a_time: bool = False,
) -> list[Any]:
    """Return the result of each rank. Arguments are those of `run_lockstep`.

    In each turn, one of two things happens, by chance: a rank runs until it issues a collective or waits for one, or a
    communicator runs its next collective, which all its ranks have issued.

    Args:
        order: the seed of the random order.
        one_at_a_time: whether a rank runs its collectives one at a time in the order of issue, over all communicators,
            as a device without free resources does.

    Raises:
        DivergenceError: ranks of a group issue different collectives, deadlock, or use a result before its wait.
        SpmdirError: an op fails on a rank.
    """
    steps = all_steps(extra_steps)
    ranks = [
        _Rank(number, run(program, rank_inputs, number, Random(seed), steps))
        for number, (program, rank_inputs) in enumerate(zip(programs, inputs, strict=True))
    ]
    draw = random.Random(order)
    # The probability and the weights differ between orders: in some, ranks run far ahead of each other and of their
    # collectives; in others, they do not.
    advance_probability, weights = draw.random(), [draw.random() ** 3 for _ in ranks]
    while True:
        ready = [rank for rank in ranks if rank.is_ready]
        communicators = dict.fromkeys(queued.communicator for rank in ranks for queued in rank.queue)
        runnable = []
        for communicator in communicators:
            if all(ranks[number].head(communicator, one_at_a_time) for number in communicator.ranks):
                runnable.append(communicator)
        if ready and (not runnable or draw.random() < advance_probability):
            # The small constant lets ranks with a weight near 0 run too.
            (rank,) = draw.choices(ready, [weights[rank.number] + 1e-3 for rank in ready])
            rank.advance(mesh)
        elif runnable:
            _run_collective(draw.choice(runnable), ranks, steps)
        elif any(rank.queue or not rank.output for rank in ranks):
            raise _stuck_error(ranks, one_at_a_time)
        else:
            return [rank.output[0] for rank in ranks]


def check_orders(
    expected: Sequence[Any],
    programs: Sequence[fx.GraphModule],
    inputs: Sequence[Sequence[torch.Tensor]],
    mesh: Mesh,
    seed: int,
    count: int,
) -> None:
    """Raise DivergenceError unless ranks return the same results, bit for bit, in `count` random orders.

    In every second order, a rank runs one collective at a time.
    """
    for order in range(count):
        outputs = run_interleaved(programs, inputs, mesh, seed, order=order, one_at_a_time=order % 2 > 0)
        for rank, results in enumerate(zip(expected, outputs, strict=True)):
            for index, (expected_value, value) in enumerate(zip(*results, strict=True)):
                if not torch.equal(flat_bytes(expected_value), flat_bytes(value)):
                    raise DivergenceError(
                        f"result {index} of rank {rank} differs if ranks run in order {order}; expected the same "
                        "result in every order: an op reads or writes a tensor that a collective in flight uses"
                    )


def _run_collective(communicator: _Communicator, ranks: Sequence[_Rank], steps: Steps) -> None:
    """Run the next collective of a communicator."""
    in_flight: list[InFlight] = []
    for number in communicator.ranks:
        queued = next(queued for queued in ranks[number].queue if queued.communicator == communicator)
        ranks[number].queue.remove(queued)
        in_flight.append(queued.in_flight)
    calls = [started.issued for started in in_flight]
    for number, call in zip(communicator.ranks, calls, strict=True):
        if call.node.target != calls[0].node.target:
            raise calls[0].error(
                f"is issued by rank {communicator.ranks[0]} in {communicator.name} while rank {number} issues {call}; "
                "expected the same collectives in the same order on all ranks of a group"
            )
    for started, result in zip(in_flight, steps[calls[0].node.target](calls), strict=True):
        started.result = result


def _stuck_error(ranks: Sequence[_Rank], one_at_a_time: bool) -> DivergenceError:
    """Return the error for a deadlock of all ranks.

    The error names a collective that cannot run, preferably one that a rank waits for. For each rank of its group that
    has not reached the collective, the error has the reason.
    """
    rank = min((rank for rank in ranks if rank.queue), key=lambda rank: rank.awaited is None)
    awaited = next((queued.communicator for queued in rank.queue if queued.in_flight is rank.awaited), None)
    blocked = rank.queue[0] if one_at_a_time or awaited is None else rank.head(awaited, one_at_a_time)
    assert blocked is not None
    group = blocked.communicator
    reasons = [
        f"rank {number} {_reason(ranks[number], group)}"
        for number in group.ranks
        if ranks[number].head(group, one_at_a_time) is None
    ]
    return blocked.in_flight.issued.error(f"of rank {rank.number} in {group.name} never ends: {'; '.join(reasons)}")


def _reason(rank: _Rank, communicator: _Communicator) -> str:
    """Return the reason why `rank` cannot run its next collective on a communicator."""
    if rank.head(communicator, False):
        return f"has {_collective_text(rank.queue[0].in_flight)} to do first"
    return f"waits for {_collective_text(rank.awaited)}" if rank.awaited else "has ended"


def _collective_text(in_flight: InFlight) -> str:
    """Return the name of a collective and of its communicator, for errors."""
    return f"'{in_flight.issued.node.name}' in {in_flight.issued.arguments[-1]}"
