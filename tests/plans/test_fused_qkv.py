"""Training steps of query, key and value projections, sharded by columns: the numbers of one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from spmdir.core.mesh import Mesh
from tests.plans.planned import mean_square, planned

HEADS, SIZE = 4, 2
WIDTH = HEADS * SIZE


def _heads(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], HEADS, SIZE).transpose(1, 2)


def _unbound(x: Tensor) -> list[Tensor]:
    return [part.transpose(1, 2) for part in x.view(*x.shape[:2], 3, HEADS, SIZE).unbind(2)]


def _permuted(x: Tensor) -> Sequence[Tensor]:
    return x.view(*x.shape[:2], 3, HEADS, SIZE).permute(2, 0, 3, 1, 4).unbind(0)


def _chunked(x: Tensor) -> list[Tensor]:
    return [_heads(part) for part in x.chunk(3, -1)]


def _split(x: Tensor) -> list[Tensor]:
    return [_heads(part) for part in x.split(WIDTH, -1)]


def _sliced(x: Tensor) -> list[Tensor]:
    return [_heads(x[..., at * WIDTH : (at + 1) * WIDTH]) for at in range(3)]


def _by_heads(x: Tensor) -> Sequence[Tensor]:
    return x.view(*x.shape[:2], HEADS, 3 * SIZE).transpose(1, 2).chunk(3, -1)


FORMS = {
    "view, unbind": _unbound,
    "view, permute": _permuted,
    "chunk": _chunked,
    "split": _split,
    "slices": _sliced,
    "by heads": _by_heads,
}
"""How models take queries, keys and values, each (batch, heads, sequence, size), out of one projection."""

PROJECTIONS: dict[str, Callable[[], nn.Module]] = {
    "bias": lambda: nn.Linear(WIDTH, 3 * WIDTH),
    "no bias": lambda: nn.Linear(WIDTH, 3 * WIDTH, bias=False),
    "Conv1D": lambda: Conv1D(3 * WIDTH, WIDTH),
}


class Attention(nn.Module):
    def __init__(self, form: str, projection: str):
        super().__init__()
        self.before, self.qkv, self.out = nn.Linear(WIDTH, WIDTH), PROJECTIONS[projection](), nn.Linear(WIDTH, WIDTH)
        self.separate = FORMS[form]

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = self.separate(self.qkv(self.before(x)))
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.out(attended.transpose(1, 2).reshape(x.shape))


CASES = [
    *((form, "bias", Mesh({"tp": 2})) for form in FORMS),
    *((form, "no bias", Mesh({"dp": 2, "tp": 2})) for form in FORMS),
    *((form, "Conv1D", Mesh({"tp": 2})) for form in ("view, unbind", "split", "by heads")),
]


@pytest.mark.parametrize(("form", "projection", "mesh"), CASES, ids=lambda one: str(one))
def test_a_step_computes_what_one_device_does_and_uses_the_weight_as_it_is_kept(form, projection, mesh):
    torch.manual_seed(0)
    model, x = Attention(form, projection).double(), torch.randn(4, 4, WIDTH, dtype=torch.float64)
    step = planned({"qkv": "colwise"}, model, mean_square, (x,), mesh)
    assert step.error < 1e-12
    assert "tp: S(" in step.inputs["parameters.qkv.weight"]
    assert not [line for line in step.collectives("all_gather") if "%parameters.qkv.weight" in line]


class SeparateProjections(nn.Module):
    """Two key heads for four query heads, and a feed-forward layer whose gate and input are one matrix."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.gate_up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        keys = self.k(x).view(*x.shape[:2], HEADS // 2, SIZE).transpose(1, 2).repeat_interleave(2, 1)
        attended = nn.functional.scaled_dot_product_attention(_heads(self.q(x)), keys, keys, is_causal=True)
        gate, up = self.gate_up(attended.transpose(1, 2).reshape(x.shape)).chunk(2, -1)
        return self.down(gate.sigmoid() * up)


@pytest.mark.parametrize("gate_up", ["colwise", "packed_colwise"])
def test_fewer_key_heads_than_ranks_keep_their_weight_beside_other_styles(gate_up):
    torch.manual_seed(0)
    model, x = SeparateProjections().double(), torch.randn(4, 4, WIDTH, dtype=torch.float64)
    styles = {"q": "colwise", "k": "colwise", "gate_up": gate_up, "down": "rowwise"}
    step = planned(styles, model, mean_square, (x,), Mesh({"tp": 4}))
    assert step.error < 1e-12
    assert not [line for line in step.collectives("all_gather") if "%parameters" in line]
