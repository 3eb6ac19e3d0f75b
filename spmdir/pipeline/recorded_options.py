"""Read and write `spmd.decided_by`: the options of `propagate` that decided a function.

Later passes and reports use topology, costs, memory and overlap. The attribute contains those that differ from their
defaults, and a digest of the table of costs, because the file may change. With symbolic sizes, it contains all options,
because bind-sizes may decide again. Options of a `Pipeline` are never added: they may be for another machine.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection
from typing import Any, Literal

import attrs
from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from spmdir.core.byte_size import Size
from spmdir.core.errors import ParseError, print_remark
from spmdir.dialects.locations import location_of
from spmdir.dialects.machine_attribute import Machine, recorded_topology
from spmdir.dialects.stage import recorded_stage
from spmdir.pipeline.options import changed_options, make_pass
from spmdir.pipeline.pipeline import Pipeline, Step, parse_steps
from spmdir.reshard.topology import Topology, with_costs

NOTE = "spmd.decided_by"
"""The attribute of a function with the text of the propagate step that decided it, if that had options."""

MACHINE = ("topology", "costs", "memory")
"""The options for the machine that a function is decided for."""


Memory = Literal["auto", "least"] | Size | None
"""The type of a memory limit: `auto` for the memory of the topology, `least`, a size, or None for no limit."""


def note_options(function: FuncOp, decided_by: ModulePass, has_open_sizes: bool) -> None:
    """Write the pass that decided `function` to its attribute, replacing any earlier one.

    The text has the options that differ from their defaults: all of them if `has_open_sizes`, or else those that later
    passes use. Without such options, there is no attribute.
    """
    function.attributes.pop(NOTE, None)
    noted = (*MACHINE, "costs-digest", "overlap", "imbalance")
    options = [option for option in changed_options(decided_by) if has_open_sizes or option[0] in noted]
    if options:
        function.attributes[NOTE] = StringAttr(str(Step(decided_by.name, tuple(options))))


def deciding_pass(function: FuncOp, pipeline: Pipeline) -> ModulePass:
    """Return the pass that decided `function`, from its attribute, or by default propagate without options.

    Args:
        pipeline: the pipeline with the passes and topologies of the attribute, and with the files that may be read.

    Raises:
        ParseError: the attribute is not the text of a propagate step, or names another file; located.
    """
    decided_by: Any = _noted_pass(function, pipeline)
    topology = recorded_topology(function)
    _check_files(function, decided_by, MACHINE if topology is None else ("costs",), pipeline)
    if topology is None:
        return pipeline.resolved(decided_by)
    return dataclasses.replace(decided_by, topology=topology)


def is_for_shared_messages(function: FuncOp, pipeline: Pipeline) -> bool:
    """Return whether `function` was decided with `overlap=messages`: without the latency of shared messages."""
    decided_by: Any = _noted_pass(function, pipeline)
    return decided_by.overlap == "messages"


def imbalance_of(function: FuncOp, pipeline: Pipeline) -> float:
    """Return the imbalance of experts that propagate assumed for `function`."""
    decided_by: Any = _noted_pass(function, pipeline)
    return decided_by.imbalance


def _noted_pass(function: FuncOp, pipeline: Pipeline) -> ModulePass:
    """Return the pass in the attribute of a function, or by default propagate without options.

    Raises:
        ParseError: the attribute is not the text of a propagate step; located.
    """
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
    """Raise ParseError if an option of `decided_by` is a file that `pipeline` does not name.

    Programs may be untrusted, so their text alone must not open files.
    """
    for option in options:
        value = getattr(decided_by, option)
        if _is_file(option, value) and value not in _files(pipeline):
            raise ParseError(
                f"{NOTE} names the file '{value}'; expected it as an option, since files named in a program "
                f"are not opened: give it to spmd-opt as `--{option} {value}`, to other tools as `-p "
                f'"lower-reshard{{{option}={value}}}"`, or in Python as `Pipeline(…, {option}=…)`',
                location_of(function),
            )


def _is_file(option: str, value: Any) -> bool:
    """Return whether the value of an option is the path of a file."""
    if option == "topology":
        return isinstance(value, str) and value.endswith(".toml")
    return option == "costs" and value != ""


def _files(pipeline: Pipeline) -> set[str]:
    """Return the files that `pipeline` names."""
    values = [value for step in pipeline.steps for option, value in step.options if _is_file(option, value)]
    values += [
        os.fspath(option) for option in (pipeline.costs, pipeline.topology) if isinstance(option, (str, os.PathLike))
    ]
    return set(values)


def memory_limit(memory: Literal["auto", "least"] | float | None, topology: Topology) -> float:
    """Return the memory limit of a rank in bytes, for the value of an option `memory`: 0 for `least`, inf for None."""
    if memory is None:
        return math.inf
    return {"auto": topology.memory, "least": 0.0}[memory] if isinstance(memory, str) else memory


def machine_of(
    function: FuncOp,
    pipeline: Pipeline,
    topology: Topology | str = "auto",
    costs: str = "",
    memory: Literal["auto", "least"] | float | None = "auto",
) -> Machine:
    """Return the machine of options, or by default the one that `function` was decided for.

    Args:
        topology: `auto`, or a machine that replaces that of propagate, including its measured times and memory limit.
        costs: a file of measured times that replaces the file of propagate.
        memory: `auto`, or a limit that replaces that of propagate.

    Raises:
        SpmdirError: the machine is unknown, or a file cannot be read.
    """
    if not isinstance(topology, str) or topology != "auto":
        machine_topology = with_costs(pipeline.find_topology(topology), costs)
        machine_topology = attrs.evolve(machine_topology, imbalance=imbalance_of(function, pipeline))
        return Machine(machine_topology, memory_limit(memory, machine_topology))
    noted = _noted_machine(function, pipeline, not costs)
    machine_topology = with_costs(noted.topology, costs)
    return Machine(machine_topology, noted.memory if memory == "auto" else memory_limit(memory, machine_topology))


def remark_other_machine(function: FuncOp, machine: Machine, name: str, pipeline: Pipeline) -> None:
    """Print a remark to stderr if the pass `name` uses another topology or table of costs than propagate."""
    decided_by: Any = _noted_pass(function, pipeline)
    noted = recorded_topology(function)
    expected = decided_by.topology if noted is None else noted.name
    if recorded_stage(function) is not None and expected != machine.topology.name:
        _remark_other(function, name, machine.topology.name, expected)
    remark_other_costs(function, decided_by, machine.topology, name)


def remark_noted_costs(function: FuncOp, topology: Topology, name: str, pipeline: Pipeline) -> None:
    """Print a remark to stderr if the table of costs of `topology` is not the one in the attribute of `function`."""
    remark_other_costs(function, _noted_pass(function, pipeline), topology, name)


def remark_other_costs(function: FuncOp, decided_by: Any, topology: Topology, name: str) -> None:
    """Print a remark to stderr if the table of costs of `topology` is not the table that `decided_by` recorded.

    Without a recorded table, there is no remark.
    """
    digest = topology.costs.digest if topology.costs else ""
    if decided_by.costs_digest not in ("", digest):  # "" is no recorded table
        prices = f"a table of costs with digest {digest}" if digest else "no table of costs"
        expected = (
            f"{decided_by.costs} with digest {decided_by.costs_digest}; run propagate again, or give the same table"
        )
        _remark_other(function, name, prices, expected)


def _remark_other(function: FuncOp, name: str, actual: str, expected: str) -> None:
    """Print a remark that the pass `name` uses another topology or table than propagate."""
    text = f"{name} uses {actual}, but propagate used {expected}"
    print_remark(text, location_of(function))


def _noted_machine(function: FuncOp, pipeline: Pipeline, with_noted_costs: bool) -> Machine:
    """Return the machine in the attributes of `function`, or the default machine.

    Args:
        with_noted_costs: whether to read the table of costs that propagate used.
    """
    decided_by: Any = _noted_pass(function, pipeline)
    topology = recorded_topology(function)
    files = (("topology",) if topology is None else ()) + (("costs",) if with_noted_costs else ())
    _check_files(function, decided_by, files, pipeline)
    topology = topology or pipeline.find_topology(decided_by.topology)
    topology = with_costs(topology, decided_by.costs if with_noted_costs else "")
    topology = attrs.evolve(topology, imbalance=decided_by.imbalance)
    return Machine(topology, memory_limit(decided_by.memory, topology))
