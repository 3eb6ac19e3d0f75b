"""`spmd-translate --import-rank`: the exported program of one rank, compared with that of one device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from spmdir.dialects import ir
from spmdir.simulator.simulate import simulate
from spmdir.tools import spmd_translate

FUNCTIONAL = torch.ops._c10d_functional
SHARDINGS = '[shardings]\nx = "dp: S(0)"\nw1 = "tp: S(1)"\nw2 = "tp: S(0)"\n'


class OneDevice(nn.Module):
    def forward(self, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        return torch.relu(x @ w1) @ w2


class OneRank(nn.Module):
    """The program of a rank, whose group has the name `group`."""

    def __init__(self, group: str, scale: float = 1.0) -> None:
        super().__init__()
        self.group, self.scale = group, scale

    def forward(self, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        result = FUNCTIONAL.wait_tensor(FUNCTIONAL.all_reduce(torch.relu(x @ w1) @ w2, "sum", self.group))
        return result if self.scale == 1.0 else result * self.scale


def save(model: nn.Module, path: Path, *shapes: tuple[int, int]) -> str:
    torch.export.save(torch.export.export(model, tuple(torch.zeros(shape) for shape in shapes)), path)
    return str(path)


def save_rank(folder: Path, group: str, scale: float = 1.0) -> list[str]:
    """Save the program of a rank and a plan, and return the options that import the program."""
    rank = save(OneRank(group, scale), folder / "rank.pt2", (4, 8), (8, 3), (3, 8))
    plan = folder / "plan.toml"
    plan.write_text(SHARDINGS)
    return ["--import-rank", rank, "--mesh", "dp=2,tp=2", "--shardings", str(plan)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(OneDevice(), tmp_path_factory.mktemp("reference") / "one.pt2", (8, 8), (8, 6), (6, 8))


def test_the_imported_program_equals_one_device(
    tmp_path: Path, reference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ranks.mlir"
    assert spmd_translate.main([*save_rank(tmp_path, "mesh:tp"), "--reference", reference, "-o", str(out)]) == 0
    assert "equal: proved for output 0" in capsys.readouterr().err
    x, w1, w2 = torch.randn(8, 8), torch.randn(8, 6), torch.randn(6, 8)
    (result,) = simulate(ir.parse(out.read_text()), [x, w1, w2])
    torch.testing.assert_close(result, OneDevice()(x, w1, w2))


def test_a_numbered_group_has_the_axes_of_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = save_rank(tmp_path, "3")
    assert spmd_translate.main([*options, "--group", "3=tp"]) == 0
    assert "spmd.all_reduce %matmul_1 on [tp] op sum" in capsys.readouterr().out
    assert spmd_translate.main(options) == 1
    assert "pass groups={'3': 'tp'}, or --group 3=tp" in capsys.readouterr().err
    assert spmd_translate.main([*options, "--group", "3=dp"]) == 1
    assert "'_c10d_functional.all_reduce' gets a shard of dimension 0 over dp" in capsys.readouterr().err


def test_a_difference_from_one_device_is_reported_with_exit_status_1(
    tmp_path: Path, reference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spmd_translate.main([*save_rank(tmp_path, "mesh:tp", 0.5), "--reference", reference]) == 1
    captured = capsys.readouterr()
    assert "different: " in captured.err and "0.5" in captured.err
    assert "spmd.all_reduce" in captured.out
