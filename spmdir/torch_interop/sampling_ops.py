"""The torch ops that choose the next token of a sequence from its logits, `torch.ops.sampling`.

The noise of a draw is a function of the seed, the position and the token alone. So ranks that have parts of the
vocabulary draw the token that one device draws. A token is drawn by its largest score: its logit divided by the
temperature, plus Gumbel noise. With three tokens, the probabilities 0.5, 0.3, 0.2 and the noise of one position:

    logits      -0.7  -1.2  -1.6
    noise        0.1   1.9   0.3
    scores      -0.6   0.7  -1.3      token 1 is drawn

`draw` reduces logits to *candidates*: [b, 2 + k] values, and the token of each. Column 0 is the logarithm of the sum of
the exponentials of all logits. Column 1 is the largest score. The other columns are the k largest logits, descending.
Logits of candidates are divided by the temperature.
`choose` returns a token by the candidates. The placement `Drawn` combines candidates of parts of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spmdir.placements.drawn import NO_TOKEN

LIBRARY = torch.library.Library("sampling", "DEF")

_STEP = 0x9E3779B97F4A7C15 - 2**64
"""The difference of two states of the generator, splitmix64. Numbers of i64 wrap around."""

_FACTORS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
"""The shifts and factors of splitmix64."""


def draw(
    logits: Tensor,
    tokens: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    candidates: int,
) -> tuple[Tensor, Tensor]:
    """Return the candidates of each sequence: values [b, 2 + candidates], and the token of each.

    The sum and the largest logits are computed only for sequences that are drawn by `top_k` or `top_p`.

    Args:
        logits: [b, v], f32.
        tokens: [v], the token of each logit.
        temperatures: [b], f32; the score of a sequence with 0 is the logit, without noise.
        top_k, top_p: [b], as for `choose`.
        seeds: [b].
        positions: [b, t], the positions of the last tokens of each sequence. The next token has the next position.
    """
    is_filtered = _is_filtered(temperatures, top_k, top_p)
    is_drawn = (temperatures > 0) & ~is_filtered
    on_cpu = logits.device.type == "cpu"
    scores = scaled = logits / torch.where(temperatures > 0, temperatures, 1).unsqueeze(1)
    if not on_cpu or is_drawn.any():
        noise = gumbel_noise(seeds, positions, tokens.expand_as(logits))
        scores = torch.where(is_drawn.unsqueeze(1), scaled + noise, scaled)
    score = scores.amax(1, keepdim=True)  # NaN if a logit is NaN, so no score is equal to it
    best = torch.where(scores == score, tokens, NO_TOKEN).amin(1, keepdim=True)
    total = torch.full_like(score, -torch.inf)
    top, top_tokens = total.repeat(1, candidates), torch.full_like(best, NO_TOKEN).repeat(1, candidates)
    if not on_cpu or is_filtered.any():
        has_none = ~is_filtered.unsqueeze(1)  # sequences that need no sum and no largest logits
        total = scaled.logsumexp(1, keepdim=True).masked_fill(has_none, -torch.inf)
        values, places = scaled.topk(min(candidates, logits.shape[1]))
        top[:, : values.shape[1]] = values.masked_fill(has_none, -torch.inf)
        top_tokens[:, : values.shape[1]] = tokens[places].masked_fill(has_none, NO_TOKEN)
    return torch.cat([total, score, top], 1), torch.cat([torch.full_like(best, NO_TOKEN), best, top_tokens], 1)


def choose(
    values: Tensor,
    tokens: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Return the next token of each sequence [b] by the candidates [b, 2 + k] of all logits; `NO_TOKEN` for NaN.

    Args:
        temperatures: [b]; 0 for the token with the largest logit.
        top_k: [b]; only so many of the largest logits are drawn, at most k; all if 0.
        top_p: [b]; only the largest logits are drawn whose probabilities before them sum up to less than this, at most
            k; all if 1. Probabilities are those among the `top_k` logits.
        seeds, positions: as for `draw`.
    """
    total, best = values[:, :1], tokens[:, 1]
    top, top_tokens = values[:, 2:], tokens[:, 2:]
    has_k = (top_k > 0).unsqueeze(1)
    is_kept = ~has_k | (torch.arange(top.shape[1], device=top.device) < top_k.unsqueeze(1))
    total = torch.where(has_k, top.masked_fill(~is_kept, -torch.inf).logsumexp(1, keepdim=True), total)
    shares = (top - total).exp()
    is_kept &= shares.cumsum(1) - shares < top_p.unsqueeze(1)
    is_kept[:, 0] = True
    scores = (top + gumbel_noise(seeds, positions, top_tokens)).masked_fill(~is_kept, -torch.inf)
    drawn = top_tokens.gather(1, scores.argmax(1, keepdim=True)).squeeze(1)
    is_filtered = _is_filtered(temperatures, top_k, top_p) & (best != NO_TOKEN)
    return torch.where(is_filtered, drawn, best)


def gumbel_noise(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Return independent noise with the standard Gumbel distribution for each token: [b, v], f32.

    Args:
        seeds: [b].
        positions: [b, t]; the noise is that of the next position after the last.
        tokens: [b, v].
    """
    states = _mix(_mix(seeds) + (positions[:, -1] + 1) * _STEP).unsqueeze(1) + tokens * _STEP
    # A uniform number of 53 bits, as the probability of the larger noise, so that large noise is precise.
    uniform = ((_mix(states) >> 11) & (2**53 - 1)).double().add(0.5).mul(2.0**-53).float()
    return -(-torch.log1p(-uniform.clamp(max=1 - 2**-24))).log()


def _mix(states: Tensor) -> Tensor:
    """Return random 64-bit numbers for states of splitmix64."""
    for shift, factor in _FACTORS:
        states = (states ^ _shift_right(states, shift)) * factor
    return states ^ _shift_right(states, 31)


def _shift_right(states: Tensor, count: int) -> Tensor:
    """Return 64-bit numbers without sign, shifted by `count` bits."""
    return (states >> count) & (2 ** (64 - count) - 1)


def _is_filtered(temperatures: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return a tensor [b]: whether each sequence is drawn by `top_k` or `top_p`, from its largest logits only."""
    return (temperatures > 0) & ((top_k > 0) | (top_p < 1))


def _fake_draw(
    logits: Tensor,
    tokens: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    candidates: int,
) -> tuple[Tensor, Tensor]:
    """Return tensors with the shapes and element types of the results of `draw`, for fake tensors."""
    shape = (logits.shape[0], 2 + candidates)
    return logits.new_empty(shape), tokens.new_empty(shape)


def _fake_choose(
    values: Tensor,
    tokens: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Return a tensor with the shape and element type of the result of `choose`, for fake tensors."""
    return tokens.new_empty(len(tokens))


_SETTINGS = "Tensor temperatures, Tensor top_k, Tensor top_p, Tensor seeds, Tensor positions"

_OPS = (
    (draw, f"(Tensor logits, Tensor tokens, {_SETTINGS}, int candidates) -> (Tensor, Tensor)", _fake_draw),
    (choose, f"(Tensor values, Tensor tokens, {_SETTINGS}) -> Tensor", _fake_choose),
)
"""Function, schema without the name, and the function on fake tensors."""

for _function, _schema, _fake in _OPS:
    LIBRARY.define(_function.__name__ + _schema)
    LIBRARY.impl(_function.__name__, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"sampling::{_function.__name__}", _fake, lib=LIBRARY)
