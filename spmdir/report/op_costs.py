"""The cost of one op, with its place in the model. Cost tables are sums of these records."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import attrs

from spmdir.core.equal_layers import layer_of
from spmdir.core.errors import Location
from spmdir.report.op_sums import Share

INPUTS = "inputs"
"""The kind of the records of inputs. A program reads them and keeps them in memory."""

MEASURED = "measured"
"""The bound of an op whose time is in a table of measured costs."""

Key = TypeVar("Key", bound=Hashable)


@attrs.frozen
class OpCost:
    """The cost of one op on the busiest rank: a torch op, a collective, a local step, or the reading of an input.

    `exposed`, `transfer`, `least` and `held_bytes` need the program of one rank, and are 0 before localize.

    Attributes:
        name: its first result, as in the text.
        kind: the name of a torch op or local step, the kind of a collective, or `inputs`.
        location: its location in the text or in the source of the model; None if unknown.
        share: the bytes that it sends, its time, and the source of that time. In a local program, the time is the sum
            of its kernels and its exposed communication.
        flops: floating-point operations.
        traffic: bytes that it reads and writes in memory; 0 for a collective.
        bound: the limit of most of its time: "compute", "memory", "launch" or "network"; or "measured", if the time is
            in a table of measured costs.
        axes: the mesh axes of the groups of a collective.
        module: the path of its module, such as `layers.0.mlp`; empty if unknown.
        phase: "forward", "backward" or "optimizer"; empty if unknown.
        exposed: seconds that the accelerator waits for its messages.
        transfer: seconds of its messages, without overlap.
        least: its minimum seconds: kernels at the full rate of the machine, and the lower bound of its messages at full
            bandwidth.
        held_bytes: bytes that it holds at the peak of the rank.
        memory_class: the kind of this memory, one of `spmdir.schedule.program.MEMORY_CLASSES`.
        measured: its seconds in traces, as in `MeasuredStep.seconds`; 0 without traces.
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
    held_bytes: float = 0.0
    memory_class: str = ""
    measured: float = 0.0

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
    """Return key → the sum of the shares of its ops."""
    shares: dict[Key, Share] = {}
    for op in ops:
        shares[key(op)] = shares.get(key(op), Share()) + op.share
    return shares
