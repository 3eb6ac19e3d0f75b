"""Models that caches of keys and values do not represent are rejected, and requests of other kinds too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import spmdir
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.serving.capture_model import capture
from spmdir.serving.supported_models import check_attention
from tests.serving.models import SIZES, make_model


def change_config(**values: Any) -> Callable[[nn.Module], None]:
    """Return a function that sets values of the configuration of a model."""
    return lambda model: [setattr(model.config, name, value) for name, value in values.items()]  # type: ignore


def skip_attention_of_last_layer(model: Any) -> None:
    """Replace the attention of the last layer."""
    model.model.layers[-1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_config(attention_chunk_size=8), "has attention_chunk_size 8"),
        (change_config(layer_types=["full_attention", "chunked_attention"]), "layer 1 .* type 'chunked_attention'"),
        (change_config(layer_types=["conv", "full_attention"]), "layer 0 .* has the type 'conv'"),
        (change_config(layer_types=["full_attention", "sliding_attention"]), "layer 1 .* does not pass sliding_window"),
        (lambda model: setattr(model, "_is_stateful", True), "recurrent layers"),
        (skip_attention_of_last_layer, "in 1 of 2 layers"),
        (lambda model: delattr(model.model.layers[0].self_attn, "layer_idx"), "LlamaAttention has no layer_idx"),
        (lambda model: setattr(model.model.layers[0].self_attn, "is_causal", False), "LlamaAttention is not causal"),
        (lambda model: setattr(model.lm_head, "weight", nn.Parameter(torch.zeros(61, 3))), "cannot compute one token"),
    ],
)
def test_an_unsupported_model_is_rejected_before_export(change: Callable[[nn.Module], None], message: str) -> None:
    model = make_model("Llama")
    change(model)
    with pytest.raises(UnsupportedError, match=message):
        capture(model, spmdir.Mesh({"tp": 2}), batch=2, max_length=8, prompt_lengths=[4])


def test_a_cap_on_scores_is_rejected() -> None:
    sizes = {**SIZES, "head_dim": 4, "attn_logit_softcapping": 50.0}
    model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**sizes)).eval()
    with pytest.raises(UnsupportedError, match=r"Gemma2Attention passes softcap=50.0 to the attention function"):
        capture(model, spmdir.Mesh({"tp": 2}), batch=2, max_length=8, prompt_lengths=[4])


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"s_aux": torch.zeros(2)}, "passes s_aux="),
        ({"position_bias": torch.zeros(2)}, "passes position_bias="),
        ({"dropout": 0.1}, "passes dropout=0.1 to the attention function; expected 0.0"),
        ({"is_causal": False}, "passes is_causal=False to the attention function; expected True"),
    ],
)
def test_an_argument_that_changes_attention_is_rejected(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_attention(nn.Identity(), None, keywords)
    with pytest.raises(UnsupportedError, match="Identity passes its own attention_mask"):
        check_attention(nn.Identity(), torch.zeros(1), {})


def test_a_model_needs_positions_and_the_cpu() -> None:
    mesh = spmdir.Mesh({"tp": 2})
    with pytest.raises(SpmdirError, match="max_length is 65; expected at most 64, the max_position_embeddings"):
        capture(make_model("GPT2"), mesh, batch=2, max_length=65)
    with pytest.raises(SpmdirError, match="is on meta; expected a model on the CPU"):
        capture(make_model("Llama").to("meta"), mesh, batch=2, max_length=8)


def test_a_model_without_logits_is_rejected() -> None:
    model = make_model("Llama").model
    with pytest.raises(UnsupportedError, match="LlamaModel returns no logits"):
        capture(model, spmdir.Mesh({"tp": 2}), batch=2, max_length=8)  # type: ignore[arg-type]
