"""What a Python prompt shows of a value of each class that docs/api.md lists, and of what functions there return."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.checking.placements.check_placement import PlacementReport, Verdict
from spmdir.checking.rules.report import RuleReport
from spmdir.core.errors import CLASSES, SpmdirErrors
from spmdir.pipeline.pipeline import Pipeline
from spmdir.report.summary import summary
from spmdir.reshard.collectives import SHIPPED
from spmdir.reshard.measured_times import Costs
from spmdir.reshard.topology import TOPOLOGIES
from spmdir.rules.rule_set import default
from spmdir.runtime.training import TrainingStep
from spmdir.serving import Limits, Sampling

PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
BASES = {"Placement", "ShardPlacement", "PartialPlacement", "PackedPlacement", "KeepsSource"}
"""Classes of which there are values of derived classes alone."""

OF_A_RUN = {"JointProgram", "Message", "RankPrograms", "Request", "RequestQueue", "Served", "Site"}
"""Classes whose values a run on ranks, or lowering, makes."""

TEXT = """spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}, %w: tensor<8x8xf32>)
    -> tensor<8x8xf32> {
  %y = aten.mm(%x, %w) : tensor<8x8xf32>
  return %y : tensor<8x8xf32>
}
"""
MESH = spmdir.Mesh({"dp": 2, "tp": 4}, intra_node=("tp",))
META = spmdir.placement.TensorMeta((8, 8), "f32")


def decided() -> ModuleOp:
    return spmdir.run_passes(spmdir.parse(TEXT), "propagate")


def plugin() -> spmdir.plugins.Plugin:
    return spmdir.plugins.Plugin("own", "digest")


def step() -> TrainingStep:
    model = torch.nn.Linear(4, 4)
    return spmdir.training_step(model, lambda model, x: model(x).sum(), torch.optim.SGD(model.parameters(), lr=0.1))[0]


def parallel() -> spmdir.Parallel:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]
    try:
        return spmdir.parallelize(torch.nn.Linear(4, 4), spmdir.Mesh({"dp": 1}), {}, (torch.ones(2, 4),))
    finally:
        dist.destroy_process_group()


def measured_step() -> spmdir.report.MeasuredStep:
    return spmdir.report.MeasuredStep((0.001,), (0.0,), 0.002, 0.0, 1.0, (), (), 1, 1, Costs("", ()))


PROGRAM_TIME = spmdir.report.ProgramTime("decode", 4, 1, 2e-3, {"memory": 1e-3}, 1.5e6)

SHOWN: dict[str, tuple[Callable[[], object], str]] = {
    "Mesh": (lambda: MESH, "Mesh({'dp': 2, 'tp': 4}, intra_node=('tp',))"),
    "Sharding": (lambda: spmdir.Sharding([("dp", spmdir.S(0))]), "<Sharding: dp: S(0)>"),
    "Sharding of nothing": (spmdir.Sharding, "<Sharding: >"),
    "placements": (lambda: [spmdir.S(0), spmdir.P(), spmdir.R], "[Shard(dim=0), Partial(op='sum'), Replicate()]"),
    "ShardingPlan": (lambda: spmdir.placement.ShardingPlan({"w": "tp: S(0)"}), '[shardings]\n"w" = "tp: S(0)"'),
    "ShardingPlan of nothing": (spmdir.placement.ShardingPlan, "<ShardingPlan: >"),
    "Pipeline": (lambda: Pipeline("cse,localize"), "Pipeline('cse,localize')"),
    "Pipeline with a plug-in": (
        lambda: Pipeline("cse", plugins=[plugin()]),
        "Pipeline('cse', plugins=(<Plugin 'own'>,",
    ),
    "Plugin": (plugin, "<Plugin 'own'>"),
    "Parallel": (parallel, "<Parallel model: rank 0 of the mesh <dp = 1> on cpu, 2 tensors of state>"),
    "ParallelOptions": (lambda: spmdir.ParallelOptions(cache="decided"), "{'cache': 'decided'}"),
    "TrainingStep": (step, "<TrainingStep of Linear: micro_batches=1>"),
    "CommReport": (lambda: spmdir.report.comm_report(decided()), "collective"),
    "MemoryReport": (lambda: spmdir.report.memory_report(decided()), "peak of live memory"),
    "ScheduleReport": (lambda: spmdir.report.schedule_report(decided()), "step of a rank"),
    "CostTable": (lambda: spmdir.report.cost_table(decided()), "module"),
    "RankComparison": (lambda: spmdir.RankComparison((0,), (), None), "RankComparison("),
    "ExpertReport": (lambda: spmdir.report.expert_report(decided()), "<ExpertReport: the program has no experts"),
    "RouterLoad": (lambda: spmdir.report.RouterLoad("%order", 1, ("ep",), 2, 8, 4, 2, 1.25), "RouterLoad(name="),
    "Limits": (lambda: Limits(2, 8, [4], 61, 4), "Limits(batch=2, max_length=8"),
    "Sampling": (lambda: Sampling(seed=1), "Sampling(temperature=0.0"),
    "ServingReport": (
        lambda: spmdir.report.ServingReport((PROGRAM_TIME,), 8, 1e6, 64.0, 1024, 2e6),
        "program  sequences",
    ),
    "ProgramTime": (lambda: PROGRAM_TIME, "ProgramTime(name='decode'"),
    "MeasuredStep": (measured_step, "<MeasuredStep: measured step of a rank 2 ms"),
    "Summary": (lambda: summary(decided(), Pipeline()), "mesh        dp = 2, tp = 4"),
    "Difference": (lambda: spmdir.report.diff(decided(), decided()), " "),
    "Explanations": (lambda: spmdir.report.explain(spmdir.parse(TEXT), "%y"), "%y = aten.mm : 8x8xf32"),
    "Explanation": (lambda: spmdir.report.explain(spmdir.parse(TEXT), "%y").values[0], "%y = aten.mm : 8x8xf32"),
    "ReshardPlan": (
        lambda: spmdir.plan_reshard((8, 8), "f32", "dp: S(0)", "", MESH),
        "<ReshardPlan: all_gather on [dp] dim 0>",
    ),
    "Topology": (lambda: TOPOLOGIES["h100x8"], "Topology(name='h100x8', intra_bandwidth=3600"),
    "TensorPicture": (lambda: spmdir.report.visualize("8x8xf32 <dp: S(0)>", MESH), "8x8xf32"),
    "TensorMeta": (lambda: META, "TensorMeta((8, 8), 'f32')"),
    "op_strategies": (lambda: spmdir.rules.op_strategies("aten.neg", [META], {}, 2)[:1], "(<Strategy: (R) -> (R)>,)"),
    "using_rules": (lambda: Pipeline("").rules, "<RuleSet of "),
    "PlacementReport": (
        lambda: PlacementReport((Verdict("S(0)", 5, 9),)),
        "<PlacementReport: S(0): 5 laws hold (9 examples)>",
    ),
    "RuleReport": (lambda: RuleReport(()), "<RuleReport: op  samples"),
    "Edge": (lambda: spmdir.placement.Edge(torch.neg, target="R", by="all_gather"), "<Edge to R: all_gather>"),
    "ErrorBound": (lambda: spmdir.placement.ErrorBound(0.5), "ErrorBound(factor=0.5, norm="),
    "EdgeState": (spmdir.placement.EdgeState, "EdgeState(shape=None, dtype=None, initial='zeros'"),
    "SpmdirError": (lambda: spmdir.SpmdirError("wrong"), "SpmdirError('wrong')"),
    **{kind.__name__: (partial(kind, "wrong"), f"{kind.__name__}('wrong')") for kind in CLASSES.values()},
    "SpmdirErrors": (lambda: SpmdirErrors([spmdir.SpmdirError("wrong")]), "SpmdirErrors("),
    "SpmdirWarning": (lambda: spmdir.errors.SpmdirWarning("look"), "SpmdirWarning('look')"),
    "Location": (lambda: spmdir.errors.Location("a.mlir", 1, 2), "Location(file='a.mlir', line=1, column=2)"),
    "Strategy": (lambda: spmdir.rules.op_strategies("aten.neg", [META], {}, 2)[0], "<Strategy: (R) -> (R)>"),
    "Dropped": (lambda: spmdir.rules.op_strategies("aten.sort", [META], {}, 2, why=True)[-1], "<Dropped"),
    "RuleSet": (default, "<RuleSet of "),
    "OpRule": (lambda: default().instantiate(default().infer_call("aten.neg", (META,), {})), "<OpRule"),
    "CollectiveSpec": (lambda: SHIPPED[0], "CollectiveSpec 'slice'"),
    "Traffic": (lambda: SHIPPED[0].traffic, "<Traffic: slice>"),
    "Clause": (lambda: spmdir.placement.ON, "Clause(keyword='on'"),
    "Sizes": (lambda: spmdir.placement.Sizes(4, 1, 1), "Sizes(group=4"),
    "DimPartition": (lambda: spmdir.placement.DimPartition(0, 4, (), (), ()), "DimPartition(dim=0"),
}
"""Public class, or what else is shown → what makes a value, and what its text begins with."""


def test_there_is_a_value_of_each_public_class() -> None:
    listed = re.findall(r"auto(?:class|exception):: (?:[\w.]+\.)?(\w+)", PAGE)
    assert len(listed) > 20 and {*listed} - BASES - OF_A_RUN <= SHOWN.keys()


@pytest.mark.parametrize("name", SHOWN)
def test_a_prompt_shows_a_text_that_one_can_read(name: str) -> None:
    made, beginning = SHOWN[name]
    text = repr(made())
    assert text.startswith(beginning) and text == text.rstrip("\n")
    assert " at 0x" not in text and " object " not in text
    assert all(len(line) < 640 for line in text.splitlines())
