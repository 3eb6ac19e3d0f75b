"""The live memory of a rank, as its emitted graph allocates and frees buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from spmdir.core.arguments import accepts
from spmdir.core.byte_size import size_text
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.html_text import ShownAsText
from spmdir.dialects.arguments import MODULE
from spmdir.pipeline.pipeline import PIPELINE, Pipeline, as_pipeline
from spmdir.schedule.memory import find_peak
from spmdir.schedule.program import MEMORY_CLASSES, Buffer

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


MAX_HOLDERS = 8
"""The number of buffers that the printed report lists."""


@attrs.frozen
class MemoryReport(ShownAsText):
    """The live memory of a rank at the peak of one step.

    Arguments and results are live to the end, because callers keep them. Values that share memory count once. The
    buffers of collectives count; memory that a kernel allocates and frees does not.

    Attributes:
        peak_bytes: the live bytes at the peak.
        peak_value: the name of the value that is computed at the peak; empty if the peak is at the arguments.
        by_class: kind of memory → live bytes at the peak.
        holders: the buffers that are live at the peak, the largest first.
        host_bytes: the peak of the bytes that the rank has in the memory of its host.
        worst_bytes: the peak if one rank receives as many rows of experts as a router can send; None if rows are not
            dispatched. The other numbers assume the imbalance of `propagate`.
    """

    peak_bytes: float
    peak_value: str
    by_class: dict[str, float]
    holders: tuple[Buffer, ...]
    host_bytes: float = 0.0
    worst_bytes: float | None = None

    def top(self, count: int) -> tuple[Buffer, ...]:
        """Return the `count` largest buffers at the peak."""
        return self.holders[:count]

    def __str__(self) -> str:
        """Return the peak, its bytes by class, and the largest buffers."""
        lines = [f"peak of live memory of a rank {size_text(self.peak_bytes)}, at {self.peak_value or 'the arguments'}"]
        lines += [f"  {kind:<22}{size_text(size):>9}" for kind, size in self.by_class.items()]
        if self.worst_bytes is not None:
            lines.append(f"at most {size_text(self.worst_bytes)} with the worst router of experts")
        lines += [f"host memory {size_text(self.host_bytes)}"] if self.host_bytes else []
        return "\n".join([*lines, *holder_lines(self.holders)])


def holder_lines(holders: Sequence[Buffer]) -> list[str]:
    """Return the lines of a report that list the first `MAX_HOLDERS` buffers."""
    shown = holders[:MAX_HOLDERS]
    width = max((len(buffer.name) for buffer in shown), default=0)
    return ["largest", *(f"  {buffer.name:<{width}}  {size_text(buffer.bytes):>9}  {buffer.kind}" for buffer in shown)]


@accepts(module=MODULE, pipeline=PIPELINE)
def memory_report(module: ModuleOp, *, pipeline: Pipeline | str | None = None) -> MemoryReport:
    """Report the live memory of a rank at the peak of a step.

    The remaining passes run on a copy of the module, because the buffers of its collectives count. Symbolic sizes have
    the values of their examples.

    Args:
        module: a program at any stage after import.
        pipeline: the pipeline whose remaining passes run; the standard one if None.

    Raises:
        SpmdirError: the module cannot be partitioned.

    Example:
        >>> print(spmdir.report.memory_report(module))
    """
    from spmdir.analysis.live_memory import live_memory
    from spmdir.analysis.memory_classes import memory_classes
    from spmdir.analysis.routes import most_rows
    from spmdir.dialects import ir
    from spmdir.pipeline.recorded_options import imbalance_of
    from spmdir.pipeline.remaining_passes import bind_examples, localize

    pipeline = as_pipeline(pipeline)
    with collector_paused(), pipeline.rules:
        module = localize(bind_examples(module, pipeline), pipeline)
        function = ir.main_function(module)
        kinds, mesh = memory_classes(function, pipeline.rules), ir.mesh(module)
        imbalance = imbalance_of(function, pipeline)
        memory = live_memory(function, mesh, pipeline.rules, kinds, imbalance)
        worst_bytes = None
        if most_rows(function, mesh) > 1.0:
            worst_bytes = find_peak(live_memory(function, mesh, pipeline.rules, kinds, math.inf).program)[0]
    program = memory.program
    peak_bytes, peak_index, live_buffers = find_peak(program)
    live = sorted((program.buffers[buffer] for buffer in sorted(live_buffers)), key=lambda buffer: -buffer.bytes)
    live = [buffer for buffer in live if buffer.bytes]
    by_class: dict[str, float] = {}
    for kind in MEMORY_CLASSES:
        size = math.fsum(buffer.bytes for buffer in live if buffer.kind == kind)
        if size:
            by_class[kind] = size
    return MemoryReport(
        peak_bytes,
        "" if peak_index is None else program.tasks[peak_index].name,
        by_class,
        tuple(live),
        memory.host_bytes,
        worst_bytes,
    )
