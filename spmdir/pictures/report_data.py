"""The data of the HTML report, taken from the other reports."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from spmdir.analysis.memory_classes import memory_classes
from spmdir.analysis.phases import PHASES, phases
from spmdir.core.byte_size import size_text
from spmdir.core.errors import Location
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.mesh import Mesh
from spmdir.core.progress import say
from spmdir.core.time_text import time_text
from spmdir.dialects import ir
from spmdir.dialects.function_checks import GIVEN
from spmdir.dialects.names import text_name
from spmdir.dialects.stage_inference import is_undecided
from spmdir.explanation.decided_program import DecidedProgram
from spmdir.explanation.explain import explain_equal_values, select_values
from spmdir.pictures.mesh_traffic import mesh_traffic
from spmdir.pictures.program_graph import ARGUMENT, GraphNode, partition, program_graph
from spmdir.pictures.source_lines import source_lines
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.pipeline.remaining_passes import inline_layers
from spmdir.report.communication import CommReport, comm_report
from spmdir.report.cost_rows import equal_modules
from spmdir.report.op_costs import OpCost
from spmdir.report.rank_ops import rank_ops
from spmdir.report.rank_step import rank_step
from spmdir.report.schedule import ScheduleReport, report_of_step
from spmdir.report.timeline_text import COMPUTE, spans
from spmdir.schedule.memory import Memory
from spmdir.schedule.program import Transfer
from spmdir.schedule.simulate import Execution

MAX_LINES = 12
"""The number of source lines that are listed."""

MAX_OPS = 40
"""The number of rows of ops in the overview."""

MAX_CHANGED_LINES = 60
"""The number of removed lines, and of added lines, that are shown for a pass."""

MAX_WIDTH = 300
"""The largest number of characters of such a line."""

MAX_SECONDS = 4.0
"""The CPU seconds that explanations may take by default."""

MAX_EXPLAINED = 12
"""The largest number of values that are explained by default."""


def explain_costliest(program: DecidedProgram, count: int | None) -> list[dict[str, Any]]:
    """Explain the values with the longest reshards. Equal values of equal layers have one explanation.

    Args:
        count: the number of values; if None, at most `MAX_EXPLAINED` and only for `MAX_SECONDS`, but at least one.

    Returns: name, explanation, seconds of the reshards, and source of each value.
    """
    rows: list[dict[str, Any]] = []
    start_time = time.process_time()
    for values in select_values(program, "*"):
        seconds = program.reshard_seconds[values[0]]
        is_late = count is None and bool(rows) and time.process_time() - start_time > MAX_SECONDS
        if not seconds or is_late or len(rows) >= (MAX_EXPLAINED if count is None else count):
            break
        say("explaining the reshards of {}", program.names[values[0]])
        explanation = explain_equal_values(program, values)
        rows.append({
            "name": explanation.name,
            "text": str(explanation),
            "seconds": seconds,
            "line": place_text(explanation.location),
            "source": source_lines(explanation.location),
        })  # fmt: skip
    return rows


def place_text(location: Location | None) -> str:
    """Return `file:line`; empty if the location is unknown."""
    return f"{location.file}:{location.line}" if location is not None else ""


def report_data(module: ModuleOp, pipeline: Pipeline, explained: int | None) -> dict[str, Any]:
    """Return the data of the HTML report. The program itself does not change.

    Args:
        module: the program, at any stage after import.
        pipeline: the pipeline whose remaining passes run on a copy.
        explained: the number of values to explain, those with the longest reshards; if None, as many as take little
            time. A decided program that keeps no user annotations has no explanations.

    Raises:
        SpmdirError: the program cannot be partitioned.
    """
    with collector_paused(), pipeline.rules:
        module = inline_layers(module)
        explanations: list[dict[str, Any]] = []
        function = ir.main_function(module)
        if explained != 0 and (is_undecided(function) or GIVEN in function.attributes):
            explanations = explain_costliest(DecidedProgram(module, pipeline), explained)
        changes = PassChanges(module)
        module, remaining = partition(module, pipeline, changes.add)
        function = ir.main_function(module)
        graph, costs = program_graph(function, ir.mesh(module)), comm_report(module, pipeline=pipeline)
        phase_of = phases(function, memory_classes(function, pipeline.rules))
        phase_of_value = {text_name(op.results[0]): phase for op, phase in phase_of.items() if op.results}
        step = rank_step(run_passes(module, remaining, after=changes.add), None, pipeline)
        phase_of_local_op = phases(step.function, step.kinds)
    schedule, mesh, strings = report_of_step(step), step.mesh, Strings()
    phase_of_task = [phase_of_local_op[ops[0]] for ops in step.units]
    return {
        "summary": _summary(schedule, costs, mesh, graph),
        **mesh_traffic(step, schedule.collectives),
        "phases": list(PHASES),
        "nodes": [
            [*_node_row(node, strings), PHASES.index(phase_of_value.get(node.name, PHASES[0]))] for node in graph
        ],
        **_tasks(step.execution, phase_of_task, strings),
        "collectives": [
            [share.kind, share.axes, share.count, share.wire_bytes, share.seconds, share.exposed]
            for share in schedule.collectives
        ],
        "lines": _lines(costs),
        "dearest": _costliest_ops(costs.ops, {node.name: node.path for node in graph})[:MAX_OPS],
        "explanations": explanations,
        "passes": changes.passes,
        "equal_modules": [equal for equal in equal_modules(rank_ops(step, phase_of_local_op)) if len(equal) > 1],
        "strings": strings.texts,
    }


def _costliest_ops(ops: Sequence[OpCost], paths: Mapping[str, str]) -> list[list[Any]]:
    """Return a row for each op. Ops of equal cost in modules that differ only in numbers share a row.

    The last entry of a row is the number of its ops.

    Args:
        paths: name of a value → the path of its module.
    """
    rows: dict[tuple[Any, ...], list[Any]] = {}
    for op in ops:
        parts = paths.get(op.name, "").split(".")
        module = ".".join("*" if part.isdecimal() else part for part in parts)
        key = module if "*" in module else op.name, op.kind, op.seconds, op.share.wire_bytes, op.bound, op.axes
        new_row = [op.name, op.kind, op.line, op.seconds, op.share.wire_bytes, op.bound, op.axes, 0]
        row = rows.setdefault(key, new_row)
        row[-1] += 1
    return list(rows.values())


class Strings:
    """A table of strings, which rows refer to by index."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the index of a string."""
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]


