"""The ops that choose the next token: frequencies, limits, and parts of the vocabulary."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import spmdir
from spmdir.placements.drawn import Drawn
from spmdir.torch_interop.sampling_ops import NO_TOKEN, choose, draw, gumbel_noise

LOGITS = torch.tensor([-0.7, -1.2, -1.6, -3.0, 0.0])
SHARES = LOGITS.softmax(0)
COUNT = 100_000


def settings(count: int, temperature: float, top_k: int = 0, top_p: float = 1.0, seed: int = 0) -> tuple[Tensor, ...]:
    """Return the settings of `count` sequences at different positions."""
    return (
        torch.full((count,), temperature),
        torch.full((count,), top_k),
        torch.full((count,), top_p),
        torch.full((count,), seed),
        torch.arange(count).unsqueeze(1),
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, SHARES),
        ({"temperature": 0.5}, (LOGITS / 0.5).softmax(0)),
        ({"top_k": 3}, SHARES * torch.tensor([1, 1, 0, 0, 1])),
        ({"top_p": 0.7}, SHARES * torch.tensor([1, 0, 0, 0, 1])),  # 0.49 + 0.24 are above 0.7
        ({"top_k": 3, "top_p": 0.5}, torch.tensor([0.0, 0, 0, 0, 1])),  # 0.56 of three tokens, 0.49 of all
        ({"temperature": 0.0, "top_k": 3}, torch.tensor([0.0, 0, 0, 0, 1])),
    ],
)
def test_tokens_have_the_probabilities_of_the_logits(limits, expected):
    values = settings(COUNT, **{"temperature": 1.0, **limits})
    tokens = choose(*draw(LOGITS.expand(COUNT, -1), torch.arange(5), *values, 4), *values)
    frequencies = torch.bincount(tokens, minlength=5) / COUNT
    torch.testing.assert_close(frequencies, expected / expected.sum(), atol=0.006, rtol=0)


def test_noise_depends_on_seed_position_and_token_and_has_no_repeats():
    tokens = torch.arange(50).expand(40, -1)
    noise = torch.cat([gumbel_noise(*settings(40, 1.0, seed=seed)[3:], tokens) for seed in (0, 1, -5, 2**63 - 1)])
    assert noise.unique().numel() > 0.999 * noise.numel()
    assert noise.isfinite().all() and abs(noise.mean() - 0.5772) < 0.05 and abs(noise.std() - 1.2825) < 0.05


def test_parts_of_the_vocabulary_give_the_tokens_of_the_whole():
    torch.manual_seed(0)
    logits, tokens = torch.randn(6, 61), torch.arange(61)
    logits[1, 60] = torch.nan
    logits[2, 3] = logits[2, 50] = 9.0  # the first of equal logits counts
    values = (
        torch.tensor([0.0, 1.0, 0.0, 0.7, 2.0, 1.0]),
        torch.tensor([0, 0, 0, 5, 0, 0]),
        torch.tensor([1.0, 1.0, 1.0, 0.9, 0.6, 1.0]),
        torch.arange(6),
        torch.arange(6).unsqueeze(1),
    )
    whole = choose(*draw(logits, tokens, *values, 16), *values)
    placement = Drawn(0)
    parts = [draw(logits[:, part], tokens[part], *values, 16) for part in (slice(31), slice(31, 58), slice(58, 61))]
    state = placement.identity(*parts[0])
    for part in (parts[2], parts[0], parts[1]):
        state = placement.combine(state, part)
    assert choose(*state, *values).tolist() == whole.tolist()
    assert whole[1] == NO_TOKEN and whole[2] == 3


PROGRAM = """spmd.mesh @mesh <tp = 4>

func.func @f(%l: tensor<3x4099xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}, %temperatures: tensor<3xf32>,
             %k: tensor<3xi64>, %p: tensor<3xf32>, %seeds: tensor<3xi64>, %positions: tensor<3x1xi64>)
    -> (tensor<3xi64> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %t = aten.arange() {end = 4099} : tensor<4099xi64>
  %v, %c = sampling.draw(%l, %t, %temperatures, %k, %p, %seeds, %positions) {candidates = 8} : tensor<3x10xf32>, tensor<3x10xi64>
  %r = sampling.choose(%v, %c, %temperatures, %k, %p, %seeds, %positions) : tensor<3xi64>
  return %r : tensor<3xi64>
}
"""  # noqa: E501


def test_ranks_exchange_candidates_and_no_logits():
    logits = torch.randn(3, 4099)
    values = (torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0, 0, 5]), torch.ones(3), torch.arange(3))
    inputs = [logits, *values, torch.tensor([[3], [1], [8]])]
    pipeline = "inline,propagate{topology=flat},expand,insert-reshard,lower-reshard,localize"
    module = spmdir.parse(PROGRAM)
    spmdir.run_passes(module, pipeline)
    (tokens,) = spmdir.simulate(module, inputs)
    expected = choose(*draw(logits, torch.arange(4099), *inputs[1:], 8), *inputs[1:])
    assert tokens.tolist() == expected.tolist()
    text = spmdir.print_ir(module)
    assert "spmd.convert" in text and "all_gather %l" not in text and "all_to_all %l" not in text
