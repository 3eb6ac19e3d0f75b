"""What each op of a program costs, and where: one record an op, of which tables are made."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import attrs

from spmdir.core.equal_layers import layer_of
from spmdir.core.errors import Location
from spmdir.report.shares import Share

INPUTS = "inputs"
"""What the reading and holding of inputs is called among the kinds of ops."""

MEASURED = "measured"
"""What bounds an op whose time is from a table of costs."""

Key = TypeVar("Key", bound=Hashable)


@attrs.frozen
class OpCost:
    """What one op costs on the busiest rank: a torch op, a collective, a step that sends nothing, or reading an input.

    What only the program of a rank has, in its order, is 0 before localize: what is exposed, sent meanwhile and held.

    Attributes:
        name: of its first result, as in the text.
        kind: the name of a torch op, or of a step that sends nothing; the kind of a collective; or `inputs`.
        location: where the text, or the model's source, has it; None if that is not known.
        share: the bytes that it sends, its time, and where that is from. In an order: what it adds to a step, which is
            the time of its kernels and what is exposed of what it sends.
        flops: floating-point operations.
        traffic: bytes that it reads and writes in memory; 0 for a collective.
        bound: what takes most of the time: "compute", "memory", "launch" or "network"; "measured" where a table of
            costs has the time.
        axes: of the groups of a collective.
        module: path of the module that it is of, as `layers.0.mlp`; empty if that is not known.
        phase: "forward", "backward" or "optimizer"; empty if that is not known.
        exposed: seconds that the accelerator stands still for what it sends.
        transfer: seconds that what it sends takes alone.
        least: seconds that it would take at the least: its kernels at the full rate of the machine, and the lower bound
            of what it sends at full bandwidth.
        held: bytes that it holds where the rank holds most.
        held_for: what these are held for, one of `spmdir.schedule.program.MEMORY_CLASSES`.
    """

    name: str
    kind: str
    location: Location | None
    share: Share
    flops: float
    traffic: float
    bound: str
    axes: tuple[str, ...] = ()
    module: str = ""
    phase: str = ""
    exposed: float = 0.0
    transfer: float = 0.0
    least: float = 0.0
    held: float = 0.0
    held_for: str = ""

    @property
    def seconds(self) -> float:
        """Return its modelled or measured time."""
        return self.share.seconds

    @property
    def line(self) -> str:
        """Return its file and line; `unknown` if there is none."""
        return f"{self.location.file}:{self.location.line}" if self.location is not None else "unknown"

    @property
    def layer(self) -> str:
        """Return the path of its module up to the number of a layer."""
        return layer_of(self.module)


def shares_by(ops: Iterable[OpCost], key: Callable[[OpCost], Key]) -> dict[Key, Share]:
    """Return key → what the ops that have it add up to."""
    found: dict[Key, Share] = {}
    for op in ops:
        found[key(op)] = found.get(key(op), Share()) + op.share
    return found
