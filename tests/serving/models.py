"""Tiny causal language models of transformers, and their greedy tokens on one device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import transformers
from torch import nn

import spmdir.torch_interop.sampling_ops  # noqa: F401  # registers torch.ops.sampling
from spmdir.serving.sampling_settings import Sampling

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 61,
}

MODELS = {
    "Llama": SIZES,
    "Qwen3": {**SIZES, "head_dim": 4},
    "GPT2": {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 61, "n_positions": 64},
    "Mixtral": {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3": {
        **SIZES,
        "num_key_value_heads": 8,
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
    },
}
"""Name of a model → sizes of its configuration."""


def make_model(name: str, dtype: torch.dtype = torch.float64, **sizes: int) -> nn.Module:
    """Return a model with random weights, in eval mode. `sizes` replace those of `MODELS`."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**MODELS[name], **sizes})
    model_class = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    return getattr(transformers, model_class)(config).to(dtype).eval()


def drawn_tokens(model: nn.Module, prompt: Sequence[int], count: int, sampling: Sampling) -> list[int]:
    """Return the next `count` tokens of a prompt, drawn from the logits of the whole sequence on one device."""
    ids = [*prompt]
    for _ in range(count):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[:, -1].float()
        settings = [torch.tensor([value]) for value in (sampling.temperature, sampling.top_k, sampling.top_p)]
        settings += [torch.tensor([sampling.seed]), torch.tensor([[len(ids) - 1]])]
        drawn = torch.ops.sampling.draw(logits, torch.arange(logits.shape[1]), *settings, 8)
        ids += torch.ops.sampling.choose(*drawn, *settings).tolist()
    return ids[len(prompt) :]


def greedy_tokens(model: nn.Module, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Return the next `count` tokens of each prompt by `generate` on one device."""
    results = []
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # torch has no grouped product of f64
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        tokens = model.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None
        )
        results.append(tokens[0, len(prompt) :].tolist())
    return results
