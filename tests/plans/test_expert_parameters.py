"""Recipes for mixtures of experts: the parameters that they shard by expert, and the steps of the resulting plans."""

from __future__ import annotations

import textwrap

import pytest
import torch
from torch import nn

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.plans.expert_parameters import expert_parameters
from spmdir.plans.resolve import resolve
from tests.models.test_expert_training import MODELS, build, exact_loss_of, token_ids
from tests.plans.planned import planned

DENSE = ("*.q_proj.weight", "*.gate.weight", "*.experts.gate_up_proj", "*.experts.down_proj")


class Grouped(nn.Module):
    """A layer as in torchtitan: its experts have one weight for all, and no `ep_plan`."""

    def __init__(self, experts: int = 4):
        super().__init__()
        self.router, self.experts = nn.Linear(8, experts), nn.Module()
        self.experts.w1 = nn.Parameter(torch.zeros(experts, 8, 16))
        self.experts.w2 = nn.Parameter(torch.zeros(experts, 16, 8))
        self.experts.scale = nn.Parameter(torch.zeros(8))


PLANS = {
    ("ep", Mesh({"ep": 2})): """
        keep = ["ep: experts.w1", "ep: experts.w2"]

        [shardings]
        "input:*" = "ep: S(0)"
        "router.weight" = ""
        "router.bias" = ""
        "experts.w1" = "ep: S(0)"
        "experts.w2" = "ep: S(0)"
        "experts.scale" = ""
        """,
    ("fsdp*ep", Mesh({"ep": 2})): """
        keep = ["ep: experts.w1", "ep: experts.w2"]

        [shardings]
        "input:*" = "ep: S(0)"
        "router.weight" = "ep: S(0)"
        "router.bias" = "ep: S(0)"
        "experts.w1" = "ep: S(0)"
        "experts.w2" = "ep: S(0)"
        "experts.scale" = "ep: S(0)"
        """,
    ("fsdp*ep", Mesh({"dp": 2, "ep": 2})): """
        keep = ["ep: experts.w1", "ep: experts.w2"]

        [shardings]
        "input:*" = "dp: S(0), ep: S(0)"
        "router.weight" = "dp: S(0), ep: S(0)"
        "router.bias" = "dp: S(0), ep: S(0)"
        "experts.w1" = "ep: S(0), dp: S(2)"
        "experts.w2" = "ep: S(0), dp: S(1)"
        "experts.scale" = "dp: S(0), ep: S(0)"
        """,
    ("zero1*ep", Mesh({"dp": 2, "ep": 2})): """
        keep = ["ep: experts.w1", "ep: experts.w2"]

        [shardings]
        "input:*" = "dp: S(0), ep: S(0)"
        "router.weight" = "dp: S(0), ep: S(0)"
        "router.bias" = "dp: S(0), ep: S(0)"
        "experts.w1" = "ep: S(0), dp: S(2)"
        "experts.w2" = "ep: S(0), dp: S(1)"
        "experts.scale" = "dp: S(0), ep: S(0)"
        "parameters.router.weight" = ""
        "parameters.router.bias" = ""
        "parameters.experts.w1" = "ep: S(0)"
        "parameters.experts.w2" = "ep: S(0)"
        "parameters.experts.scale" = ""
        """,
}


@pytest.mark.parametrize(("recipe", "mesh"), PLANS)
def test_experts_are_sharded_by_expert_and_other_parameters_by_the_other_words(recipe: str, mesh: Mesh) -> None:
    plan = resolve(recipe, Grouped(), mesh)
    assert str(plan).strip() == textwrap.dedent(PLANS[recipe, mesh]).strip()
    assert resolve(str(plan), Grouped(), mesh).keep == plan.keep


@pytest.mark.parametrize("name", MODELS)
def test_the_ep_plan_and_the_tp_plan_of_a_model_are_used(name: str) -> None:
    plan = resolve("fsdp*tp*ep", build(name), Mesh({"dp": 2, "tp": 2, "ep": 2}))
    experts = "model.layers.*.mlp.experts"
    assert plan.keep == ("tp", f"ep: {experts}.gate_up_proj", f"ep: {experts}.down_proj")
    assert str(plan.shardings[f"{experts}.gate_up_proj"]).startswith("ep: S(0), tp: Strided(1, 2), dp: ")
    assert str(plan.shardings[f"{experts}.down_proj"]) == "ep: S(0), dp: S(1), tp: S(2)"


def test_an_ep_plan_takes_precedence_over_names() -> None:
    model = Grouped()
    model.ep_plan = {"experts.w?": "grouped_gemm", "experts": "ep_dispatch_experts"}  # type: ignore
    assert expert_parameters(model) == ["experts.w1", "experts.w2"]
    model.ep_plan = {"experts.w2": "grouped_gemm"}  # type: ignore
    assert expert_parameters(model) == ["experts.w2"]


WRONG = {
    "no experts": (nn.Linear(4, 4), Mesh({"ep": 2}), "ep finds no experts in Linear; expected an ep_plan"),
    "ranks": (Grouped(4), Mesh({"ep": 8}), "'experts.w1' has 4 experts, which the 8 ranks of axis 'ep' do not divide"),
}


@pytest.mark.parametrize("name", WRONG)
def test_experts_that_cannot_be_sharded_are_an_error(name: str) -> None:
    model, mesh, message = WRONG[name]
    with pytest.raises(SpmdirError, match=message):
        resolve("ep", model, mesh)


def test_a_kept_name_that_matches_nothing_is_an_error() -> None:
    program = torch.export.export(nn.Linear(4, 4), (torch.ones(4, 4),))
    plan = 'keep = ["ep: wieght"]\n[shardings]\nweight = "ep: S(0)"\n'
    with pytest.raises(SpmdirError, match="`keep` has the entry 'ep: wieght', which matches no argument; expected"):
        spmdir.import_fx(program, Mesh({"ep": 2}), plan)


CASES = [
    ("mixtral", "ep", {"ep": 4}),
    ("qwen3", "fsdp*ep", {"dp": 2, "ep": 2}),
    ("deepseek", "fsdp*tp*ep", {"dp": 2, "ep": 2, "tp": 2}),
    ("mixtral", "fsdp*tp*ep", {"dp": 2, "tp": 2, "ep": 2}),
    ("deepseek", "fsdp*ep", {"ep": 4}),
]


@pytest.mark.parametrize(("name", "recipe", "mesh"), CASES)
def test_a_step_does_not_gather_experts_and_equals_one_device(name: str, recipe: str, mesh: dict[str, int]) -> None:
    step = planned(recipe, build(name), exact_loss_of, (token_ids(4, 5),), Mesh(mesh))
    assert step.error < 1e-12
    gathered = [line for line in step.collectives("all_gather") if ".mlp.experts." in line]
    assert all("ep" not in line.partition(" on [")[2].partition("]")[0] for line in gathered)
