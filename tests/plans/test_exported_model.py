"""Recipes for exported programs, which keep names and kinds of modules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from spmdir.core.mesh import Mesh
from spmdir.importer.pt2_archive import load_pt2
from spmdir.plans.exported_model import exported_model
from spmdir.plans.resolve import sharding_plan


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.up_proj, self.down_proj = nn.Embedding(16, 8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.head = nn.Linear(8, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.down_proj(self.up_proj(self.table(x)).relu()))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> torch.export.ExportedProgram:
    path = str(tmp_path_factory.mktemp("exported") / "mlp.pt2")
    torch.export.save(torch.export.export(Mlp(), (torch.zeros(4, dtype=torch.long),)), path)
    return load_pt2(path)


@pytest.mark.parametrize("recipe", ["ddp", "fsdp(dp)", "fsdp(dp)*tp", "hsdp(dp,tp)", "auto"])
def test_a_recipe_is_the_plan_that_it_is_for_the_model(recipe: str, program: torch.export.ExportedProgram) -> None:
    mesh = Mesh({"dp": 2, "tp": 2})
    assert str(sharding_plan(exported_model(program), mesh, recipe)) == str(sharding_plan(Mlp(), mesh, recipe))
