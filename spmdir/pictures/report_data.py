"""What the page of a program shows, as plain data: everything is read off the reports, nothing is computed anew."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from spmdir.analysis.memory_classes import memory_classes
from spmdir.analysis.phases import PHASES, phases
from spmdir.core.byte_size import size_text
from spmdir.core.collector import collector_paused
from spmdir.core.errors import Location
from spmdir.core.mesh import Mesh
from spmdir.core.progress import say
from spmdir.core.time_text import time_text
from spmdir.dialects import ir
from spmdir.dialects.function_checks import GIVEN
from spmdir.dialects.names import text_name
from spmdir.dialects.observed_stage import is_undecided
from spmdir.explanation.decided import DecidedProgram
from spmdir.explanation.explain import explain_equal_values, select_values
from spmdir.pictures.mesh_traffic import mesh_traffic
from spmdir.pictures.program_graph import ARGUMENT, GraphNode, partitioned, program_graph
from spmdir.pictures.source_lines import source_lines
from spmdir.pipeline.finish import inline_layers
from spmdir.pipeline.pipeline import Pipeline, run_passes
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

LINES = 12
"""How many lines of source are shown."""

DEAREST = 40
"""How many rows of ops the overview has."""

CHANGES = 60
"""How many lines of text are shown that a pass removes, and that it adds."""

WIDTH = 300
"""How many characters of such a line."""


SECONDS = 4.0
"""After how many seconds of computing no further value is explained, unless the number of them is given."""

MOST = 12
"""How many values are explained at most, unless the number of them is given."""


def dearest_reasons(program: DecidedProgram, count: int | None) -> list[dict[str, Any]]:
    """Return name, explanation, seconds of its reshards, and source of each value, the dearest first.

    Of equal values of equal layers the first stands for all.

    Args:
        count: how many; if None as many as are explained in little time, and one at least.
    """
    found: list[dict[str, Any]] = []
    started = time.process_time()
    for values in select_values(program, "*"):
        seconds = program.reshard_seconds[values[0]]
        late = count is None and bool(found) and time.process_time() - started > SECONDS
        if not seconds or late or len(found) >= (MOST if count is None else count):
            break
        say("why {} is resharded", program.names[values[0]])
        one = explain_equal_values(program, values)
        found.append({
            "name": one.name,
            "text": str(one),
            "seconds": seconds,
            "line": place_text(one.location),
            "source": source_lines(one.location),
        })  # fmt: skip
    return found


def place_text(location: Location | None) -> str:
    """Return a file with the number of a line; nothing where the place is not known."""
    return f"{location.file}:{location.line}" if location is not None else ""


def report_data(module: ModuleOp, pipeline: Pipeline, explained: int | None) -> dict[str, Any]:
    """Return what the page of a program shows; the program is left as it is.

    Args:
        explained: how many values are explained, those whose reshards take longest; if None as many as take little
            time. Those of a decided program that does not keep what was annotated are not.

    Raises:
        SpmdirError: it cannot be partitioned.
    """
    with collector_paused(), pipeline.rules:
        module = inline_layers(module)
        asked: list[dict[str, Any]] = []
        function = ir.main_function(module)
        if explained != 0 and (is_undecided(function) or GIVEN in function.attributes):
            asked = dearest_reasons(DecidedProgram(module, pipeline), explained)
        changes = PassChanges(module)
        module, left = partitioned(module, pipeline, changes.add)
        function = ir.main_function(module)
        graph, costs = program_graph(function, ir.mesh(module)), comm_report(module, pipeline=pipeline)
        phase_of = phases(function, memory_classes(function, pipeline.rules))
        by_name = {text_name(op.results[0]): phase for op, phase in phase_of.items() if op.results}
        step = rank_step(run_passes(module, left, after=changes.add), None, pipeline)
        phase_of = phases(step.function, step.kinds)
    schedule, mesh, strings = report_of_step(step), step.mesh, Strings()
    told = [phase_of[ops[0]] for ops in step.units]
    return {
        "summary": _summary(schedule, costs, mesh, graph),
        **mesh_traffic(step, schedule.collectives),
        "phases": list(PHASES),
        "nodes": [[*_node_row(node, strings), PHASES.index(by_name.get(node.name, PHASES[0]))] for node in graph],
        **_tasks(step.execution, told, strings),
        "collectives": [
            [one.kind, one.axes, one.count, one.wire_bytes, one.seconds, one.exposed] for one in schedule.collectives
        ],
        "lines": _lines(costs),
        "dearest": _dearest(costs.ops, {node.name: node.path for node in graph})[:DEAREST],
        "explanations": asked,
        "passes": changes.passes,
        "equal_modules": [equal for equal in equal_modules(rank_ops(step, phase_of)) if len(equal) > 1],
        "strings": strings.texts,
    }


def _dearest(ops: Sequence[OpCost], paths: Mapping[str, str]) -> list[list[Any]]:
    """Return a row for each op; those of numbered modules that differ in numbers alone and cost the same are one row.

    The last entry of a row is how many ops it is about.

    Args:
        paths: name of a value → the module that it is of.
    """
    rows: dict[tuple[Any, ...], list[Any]] = {}
    for op in ops:
        module = ".".join("*" if part.isdecimal() else part for part in paths.get(op.name, "").split("."))
        costs = op.kind, op.seconds, op.share.wire_bytes, op.bound, op.axes
        row = [op.name, op.kind, op.line, op.seconds, op.share.wire_bytes, op.bound, op.axes, 0]
        rows.setdefault((module if "*" in module else op.name, *costs), row)[-1] += 1
    return list(rows.values())


class Strings:
    """Texts that occur often, by number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text."""
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]


def _summary(schedule: ScheduleReport, costs: CommReport, mesh: Mesh, graph: Sequence[GraphNode]) -> list[list[str]]:
    """Return what the first lines say: (label, text)."""
    sent = ", ".join(f"{size_text(share.wire_bytes)} on {', '.join(axes)}" for axes, share in costs.by_axis.items())
    return [
        ["a step of a rank", time_text(schedule.seconds)],
        ["compute", time_text(schedule.compute_seconds)],
        ["exposed communication", time_text(schedule.exposed_seconds)],
        ["peak of live memory", f"{size_text(schedule.peak_bytes)}, at {schedule.at or 'the arguments'}"],
        ["sent by a rank", sent or "nothing"],
        ["mesh", str(mesh)],
        ["ops", f"{sum(node.op != ARGUMENT for node in graph)}, {costs.count} collectives"],
    ]


def _node_row(node: GraphNode, strings: Strings) -> list[Any]:
    """Return name, op, type, sharding as [axis, placement] pairs or None, axes, path, line and operands."""
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


def _tasks(found: Execution, told: Sequence[str], strings: Strings) -> dict[str, Any]:
    """Return the timeline, and the memory over it: of each buffer between which places in the order it is live.

    Args:
        told: the phase of each task.
    """
    tasks, place = found.program.tasks, {task: at for at, task in enumerate(found.order)}
    streams = list(dict.fromkeys([COMPUTE, *(task.transfer.stream for task in tasks if task.transfer)]))
    names = [strings.number(task.name) for task in tasks]
    bars = [
        [place[span.task], streams.index(span.stream), _us(span.start), _us(span.end), int(span.is_wait)]
        for span in spans(found)
    ]
    rows = [
        [
            names[at],
            strings.number(tasks[at].op),
            strings.number(tasks[at].path),
            *_sent(tasks[at].transfer),
            _us(found.end[at] - found.begin[at]),
            _us(found.begin[at]),
            round(found.live[at]),
            PHASES.index(told[at]),
        ]
        for at in found.order
    ]
    first, last = _lifetimes(found)
    buffers = [
        [strings.number(one.name), round(one.bytes), strings.number(one.kind), first.get(at, 0), last[at]]
        for at, one in enumerate(found.program.buffers)
        if one.bytes and at in last
    ]
    return {"streams": streams, "tasks": rows, "bars": bars, "buffers": buffers, "seconds": found.seconds}


def _sent(transfer: Transfer | None) -> list[Any]:
    """Return the bytes that a task sends, and on which axes."""
    return [0, []] if transfer is None else [round(transfer.wire_bytes), list(transfer.axes)]


def _lifetimes(found: Execution) -> tuple[dict[int, int], dict[int, int]]:
    """Return buffer → the first and the last place in the order at which it is live."""
    memory, first, last = Memory(found.program), dict[int, int](), dict[int, int]()
    before = dict.fromkeys(memory.live)
    for at, task in enumerate(found.order):
        made = {buffer for stage in found.program.tasks[task].memory_changes for buffer in stage[0]}
        first.update(dict.fromkeys(made, at))
        freed = made | set(found.program.tasks[task].reads)
        memory.run(task)
        last.update((buffer, at) for buffer in freed if buffer not in memory.live)
    end = len(found.order) - 1
    last.update(dict.fromkeys(memory.live, end))
    first.update(dict.fromkeys(before, 0))
    return first, last


def _lines(costs: CommReport) -> list[dict[str, Any]]:
    """Return the lines of source that take longest, with what stands around each where the file can be read."""
    found: dict[tuple[str, int], list[OpCost]] = {}
    for op in costs.ops:
        if op.location is not None and op.location.line:
            found.setdefault((op.location.file, op.location.line), []).append(op)
    dearest = sorted(found.items(), key=lambda entry: -sum(op.seconds for op in entry[1]))[:LINES]
    total = sum(op.seconds for op in costs.ops) or 1.0
    return [
        {
            "line": f"{file}:{line}",
            "seconds": sum(op.seconds for op in ops),
            "share": sum(op.seconds for op in ops) / total,
            "kinds": list(dict.fromkeys(op.kind for op in ops))[:6],
            "values": list(dict.fromkeys(op.name for op in ops))[:6],
            "source": source_lines(Location(file, line, 1)),
        }
        for (file, line), ops in dearest
    ]


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


class PassChanges:
    """What each pass changes that runs on a program.

    Attributes:
        passes: for each its name, how often each op was and is there, and lines that it removes and adds.
    """

    def __init__(self, module: ModuleOp):
        self.passes: list[dict[str, Any]] = []
        self._lines, self._ops = _text(module), _counts(module)

    def add(self, name: str, current: Callable[[], ModuleOp]) -> None:
        """Add what the pass of this name has changed."""
        module = current()
        lines, ops = _text(module), _counts(module)
        removed, added = (list(some.elements()) for some in (self._lines - lines, lines - self._lines))
        kinds = [[kind, self._ops[kind], ops[kind]] for kind in self._ops | ops if self._ops[kind] != ops[kind]]
        self.passes.append({
            "name": name,
            "kinds": sorted(kinds, key=lambda row: -abs(row[2] - row[1])),
            "counts": [len(removed), len(added)],
            "removed": [line[:WIDTH] for line in removed[:CHANGES]],
            "added": [line[:WIDTH] for line in added[:CHANGES]],
        })  # fmt: skip
        self._lines, self._ops = lines, ops


def _text(module: ModuleOp) -> Counter[str]:
    return Counter(line.strip() for line in ir.print_ir(module).splitlines())


def _counts(module: ModuleOp) -> Counter[str]:
    return Counter(op.name for function in ir.functions(module) for op in function.body.block.ops)