def _summary(schedule: ScheduleReport, costs: CommReport, mesh: Mesh, graph: Sequence[GraphNode]) -> list[list[str]]:
    """Return the rows of the summary: (label, text)."""
    sent = ", ".join(f"{size_text(share.wire_bytes)} on {', '.join(axes)}" for axes, share in costs.by_axis.items())
    return [
        ["a step of a rank", time_text(schedule.seconds)],
        ["compute", time_text(schedule.compute_seconds)],
        ["exposed communication", time_text(schedule.exposed_seconds)],
        ["peak of live memory", f"{size_text(schedule.peak_bytes)}, at {schedule.peak_value or 'the arguments'}"],
        ["sent by a rank", sent or "nothing"],
        ["mesh", str(mesh)],
        ["ops", f"{sum(node.op != ARGUMENT for node in graph)}, {costs.count} collectives"],
    ]


def _node_row(node: GraphNode, strings: Strings) -> list[Any]:
    """Return name, op, type, sharding as [axis, placement] pairs or None, axes, path, line and operands of a node.

    Texts are indices in `strings`, and operands are indices of nodes.
    """
    number = strings.number
    sharding = None if node.sharding is None else [[axis, str(placed)] for axis, placed in node.sharding.entries]
    return [
        number(node.name),
        number(node.op),
        number("" if node.meta is None else str(node.meta)),
        sharding,
        list(node.axes),
        number(node.path),
        number(place_text(node.location)),
        list(node.operands),
    ]


def _tasks(execution: Execution, phase_of_task: Sequence[str], strings: Strings) -> dict[str, Any]:
    """Return the streams, tasks and bars of the timeline, and the live range of each buffer.

    Tasks are numbered by their positions in the order of execution. Buffers without bytes are left out.

    Args:
        phase_of_task: for each task of the program, its phase.
    """
    tasks, position_of = execution.program.tasks, {task: index for index, task in enumerate(execution.order)}
    streams = list(dict.fromkeys([COMPUTE, *(task.transfer.stream for task in tasks if task.transfer)]))
    names = [strings.number(task.name) for task in tasks]
    bars = [
        [
            position_of[span.task],
            streams.index(span.stream),
            _microseconds(span.start),
            _microseconds(span.end),
            int(span.is_wait),
        ]
        for span in spans(execution)
    ]
    rows = [
        [
            names[task],
            strings.number(tasks[task].op),
            strings.number(tasks[task].path),
            *_sent(tasks[task].transfer),
            _microseconds(execution.end[task] - execution.begin[task]),
            _microseconds(execution.begin[task]),
            round(execution.live[task]),
            PHASES.index(phase_of_task[task]),
        ]
        for task in execution.order
    ]
    begins, ends = _lifetimes(execution)
    buffers = [
        [
            strings.number(buffer.name),
            round(buffer.bytes),
            strings.number(buffer.kind),
            begins.get(index, 0),
            ends[index],
        ]
        for index, buffer in enumerate(execution.program.buffers)
        if buffer.bytes and index in ends
    ]
    return {"streams": streams, "tasks": rows, "bars": bars, "buffers": buffers, "seconds": execution.seconds}


