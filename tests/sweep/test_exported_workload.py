"""Exported programs as workloads: their loss, their batch size, and the recipes that find their layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spmdir.core.errors import SpmdirError
from spmdir.sweep.exported_workload import ExportedModel
from spmdir.sweep.sweep import SweepRequest, sweep
from spmdir.sweep.sweep_text import sweep_text
from spmdir.sweep.workload import PythonModel


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up_proj, self.down_proj = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down_proj(F.silu(self.up_proj(self.norm(x))))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)
        self.layers = nn.ModuleList([Block() for _ in range(2)])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Training(Decoder):
    def forward(self, tokens: Tensor, *, labels: Tensor) -> Tensor:
        return F.cross_entropy(super().forward(tokens).flatten(0, 1), labels.flatten())


def save(folder: Path, model: nn.Module, is_dynamic: bool) -> str:
    tokens = torch.zeros(8, 12, dtype=torch.long)
    labels = {"labels": torch.zeros_like(tokens)} if isinstance(model, Training) else {}
    sizes = {0: torch.export.Dim("batch", min=2)}
    names = ("tokens", *labels)
    shapes = dict.fromkeys(names, sizes) if is_dynamic else None
    path = str(folder / "model.pt2")
    torch.export.save(torch.export.export(model, (tokens,), labels, dynamic_shapes=shapes), path)
    return path


def test_prices_are_those_of_the_model(tmp_path: Path) -> None:
    recipes = ("fsdp", "fsdp*tp*sp", "fsdp*cp")
    exported = sweep(SweepRequest.of(ExportedModel.read(save(tmp_path, Training(), True)), 4, 8), recipes)
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "from tests.sweep.test_exported_workload import Training\n"
        "def build(samples):\n"
        "    tokens = torch.zeros(samples, 12, dtype=torch.long)\n"
        "    return Training(), lambda model, x, y: model(x, labels=y), (tokens, tokens)\n"
    )
    model = sweep(SweepRequest.of(PythonModel.read(f"{tmp_path / 'model.py'}:build"), 4, 8), recipes)
    assert [setting.candidate for setting in exported.settings] == [setting.candidate for setting in model.settings]
    assert len(exported.settings) == len(recipes)
    assert exported.parameters == model.parameters
    for first, second in zip(exported.settings, model.settings, strict=True):
        assert first.costs.peak_bytes == pytest.approx(second.costs.peak_bytes, rel=0.01)
        assert first.costs.seconds == pytest.approx(second.costs.seconds, rel=0.01)


def test_program_of_one_batch_size_has_no_micro_batches(tmp_path: Path) -> None:
    workload = ExportedModel.read(save(tmp_path, Training(), False))
    request = SweepRequest.of(workload, 4, memory=8e4)
    assert request.samples == 8
    result = sweep(request, ("fsdp",))
    assert [setting.fits for setting in result.settings] == [False]
    assert "model.pt2 was exported for a batch of 8 samples; expected 4: export it with" in sweep_text(result)


def test_forward_without_a_loss_is_an_error(tmp_path: Path) -> None:
    path = save(tmp_path, Decoder(), False)
    with pytest.raises(SpmdirError, match=r"returns a tensor of shape \[8, 12, 64\]; expected a loss"):
        ExportedModel.read(path)
