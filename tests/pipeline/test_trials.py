"""Pipelines that a pass runs on copies of its program."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from spmdir.dialects import ir
from spmdir.dialects.context import IRContext
from spmdir.pipeline import trials
from spmdir.pipeline.pass_table import PASSES
from spmdir.pipeline.pipeline import Pipeline
from spmdir.pipeline.trials import run_trial

PROGRAM = """
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<4x4xf32> {
  %y = aten.relu(%x) : tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}
"""


def test_a_trial_has_what_its_context_has_and_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts: list[IRContext] = []

    @dataclass(frozen=True)
    class Probe(ModulePass):
        """Notes the context that it runs in."""

        name = "probe"

        def apply(self, ctx: Context, op: ModuleOp) -> None:
            assert isinstance(ctx, IRContext)
            contexts.append(ctx)

    monkeypatch.setitem(PASSES, "probe", Probe)  # type: ignore[arg-type]  # a Mapping to others
    context = Pipeline().context()
    context.rewrites += ("one of the caller",)
    context.conditions["mine"] = len
    module = ir.parse(PROGRAM)
    before = ir.print_ir(module)
    run_trial(context, module.clone(), "probe,propagate")
    (seen,) = contexts
    assert seen.rules is context.rules
    assert (seen.rewrites, seen.conditions, seen.collectives) == (
        context.rewrites,
        context.conditions,
        context.collectives,
    )
    assert (seen.trials, [one.steps for one in context.trials]) == ([], ["probe,propagate"])
    assert ir.print_ir(module) == before


def test_trials_are_added_up_by_their_steps() -> None:
    runs = [trials.TrialRun("expand", 1.0), trials.TrialRun("localize", 0.5), trials.TrialRun("expand", 2.0)]
    assert trials.total_by_steps(runs) == {"expand": (2, 3.0), "localize": (1, 0.5)}
