"""What a plan can be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.plans.resolve import plan_for, resolve
from tests.plans.planned import MLP

MESH = Mesh({"dp": 2, "tp": 2})
TEXT = 'keep = ["tp"]\n\n[shardings]\n"up.weight" = "tp: S(0)"\n'


def test_a_text_a_file_and_a_plan_are_one_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(TEXT)
    for given in (TEXT, path, str(path), resolve(TEXT, MLP(), MESH)):
        assert str(resolve(given, MLP(), MESH)) == TEXT


def test_shardings_may_be_placements_of_dtensor_and_of_a_torch_mesh() -> None:
    given = {"up.weight": (Replicate(), Shard(-2)), "down.weight": {"tp": "S(1)"}, "up.bias": None, "down.bias": ""}
    plan = resolve(given, MLP(), MESH)
    assert str(plan) == (
        '[shardings]\n"up.weight" = "tp: S(0)"\n"down.weight" = "tp: S(1)"\n"up.bias" = "?"\n"down.bias" = ""\n'
    )
    assert resolve(None, MLP(), MESH) == ShardingPlan()


def test_tied_weights_go_under_either_name() -> None:
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False))
    model[1].weight = model[0].weight
    for given in ({"1.weight": "tp: S(0)"}, {"1.*": "tp: S(0)"}, {"0.weight": "tp: S(0)"}):
        plan = resolve(given, model, MESH)
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        step, state = spmdir.training_step(model, lambda m, x: m(x).sum(), optimizer)
        graph = torch.fx.experimental.proxy_tensor.make_fx(step)(state, torch.arange(4))  # type: ignore
        module = spmdir.import_fx(graph, MESH, plan)
        assert str(spmdir.print_ir(module)).count("tp: S(0)") == 4  # parameter, momentum, and both renewed


WRONG = [
    (3, "plan is 3 of type int; expected a dict"),
    ({"up.wieght": "dp: S(0)"}, "sharding is given for 'up.wieght'"),
    ("missing.toml", "cannot read the plan missing.toml: No such file"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_what_is_no_plan_is_an_error(given: object, message: str) -> None:
    program = torch.export.export(MLP(), (torch.ones(4, 8),))
    with pytest.raises(SpmdirError, match=message):
        spmdir.import_fx(program, MESH, resolve(given, MLP(), MESH))


def test_a_recipe_needs_a_model() -> None:
    def step(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, state

    with pytest.raises(
        SpmdirError, match=r"to use a recipe, call spmdir.placement.sharding_plan\(model, mesh, 'fsdp'\)"
    ):
        plan_for("fsdp", step, MESH)
