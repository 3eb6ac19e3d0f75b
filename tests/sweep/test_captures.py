"""Captures: the copy of a shared trace for a recipe is the program that a trace under its plan would be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spmdir.importer.importer import import_fx
from spmdir.plans.activations import constrained_activations
from spmdir.plans.resolve import sharding_plan
from spmdir.runtime.capture import capture_step
from spmdir.runtime.signature import annotate_updates
from spmdir.runtime.training import training_step
from spmdir.sweep.candidate import RECIPE_AXES, candidates
from spmdir.sweep.captures import CaptureOptions, imported
from spmdir.sweep.workload import ConfiguredModel
from tests.sweep.test_workload import config_file

MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}


@pytest.mark.parametrize("recipe", RECIPE_AXES)
def test_shared_trace_is_the_trace_under_a_plan(recipe: str, tmp_path: Path) -> None:
    workload = ConfiguredModel.read(config_file(tmp_path, **(MIXTRAL if "ep" in recipe else {})))
    candidate = next(candidates(8, 4, [recipe]))
    shared, _ = imported(workload, candidate, CaptureOptions(8, False, False, 2))
    case = workload.case(8, 2)
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-3)
    step, state = training_step(case.model, case.loss, optimizer, compute_dtype=torch.bfloat16)
    plan = sharding_plan(case.model, candidate.mesh, recipe)
    with constrained_activations(case.model, plan):
        capture = capture_step(step.micro_step, state, case.batch, torch.device("cpu"))
    plan = plan.with_inputs(len(capture.state), len(capture.convention.examples))
    own = import_fx(capture.program, candidate.mesh, plan, out_shardings=capture.result_shardings(None))
    annotate_updates(own, capture)
    assert shared.is_structurally_equivalent(own)
