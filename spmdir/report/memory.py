"""What a program holds in the memory of a rank, op by op, as its emitted graph allocates and frees it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from spmdir.core.arguments import accepts
from spmdir.core.byte_size import size_text
from spmdir.core.collector import collector_paused
from spmdir.core.html_text import ShownAsText
from spmdir.dialects.arguments import MODULE
from spmdir.pipeline.pipeline import PIPELINE, Pipeline, as_pipeline
from spmdir.schedule.memory import find_peak
from spmdir.schedule.program import MEMORY_CLASSES, Buffer

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


SHOWN = 8
"""The number of holders that the printed report shows."""


@attrs.frozen
class MemoryReport(ShownAsText):
    """What a rank holds in memory where it holds most, while it runs a program once.

    Arguments are held to the end, as callers do, and results too. Values that share memory count once; what an op
    allocates and frees inside does not count, but the buffers of collectives do.

    Attributes:
        peak_bytes: the most that is live at once.
        at: what is computed then, as its name in the text.
        by_class: what is live then, by what it is held for.
        holders: the buffers that are live then, the largest first.
        host_bytes: the most that the rank has in the memory of its host at once.
    """

    peak_bytes: float
    at: str
    by_class: dict[str, float]
    holders: tuple[Buffer, ...]
    host_bytes: float = 0.0

    def top(self, count: int) -> tuple[Buffer, ...]:
        """Return the `count` largest buffers at the peak."""
        return self.holders[:count]

    def __str__(self) -> str:
        lines = [f"peak of live memory of a rank {size_text(self.peak_bytes)}, at {self.at or 'the arguments'}"]
        lines += [f"  {kind:<22}{size_text(held):>9}" for kind, held in self.by_class.items()]
        lines += [f"host memory {size_text(self.host_bytes)}"] if self.host_bytes else []
        return "\n".join([*lines, *holder_lines(self.holders)])


def holder_lines(holders: Sequence[Buffer]) -> list[str]:
    """Return the lines of a report that name the first of `holders`."""
    shown = holders[:SHOWN]
    width = max((len(buffer.name) for buffer in shown), default=0)
    return ["largest", *(f"  {one.name:<{width}}  {size_text(one.bytes):>9}  {one.kind}" for one in shown)]


@accepts(module=MODULE, pipeline=PIPELINE)
def memory_report(module: ModuleOp, *, pipeline: Pipeline | str | None = None) -> MemoryReport:
    """Return what a rank holds in memory while it runs `module`; with symbolic sizes, at the examples of these.

    The passes that the module still needs are run on a copy, so that the buffers of its collectives count.

    Args:
        module: at any stage after import.
        pipeline: whose remaining passes are run; the standard one if None.

    Raises:
        SpmdirError: the module cannot be partitioned.

    Example:
        >>> print(spmdir.report.memory_report(module))
    """
    from spmdir.analysis.live_memory import live_memory
    from spmdir.analysis.memory_classes import memory_classes
    from spmdir.dialects import ir
    from spmdir.pipeline.finish import bind_examples, localize

    pipeline = as_pipeline(pipeline)
    with collector_paused(), pipeline.rules:
        module = localize(bind_examples(module, pipeline), pipeline)
        function = ir.main_function(module)
        kinds = memory_classes(function, pipeline.rules)
        memory = live_memory(function, ir.mesh(module), pipeline.rules, kinds)
    program = memory.program
    most, at, held = find_peak(program)
    live = sorted((program.buffers[buffer] for buffer in sorted(held)), key=lambda buffer: -buffer.bytes)
    live = [buffer for buffer in live if buffer.bytes]
    by_class = {kind: math.fsum(b.bytes for b in live if b.kind == kind) for kind in MEMORY_CLASSES}
    by_class = {kind: size for kind, size in by_class.items() if size}
    return MemoryReport(most, "" if at is None else program.tasks[at].name, by_class, tuple(live), memory.host_bytes)
