"""The modelled step of a rank: the local program, with prices, executed in program order. Reports are about it."""

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
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.mesh import Mesh
from spmdir.core.progress import say
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import Pipeline
from spmdir.pipeline.recorded_options import machine_of
from spmdir.pipeline.remaining_passes import bind_examples, localize
from spmdir.reshard.topology import Topology
from spmdir.schedule.simulate import Execution, simulate


@attrs.frozen(eq=False)
class RankStep:
    """One step of a rank.

    Attributes:
        function: the local program.
        mesh: its mesh.
        machine: the topology that times are modelled for.
        units: for each task, its ops.
        kinds: value → its kind of memory.
        paths: op or argument → the path of its module.
        memory: the buffers of the program.
        execution: the modelled times of the tasks, in program order.
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
    """Localize a copy of `module`, and model a step of a rank.

    Symbolic sizes have the values of their examples.

    Args:
        module: a program at any stage after import.
        topology: the hardware, as in `comm_report`.
        pipeline: the pipeline whose remaining passes run.

    Raises:
        UnsupportedError, ParseError: the topology does not exist or is invalid.
        SpmdirError: the module cannot be partitioned.
    """
    with collector_paused(), pipeline.rules:
        module = localize(bind_examples(module, pipeline), pipeline)
        function = ir.main_function(module)
        chosen_topology = (pipeline.topology or "auto") if topology is None else topology
        machine = machine_of(function, pipeline, chosen_topology, os.fspath(pipeline.costs or "")).topology
        mesh, kinds = ir.mesh(module), memory_classes(function, pipeline.rules)
        say("pricing the program of a rank")
        memory = live_memory(function, mesh, pipeline.rules, kinds, machine.imbalance)
        paths = module_paths(function)
        program, units = rank_program(function, mesh, pipeline.rules, machine, memory, paths)
        return RankStep(function, mesh, machine, units, kinds, paths, memory, simulate(program))