def _sent(transfer: Transfer | None) -> list[Any]:
    """Return the bytes that a task sends, and the mesh axes."""
    return [0, []] if transfer is None else [round(transfer.wire_bytes), list(transfer.axes)]


def _lifetimes(execution: Execution) -> tuple[dict[int, int], dict[int, int]]:
    """Return buffer → its first live position in the order of execution, and buffer → its last.

    A buffer that is live from the start has position 0, and one that is live to the end has the last position.
    """
    memory = Memory(execution.program)
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    live_before = dict.fromkeys(memory.live)
    for position, task in enumerate(execution.order):
        allocated = {buffer for stage in execution.program.tasks[task].memory_changes for buffer in stage[0]}
        begins.update(dict.fromkeys(allocated, position))
        # A buffer is freed after the last task that reads it, or after its own task if none reads it.
        may_end = allocated | set(execution.program.tasks[task].reads)
        memory.run(task)
        ends.update((buffer, position) for buffer in may_end if buffer not in memory.live)
    end = len(execution.order) - 1
    ends.update(dict.fromkeys(memory.live, end))
    begins.update(dict.fromkeys(live_before, 0))
    return begins, ends


def _lines(costs: CommReport) -> list[dict[str, Any]]:
    """Return the `MAX_LINES` source lines that take longest, with the lines around them if the file can be read.

    Each has its seconds, its share of the time of all ops, and at most six kinds and six values of its ops.
    """
    ops_of_line: dict[tuple[str, int], list[OpCost]] = {}
    for op in costs.ops:
        if op.location is not None and op.location.line:
            ops_of_line.setdefault((op.location.file, op.location.line), []).append(op)
    costliest = sorted(ops_of_line.items(), key=lambda entry: -sum(op.seconds for op in entry[1]))[:MAX_LINES]
    total = sum(op.seconds for op in costs.ops) or 1.0  # not 0, because shares are divided by it
    return [
        {
            "line": f"{file}:{line}",
            "seconds": sum(op.seconds for op in ops),
            "share": sum(op.seconds for op in ops) / total,
            "kinds": list(dict.fromkeys(op.kind for op in ops))[:6],
            "values": list(dict.fromkeys(op.name for op in ops))[:6],
            "source": source_lines(Location(file, line, 1)),
        }
        for (file, line), ops in costliest
    ]


def _microseconds(seconds: float) -> float:
    """Convert seconds to microseconds, rounded to nanoseconds."""
    return round(seconds * 1e6, 3)


class PassChanges:
    """The changes of each pass of a pipeline.

    Attributes:
        passes: for each pass its name, the changed counts of ops, and the removed and added lines.
    """

    def __init__(self, module: ModuleOp):
        self.passes: list[dict[str, Any]] = []
        self._lines, self._ops = _count_lines(module), _count_ops(module)

    def add(self, name: str, current: Callable[[], ModuleOp]) -> None:
        """Add the changes of the pass `name` since the previous call. `current` returns the module after the pass.

        Lines are compared as a multiset, so a line that only moves is no change.
        """
        module = current()
        lines, ops = _count_lines(module), _count_ops(module)
        removed, added = list((self._lines - lines).elements()), list((lines - self._lines).elements())
        kinds = [[kind, self._ops[kind], ops[kind]] for kind in self._ops | ops if self._ops[kind] != ops[kind]]
        self.passes.append({
            "name": name,
            "kinds": sorted(kinds, key=lambda row: -abs(row[2] - row[1])),
            "counts": [len(removed), len(added)],
            "removed": [line[:MAX_WIDTH] for line in removed[:MAX_CHANGED_LINES]],
            "added": [line[:MAX_WIDTH] for line in added[:MAX_CHANGED_LINES]],
        })  # fmt: skip
        self._lines, self._ops = lines, ops


def _count_lines(module: ModuleOp) -> Counter[str]:
    """Return line of the printed program → number of its occurrences."""
    return Counter(line.strip() for line in ir.print_ir(module).splitlines())


def _count_ops(module: ModuleOp) -> Counter[str]:
    """Return name of an op → number of such ops."""
    return Counter(op.name for function in ir.functions(module) for op in function.body.block.ops)
