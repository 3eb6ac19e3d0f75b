"""All ranks of a program in one process, each going on by itself: in one of the orders that real ranks may run in.

A rank runs until it waits for a collective that has not ended. Each communicator, that is, a process group, has a queue
on each of its ranks, in the order in which the rank issues its collectives, and does the collective at the head of all
of them. Which rank goes on and which communicator does its next collective is drawn by chance.
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
from spmdir.simulator.collective_steps import Steps, executed
from spmdir.simulator.rank_run import InFlight, Random, run
from spmdir.torch_interop.bits import flat_bytes


@attrs.frozen
class _Communicator:
    """A process group: its name, which tells streams apart, and its ranks, ascending."""

    name: str
    ranks: tuple[int, ...]


@attrs.frozen
class _Queued:
    """A collective that a rank has issued, on a communicator."""

    communicator: _Communicator
    flying: InFlight


@attrs.define
class _Rank:
    """One rank's program under way.

    Attributes:
        run: goes on to the next collective, or to a wait for one that has not ended.
        queue: the collectives that it has issued and that have not ended, in order.
        waits: the one that it waits for.
        output: what it has returned, in a list of one; none while it runs.
    """

    number: int
    run: Generator[InFlight, None, Any]
    queue: list[_Queued] = attrs.field(factory=list)
    waits: InFlight | None = None
    output: list[Any] = attrs.field(factory=list)

    @property
    def is_ready(self) -> bool:
        return not self.output and (self.waits is None or self.waits.result is not None)

    def head(self, communicator: _Communicator, one_at_a_time: bool) -> _Queued | None:
        """Return what the rank is to do next on `communicator`; None if nothing, or others first."""
        some = self.queue[:1] if one_at_a_time else self.queue
        return next((queued for queued in some if queued.communicator == communicator), None)

    def go_on(self, mesh: Mesh) -> None:
        """Run up to where the rank issues a collective, waits for one, or returns."""
        try:
            flying = next(self.run)
        except StopIteration as end:
            self.output.append(end.value)
            return
        self.waits = flying if any(flying is queued.flying for queued in self.queue) else None
        if self.waits is None:
            flying.issued.check(mesh)
            ranks = tuple(sorted(mesh.group(self.number, flying.issued.axes)))
            self.queue.append(_Queued(_Communicator(flying.issued.arguments[-1], ranks), flying))


def run_interleaved(
    programs: Sequence[fx.GraphModule],
    inputs: Sequence[Sequence[torch.Tensor]],
    mesh: Mesh,
    seed: int = 0,
    others: Steps | None = None,
    order: int = 0,
    one_at_a_time: bool = False,
) -> list[Any]:
    """What each rank returns; the arguments are those of `run_lockstep`.

    Args:
        order: the seed of the order in which ranks go on.
        one_at_a_time: a rank works on one collective at a time, in the order in which it has issued them on all its
            communicators, as where a device has room for no more.

    Raises:
        DivergenceError: ranks of a group issue different collectives, wait for each other for ever, or use a result
            before its wait.
        SpmdirError: an op fails on a rank.
    """
    steps = executed(others)
    ranks = [
        _Rank(number, run(program, given, number, Random(seed), steps))
        for number, (program, given) in enumerate(zip(programs, inputs, strict=True))
    ]
    draw = random.Random(order)
    # In some orders ranks run far ahead of what has been sent, and of each other; in others hardly.
    ahead, weights = draw.random(), [draw.random() ** 3 for _ in ranks]
    while True:
        ready = [rank for rank in ranks if rank.is_ready]
        known = dict.fromkeys(queued.communicator for rank in ranks for queued in rank.queue)
        able = [c for c in known if all(ranks[number].head(c, one_at_a_time) for number in c.ranks)]
        if ready and (not able or draw.random() < ahead):
            (rank,) = draw.choices(ready, [weights[rank.number] + 1e-3 for rank in ready])
            rank.go_on(mesh)
        elif able:
            _do(draw.choice(able), ranks, steps)
        elif any(rank.queue or not rank.output for rank in ranks):
            raise _stuck(ranks, one_at_a_time)
        else:
            return [rank.output[0] for rank in ranks]


def check_orders(
    returned: Sequence[Any],
    programs: Sequence[fx.GraphModule],
    inputs: Sequence[Sequence[torch.Tensor]],
    mesh: Mesh,
    seed: int,
    count: int,
) -> None:
    """Raise DivergenceError unless ranks return what they have `returned`, to the bit, in `count` other orders.

    In every other order a rank works on one collective at a time.
    """
    for order in range(count):
        again = run_interleaved(programs, inputs, mesh, seed, order=order, one_at_a_time=order % 2 > 0)
        for rank, results in enumerate(zip(returned, again, strict=True)):
            for index, (a, b) in enumerate(zip(*results, strict=True)):
                if not torch.equal(flat_bytes(a), flat_bytes(b)):
                    raise DivergenceError(
                        f"result {index} of rank {rank} is another where ranks run in order {order}; expected the same "
                        "in every order: something reads or writes a tensor that a collective in flight uses"
                    )


def _do(communicator: _Communicator, ranks: Sequence[_Rank], steps: Steps) -> None:
    """Do the next collective of a communicator."""
    flying: list[InFlight] = []
    for number in communicator.ranks:
        queued = next(queued for queued in ranks[number].queue if queued.communicator == communicator)
        ranks[number].queue.remove(queued)
        flying.append(queued.flying)
    calls = [one.issued for one in flying]
    for number, call in zip(communicator.ranks, calls, strict=True):
        if call.node.target != calls[0].node.target:
            raise calls[0].error(
                f"is what rank {communicator.ranks[0]} does in {communicator.name} while rank {number} does {call}"
            )
    for one, result in zip(flying, steps[calls[0].node.target](calls), strict=True):
        one.result = result


def _stuck(ranks: Sequence[_Rank], one_at_a_time: bool) -> DivergenceError:
    """Return the error of ranks of which none can go on."""
    rank = min((rank for rank in ranks if rank.queue), key=lambda rank: rank.waits is None)
    waited = next((queued.communicator for queued in rank.queue if queued.flying is rank.waits), None)
    first = rank.queue[0] if one_at_a_time or waited is None else rank.head(waited, one_at_a_time)
    assert first is not None
    group = first.communicator
    told = [
        f"rank {number} {_reason(ranks[number], group)}"
        for number in group.ranks
        if ranks[number].head(group, one_at_a_time) is None
    ]
    return first.flying.issued.error(f"of rank {rank.number} in {group.name} never ends: {'; '.join(told)}")


def _reason(rank: _Rank, communicator: _Communicator) -> str:
    """Return why `rank` does not come to its next collective on a communicator."""
    if rank.head(communicator, False):
        return f"has {_named(rank.queue[0].flying)} to do first"
    return f"waits for {_named(rank.waits)}" if rank.waits else "has ended"


def _named(flying: InFlight) -> str:
    return f"'{flying.issued.node.name}' in {flying.issued.arguments[-1]}"
