"""Partition PyTorch graphs over a device mesh: an SPMD IR with explicit shardings, and the passes over it.

The public names are imported when first used, so that `import spmdir` costs neither torch nor xDSL.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:  # what type checkers see; the same names as in _HOMES
    from spmdir.checking.placements import check_placement as check_placement
    from spmdir.checking.rules import check_rules as check_rules
    from spmdir.core.errors import SpmdirError as SpmdirError
    from spmdir.core.errors import UnsupportedError as UnsupportedError
    from spmdir.core.mesh import Mesh as Mesh
    from spmdir.core.placement.base import PartialPlacement as PartialPlacement
    from spmdir.core.placement.base import Placement as Placement
    from spmdir.core.placement.base import ShardPlacement as ShardPlacement
    from spmdir.core.placement.edge import Edge as Edge
    from spmdir.core.placement.edge import State as State
    from spmdir.core.placement.error import UNKNOWN as UNKNOWN
    from spmdir.core.placement.error import Error as Error
    from spmdir.core.placement.joint import JointPlacement as JointPlacement
    from spmdir.core.placement.sharding import Sharding as Sharding
    from spmdir.core.placement.sharding import ShardingLike as ShardingLike
    from spmdir.core.placement.sharding_plan import ShardingPlan as ShardingPlan
    from spmdir.core.placement.standard import P as P
    from spmdir.core.placement.standard import R as R
    from spmdir.core.placement.standard import S as S
    from spmdir.core.placement.standard import parse_placement as parse_placement
    from spmdir.core.placement.tensor import TensorMeta as TensorMeta
    from spmdir.dialects.ir import parse as parse
    from spmdir.dialects.ir import print_ir as print_ir
    from spmdir.explanation.difference import Difference as Difference
    from spmdir.explanation.difference import compare as compare
    from spmdir.explanation.explain import explain as explain
    from spmdir.explanation.explained import Explanation as Explanation
    from spmdir.explanation.explained import Explanations as Explanations
    from spmdir.explanation.what_if import what_if as what_if
    from spmdir.importer.constrain import constrain as constrain
    from spmdir.importer.importer import import_fx as import_fx
    from spmdir.lowering.compiled import compile_program as compile_program
    from spmdir.lowering.emit import lower_to_fx as lower_to_fx
    from spmdir.pictures.visualize import TensorPicture as TensorPicture
    from spmdir.pictures.visualize import visualize as visualize
    from spmdir.pipeline.pipeline import Pipeline as Pipeline
    from spmdir.pipeline.pipeline import run_passes as run_passes
    from spmdir.plans.resolve import sharding_plan as sharding_plan
    from spmdir.plugins import Plugin as Plugin
    from spmdir.plugins import load_plugin as load_plugin
    from spmdir.report.communication import CommReport as CommReport
    from spmdir.report.communication import comm_report as comm_report
    from spmdir.report.memory import MemoryReport as MemoryReport
    from spmdir.report.memory import memory_report as memory_report
    from spmdir.report.report_table import ReportTable as ReportTable
    from spmdir.report.report_table import report_table as report_table
    from spmdir.report.schedule import ScheduleReport as ScheduleReport
    from spmdir.report.schedule import schedule_report as schedule_report
    from spmdir.reshard.plan import Plan as Plan
    from spmdir.reshard.plan import plan_reshard as plan_reshard
    from spmdir.reshard.topology import Topology as Topology
    from spmdir.rules.listing import strategies as strategies
    from spmdir.rules.rule_set import load_rules as load_rules
    from spmdir.runtime.backend import backend as backend
    from spmdir.runtime.checkpoint import load_checkpoint as load_checkpoint
    from spmdir.runtime.checkpoint import save_checkpoint as save_checkpoint
    from spmdir.runtime.materialize import materialize as materialize
    from spmdir.runtime.parallel import Parallel as Parallel
    from spmdir.runtime.parallelize import parallelize as parallelize
    from spmdir.runtime.safetensors_slices import load_safetensors as load_safetensors
    from spmdir.runtime.safetensors_slices import save_safetensors as save_safetensors
    from spmdir.runtime.shard_module import shard_module as shard_module
    from spmdir.runtime.sharded_module import programs as programs
    from spmdir.runtime.tensor_parallel import tensor_parallel as tensor_parallel
    from spmdir.runtime.training import training_step as training_step
    from spmdir.simulator.simulate import simulate as simulate

_HOMES = {
    "CommReport": "spmdir.report.communication",
    "Edge": "spmdir.core.placement.edge",
    "State": "spmdir.core.placement.edge",
    "Error": "spmdir.core.placement.error",
    "UNKNOWN": "spmdir.core.placement.error",
    "Difference": "spmdir.explanation.difference",
    "Explanation": "spmdir.explanation.explained",
    "Explanations": "spmdir.explanation.explained",
    "JointPlacement": "spmdir.core.placement.joint",
    "MemoryReport": "spmdir.report.memory",
    "Mesh": "spmdir.core.mesh",
    "P": "spmdir.core.placement.standard",
    "Parallel": "spmdir.runtime.parallel",
    "PartialPlacement": "spmdir.core.placement.base",
    "Pipeline": "spmdir.pipeline.pipeline",
    "Placement": "spmdir.core.placement.base",
    "Plan": "spmdir.reshard.plan",
    "Plugin": "spmdir.plugins",
    "R": "spmdir.core.placement.standard",
    "ReportTable": "spmdir.report.report_table",
    "S": "spmdir.core.placement.standard",
    "ShardPlacement": "spmdir.core.placement.base",
    "ScheduleReport": "spmdir.report.schedule",
    "Sharding": "spmdir.core.placement.sharding",
    "ShardingLike": "spmdir.core.placement.sharding",
    "ShardingPlan": "spmdir.core.placement.sharding_plan",
    "SpmdirError": "spmdir.core.errors",
    "TensorMeta": "spmdir.core.placement.tensor",
    "TensorPicture": "spmdir.pictures.visualize",
    "Topology": "spmdir.reshard.topology",
    "UnsupportedError": "spmdir.core.errors",
    "backend": "spmdir.runtime.backend",
    "check_placement": "spmdir.checking.placements",
    "check_rules": "spmdir.checking.rules",
    "compile_program": "spmdir.lowering.compiled",
    "compare": "spmdir.explanation.difference",
    "comm_report": "spmdir.report.communication",
    "constrain": "spmdir.importer.constrain",
    "explain": "spmdir.explanation.explain",
    "import_fx": "spmdir.importer.importer",
    "load_checkpoint": "spmdir.runtime.checkpoint",
    "load_safetensors": "spmdir.runtime.safetensors_slices",
    "load_plugin": "spmdir.plugins",
    "load_rules": "spmdir.rules.rule_set",
    "lower_to_fx": "spmdir.lowering.emit",
    "materialize": "spmdir.runtime.materialize",
    "memory_report": "spmdir.report.memory",
    "parallelize": "spmdir.runtime.parallelize",
    "parse": "spmdir.dialects.ir",
    "parse_placement": "spmdir.core.placement.standard",
    "plan_reshard": "spmdir.reshard.plan",
    "print_ir": "spmdir.dialects.ir",
    "programs": "spmdir.runtime.sharded_module",
    "report_table": "spmdir.report.report_table",
    "run_passes": "spmdir.pipeline.pipeline",
    "save_checkpoint": "spmdir.runtime.checkpoint",
    "save_safetensors": "spmdir.runtime.safetensors_slices",
    "schedule_report": "spmdir.report.schedule",
    "shard_module": "spmdir.runtime.shard_module",
    "sharding_plan": "spmdir.plans.resolve",
    "simulate": "spmdir.simulator.simulate",
    "strategies": "spmdir.rules.listing",
    "tensor_parallel": "spmdir.runtime.tensor_parallel",
    "training_step": "spmdir.runtime.training",
    "visualize": "spmdir.pictures.visualize",
    "what_if": "spmdir.explanation.what_if",
}
"""Public name → the module that it is imported from."""

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]

if not TYPE_CHECKING:  # a checker that saw this would take every name for one of type Any

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module 'spmdir' has no attribute '{name}'")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})


if "IPython" in sys.modules:
    from spmdir.pictures.notebook import show_modules

    show_modules()
