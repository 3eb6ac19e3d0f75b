"""Read and write `spmd.decided_by`: the options of `propagate` that decided a function.

Later passes and reports use topology, costs, memory and overlap. The attribute holds them where they are not the
default, and a digest of the table of costs, since its file may change. With symbolic sizes it holds all options, since
bind-sizes may have to decide again. The options of a `Pipeline` never complete it: they may be of another machine.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection
from typing import Any, Literal

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from spmdir.core.byte_size import Size
from spmdir.core.errors import ParseError, print_remark
from spmdir.dialects.locations import location_of
from spmdir.dialects.machine_attribute import Machine, written_topology
from spmdir.dialects.stage import written_stage
from spmdir.pipeline.options import changed_options, make_pass
from spmdir.pipeline.pipeline import Pipeline, Step, parse_steps
from spmdir.reshard.topology import Topology, with_costs

NOTE = "spmd.decided_by"
"""The attribute of a function that holds the step of the pipeline that decided it, if that had options."""

MACHINE = ("topology", "costs", "memory")
"""The options that say what a function is decided for."""


Memory = Literal["auto", "least"] | Size | None
"""The type of an option that is what a rank may hold: `auto`, the memory of the topology, `least`, a size or None."""


def note_options(function: FuncOp, decided_by: ModulePass, has_open_sizes: bool) -> None:
    """Note on `function` the pass that decided it, as text; nothing if what is noted has the defaults."""
    function.attributes.pop(NOTE, None)
    noted = (*MACHINE, "costs-digest", "overlap")
    options = [option for option in changed_options(decided_by) if has_open_sizes or option[0] in noted]
    if options:
        function.attributes[NOTE] = StringAttr(str(Step(decided_by.name, tuple(options))))


def deciding_pass(function: FuncOp, pipeline: Pipeline) -> ModulePass:
    """Return the pass that decided `function`, as noted, else propagate with its defaults.

    Args:
        pipeline: whose passes and topologies the note speaks of, and whose files it may name.

    Raises:
        ParseError: the note is not the text of a step of propagate, or names another file; located.
    """
    decided_by: Any = _noted_pass(function, pipeline)
    topology = written_topology(function)
    _check_files(function, decided_by, MACHINE if topology is None else ("costs",), pipeline)
    if topology is None:
        return pipeline.resolved(decided_by)
    return dataclasses.replace(decided_by, topology=topology)


def is_for_shared_messages(function: FuncOp, pipeline: Pipeline) -> bool:
    """Return whether `function` is decided without the latency of messages that a schedule shares."""
    decided_by: Any = _noted_pass(function, pipeline)
    return decided_by.overlap == "messages"


def _noted_pass(function: FuncOp, pipeline: Pipeline) -> ModulePass:
    note = function.attributes.get(NOTE, StringAttr("propagate"))
    try:
        steps = parse_steps(note.data) if isinstance(note, StringAttr) else ()
        noted = [make_pass(step.name, dict(step.options), pipeline.passes) for step in steps]
    except ParseError as error:
        raise error.at(location_of(function), NOTE) from None
    if [step.name for step in steps] != ["propagate"]:
        raise ParseError(f"{NOTE} is {note}; expected the text of propagate and its options", location_of(function))
    return noted[0]


def _check_files(function: FuncOp, decided_by: ModulePass, options: Collection[str], pipeline: Pipeline) -> None:
    """Raise unless `pipeline` names the files in `options` of a noted pass: no text of a program has files read."""
    for option in options:
        value = getattr(decided_by, option)
        if _is_file(option, value) and value not in _files(pipeline):
            raise ParseError(
                f"{NOTE} names the file '{value}', which is not read for a program alone; give it to "
                f'spmd-opt as `--{option} {value}`, to other tools as `-p "lower-reshard{{{option}={value}}}"`, or in '
                f"Python as `Pipeline(…, {option}=…)`",
                location_of(function),
            )


def _is_file(option: str, value: Any) -> bool:
    return (
        value.endswith(".toml")
        if option == "topology" and isinstance(value, str)
        else option == "costs" and value != ""
    )


def _files(pipeline: Pipeline) -> set[str]:
    """Return the files that `pipeline` names."""
    named = [value for step in pipeline.steps for option, value in step.options if _is_file(option, value)]
    named += [
        os.fspath(given) for given in (pipeline.costs, pipeline.topology) if isinstance(given, (str, os.PathLike))
    ]
    return set(named)


def memory_limit(memory: Literal["auto", "least"] | float | None, topology: Topology) -> float:
    """Return the bytes that a rank may hold at once, by an option `memory`."""
    named = {"auto": topology.memory, "least": 0.0}
    return math.inf if memory is None else named[memory] if isinstance(memory, str) else memory


def machine_of(
    function: FuncOp,
    pipeline: Pipeline,
    topology: Topology | str = "auto",
    costs: str = "",
    memory: Literal["auto", "least"] | float | None = "auto",
) -> Machine:
    """Return the machine that options name, else the one that `function` is decided for.

    Args:
        topology: `auto`, or a machine that takes the place of the noted one, its measured times and its memory.
        costs: a file of measured times, which takes the place of the noted one.
        memory: `auto`, or what takes the place of the noted limit.

    Raises:
        SpmdirError: there is no such machine, or a file cannot be read.
    """
    if not isinstance(topology, str) or topology != "auto":
        chosen = with_costs(pipeline.find_topology(topology), costs)
        return Machine(chosen, memory_limit(memory, chosen))
    noted = _noted_machine(function, pipeline, not costs)
    chosen = with_costs(noted.topology, costs)
    return Machine(chosen, noted.memory if memory == "auto" else memory_limit(memory, chosen))


def remark_other_machine(function: FuncOp, found: Machine, name: str, pipeline: Pipeline) -> None:
    """Print a remark to stderr if the pass `name` uses another topology or table of costs than propagate did."""
    decided_by: Any = _noted_pass(function, pipeline)
    noted = written_topology(function)
    expected = decided_by.topology if noted is None else noted.name
    if written_stage(function) is not None and expected != found.topology.name:
        _remark_other(function, name, found.topology.name, expected)
    remark_other_costs(function, decided_by, found.topology, name)


def remark_noted_costs(function: FuncOp, found: Topology, name: str, pipeline: Pipeline) -> None:
    """Print a remark to stderr if the table of costs of `found` is not the one that the text of `function` notes."""
    remark_other_costs(function, _noted_pass(function, pipeline), found, name)


def remark_other_costs(function: FuncOp, decided_by: Any, found: Topology, name: str) -> None:
    """Print a remark to stderr if the table of costs of `found` is not the one that propagate, as noted, expects."""
    digest = found.costs.digest if found.costs else ""
    if decided_by.costs_digest not in ("", digest):
        prices = f"a table of costs with digest {digest}" if digest else "no table of costs"
        expected = f"{decided_by.costs} with digest {decided_by.costs_digest}; propagate again, or give that table"
        _remark_other(function, name, prices, expected)


def _remark_other(function: FuncOp, name: str, found: str, expected: str) -> None:
    text = f"{name} prices by {found}, and propagate decided by {expected}"
    print_remark(text, location_of(function))


def _noted_machine(function: FuncOp, pipeline: Pipeline, with_noted_costs: bool) -> Machine:
    """Return the machine that the text of `function` says, the default one if it says none."""
    decided_by: Any = _noted_pass(function, pipeline)
    topology = written_topology(function)
    files = (("topology",) if topology is None else ()) + (("costs",) if with_noted_costs else ())
    _check_files(function, decided_by, files, pipeline)
    topology = topology or pipeline.find_topology(decided_by.topology)
    topology = with_costs(topology, decided_by.costs if with_noted_costs else "")
    return Machine(topology, memory_limit(decided_by.memory, topology))
