"""Served models on gloo ranks give the tokens of transformers on one device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.lowering.gloo_ranks import on_ranks
from tests.serving.models import drawn_tokens, greedy_tokens, make_model
from tests.serving.served_cases import COUNTS, PROMPTS, SAMPLINGS, VOCABULARY, generate

HEADS = {"caches.*": "tp: S(2)", "lm_head.weight": "tp: S(0)"}


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("name", "dtype", "axes", "plan", "pages"),
    [
        ("Llama", torch.float64, {"tp": 2}, HEADS, None),
        ("Llama", torch.float32, {"dp": 2, "tp": 2}, {"caches.*": "dp: S(0), tp: S(2)"}, None),
        ("GPT2", torch.float64, {"tp": 2}, {"caches.*": "tp: S(2)"}, 7),  # two sequences need up to 8 pages
    ],
)
def test_ranks_generate_the_tokens_of_one_device(tmp_path: Path, name, dtype, axes, plan, pages) -> None:
    results = on_ranks(2 * len(axes), generate, tmp_path, name, dtype, axes, plan, pages)
    model = make_model(name, dtype, vocab_size=VOCABULARY)
    expected = [greedy_tokens(model, [prompt], count)[0] for prompt, count in zip(PROMPTS, COUNTS, strict=True)]
    requests = zip(PROMPTS, COUNTS, SAMPLINGS, strict=True)
    drawn = [drawn_tokens(model, prompt, count, sampling) for prompt, count, sampling in requests]
    for result in results:
        assert result["drawn"] == drawn and drawn[1] == expected[1]
        assert result["tokens"] == expected
        assert result["again"] == [expected[0][: expected[0].index(expected[0][1]) + 1]]
        assert "20 prompt tokens and 9 new tokens need 28 rows of a cache; expected at most 24" in result["error"]
        assert result["streamed"] == (expected if result is results[0] else None)
        writes = [line for line in result["text"].splitlines() if "cache.write(" in line]
        assert len(writes) == 4 and all("tp: S(2)" in line for line in writes)
