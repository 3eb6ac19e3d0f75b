"""The step of a rank that reports of times are about: the localized program, priced and run in its order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from spmdir.analysis.live_memory import LiveMemory, live_memory
from spmdir.analysis.memory_classes import memory_classes
from spmdir.analysis.module_paths import module_paths
from spmdir.analysis.scheduling.rank_program import rank_program
from spmdir.core.collector import collector_paused
from spmdir.core.mesh import Mesh
from spmdir.core.progress import say
from spmdir.dialects import ir
from spmdir.pipeline.finish import bind_examples, localize
from spmdir.pipeline.noted_options import machine_of
from spmdir.pipeline.pipeline import Pipeline
from spmdir.reshard.topology import Topology
from spmdir.schedule.simulate import Execution, simulate


@attrs.frozen(eq=False)
class RankStep:
    """One step of a rank.

    Attributes:
        function: the localized program.
        machine: what prices are of.
        units: the ops of each task.
        kinds: what values are held for.
        paths: op or argument → the path of its module.
        execution: the tasks as they run, in program order.
    """

    function: FuncOp
    mesh: Mesh
    machine: Topology
    units: Sequence[Sequence[Operation]]
    kinds: Mapping[SSAValue, str]
    paths: Mapping[Operation | SSAValue, str]
    memory: LiveMemory
    execution: Execution


def rank_step(module: ModuleOp, topology: Topology | str | None, pipeline: Pipeline) -> RankStep:
    """Return how a rank runs `module`, at any stage after import; what it still needs is run on a copy.

    Symbolic sizes are the examples of these.

    Args:
        topology: what the mesh runs on, as in `comm_report`.

    Raises:
        UnsupportedError, ParseError: there is no such topology.
        SpmdirError: the module cannot be partitioned.
    """
    with collector_paused(), pipeline.rules:
        module = localize(bind_examples(module, pipeline), pipeline)
        function, chosen = ir.main_function(module), (pipeline.topology or "auto") if topology is None else topology
        machine = machine_of(function, pipeline, chosen, os.fspath(pipeline.costs or "")).topology
        mesh, kinds = ir.mesh(module), memory_classes(function, pipeline.rules)
        say("pricing the program of a rank")
        memory = live_memory(function, mesh, pipeline.rules, kinds)
        paths = module_paths(function)
        program, units = rank_program(function, mesh, pipeline.rules, machine, memory, paths)
        return RankStep(function, mesh, machine, units, kinds, paths, memory, simulate(program))
