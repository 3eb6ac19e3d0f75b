"""What the traced models are made of: builders from transformers configurations and plain torch, at given sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
import transformers
from torch import Tensor, nn

Inputs = tuple[Any, ...]


@attrs.frozen
class Sizes:
    """How large a model is; images are square."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    groups: int
    inner: int
    image: int
    classes: int
    experts: int = 5

    @property
    def text(self) -> dict[str, int]:
        """Return what most configurations of language models call these sizes."""
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.inner,
        }


EVEN = Sizes(vocabulary=128, hidden=64, layers=2, heads=4, groups=2, inner=128, image=16, classes=12)
"""Sizes that are divisible by the axes of most meshes."""

ODD = Sizes(vocabulary=33, hidden=18, layers=1, heads=3, groups=3, inner=10, image=12, classes=5)
"""Sizes that are divisible by hardly any."""


@attrs.frozen
class Model:
    """How to make a model and what to feed it.

    Attributes:
        build: attention implementation → the module.
        inputs: (batch, sequence) → the arguments of `forward`.
        call: (module, *inputs) → its output tensor.
        target: (batch, sequence) → what `loss_of` compares the output with.
        training: whether it is run in training mode, as for batch norms that follow the batch.
    """

    build: Callable[[str], nn.Module]
    inputs: Callable[[int, int], Inputs]
    call: Callable[..., Tensor]
    target: Callable[[int, int], Tensor]
    training: bool = False


class MLP(nn.Module):
    """Two linear layers around a gelu."""

    def __init__(self, width: int = EVEN.hidden, inner: int = 4 * EVEN.hidden):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


class DenseMixture(nn.Module):
    """A mixture of experts where every expert sees every token, and one-hot weights choose the best two."""

    def __init__(self, width: int, inner: int, experts: int):
        super().__init__()
        self.experts = experts
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, inner) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, width) / inner**0.5)

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = torch.topk(self.router(x).softmax(-1), 2, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        chosen = nn.functional.one_hot(chosen, self.experts).to(x.dtype)
        inner = nn.functional.silu(torch.einsum("bsd,edh->besh", x, self.up))
        outputs = torch.einsum("besh,ehd->besd", inner, self.down)
        return torch.einsum("besd,bske,bsk->bsd", outputs, chosen, weight)


class ResidualBlock(nn.Module):
    """Two convolutions with batch norms around a shortcut, which is a convolution where sizes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem that halves the image twice, two residual blocks, and a linear layer on the mean pixel."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.blocks = nn.Sequential(ResidualBlock(width, width, 1), ResidualBlock(width, 2 * width, 2))
        self.mean, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mean(self.blocks(self.pool(self.stem(x)))).flatten(1))


def _hidden_states(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    return model(input_ids=ids, attention_mask=mask).last_hidden_state


def _logits(model: nn.Module, ids: Tensor) -> Tensor:
    return model(input_ids=ids, use_cache=False).logits


def _answer_logits(model: nn.Module, ids: Tensor, answer: Tensor) -> Tensor:
    return model(input_ids=ids, decoder_input_ids=answer, use_cache=False).logits


def _llama(s: Sizes, attention: str) -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**s.text, num_key_value_heads=s.groups, use_cache=False, attn_implementation=attention)
    )


def _gpt2(s: Sizes, attention: str) -> nn.Module:
    sizes = {"vocab_size": s.vocabulary, "n_embd": s.hidden, "n_layer": s.layers, "n_head": s.heads, "n_positions": 32}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, use_cache=False, attn_implementation=attention)
    )


def _bert(s: Sizes, attention: str) -> nn.Module:
    config = transformers.BertConfig(**s.text, max_position_embeddings=32, attn_implementation=attention)
    return transformers.BertModel(config, add_pooling_layer=False)


def _vit(s: Sizes, attention: str) -> nn.Module:
    sizes = {**s.text, "image_size": s.image, "patch_size": 4, "num_labels": s.classes}
    sizes.pop("vocab_size")
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, attn_implementation=attention))


def _t5(s: Sizes, attention: str) -> nn.Module:
    """Its attention is eager always."""
    sizes = {"vocab_size": s.vocabulary, "d_model": s.hidden, "d_kv": s.hidden // s.heads, "d_ff": s.inner}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            **sizes, num_layers=s.layers, num_heads=s.heads, use_cache=False, decoder_start_token_id=0
        )
    )


def _mixtral(s: Sizes, attention: str, experts: str = "batched_mm") -> nn.Module:
    config = transformers.MixtralConfig(
        **s.text,
        num_key_value_heads=s.groups,
        num_local_experts=s.experts,
        num_experts_per_tok=2,
        use_cache=False,
        attn_implementation=attention,
        experts_implementation=experts,
    )
    return transformers.MixtralForCausalLM(config)


def grouped_mixtral(s: Sizes) -> nn.Module:
    """Mixtral as it is without being asked for anything else: rows are grouped by their expert."""
    return _mixtral(s, "sdpa", "grouped_mm")


def _qwen_moe(s: Sizes, attention: str) -> nn.Module:
    config = transformers.Qwen2MoeConfig(
        **s.text,
        num_key_value_heads=s.groups,
        num_experts=s.experts,
        num_experts_per_tok=2,
        moe_intermediate_size=s.inner,
        shared_expert_intermediate_size=s.inner,
        decoder_sparse_step=1,
        use_cache=False,
        attn_implementation=attention,
        experts_implementation="batched_mm",
    )
    return transformers.Qwen2MoeForCausalLM(config)


def _mamba(s: Sizes, attention: str) -> nn.Module:
    """Without its kernels it scans position by position, in torch ops."""
    sizes = {"vocab_size": s.vocabulary, "hidden_size": s.hidden, "num_hidden_layers": s.layers}
    return transformers.MambaForCausalLM(transformers.MambaConfig(**sizes, state_size=4, use_cache=False))


def models(s: Sizes) -> dict[str, Model]:
    """Return every model, by name, at these sizes."""

    def tokens(batch: int, sequence: int) -> Tensor:
        return torch.randint(0, s.vocabulary, (batch, sequence))

    def states(batch: int, sequence: int) -> Tensor:
        return torch.randn(batch, sequence, s.hidden)

    def images(batch: int, _: int) -> Inputs:
        return (torch.randn(batch, 3, s.image, s.image),)

    def labels(batch: int, _: int) -> Tensor:
        return torch.randint(0, s.classes, (batch,))

    def language(build: Callable[[Sizes, str], nn.Module]) -> Model:
        return Model(lambda attention: build(s, attention), lambda b, n: (tokens(b, n),), _logits, tokens)

    return {
        "mlp": Model(lambda _: MLP(s.hidden, 4 * s.hidden), lambda b, n: (states(b, n),), lambda m, x: m(x), states),
        "llama": language(_llama),
        "gpt2": language(_gpt2),
        "bert": Model(
            lambda attention: _bert(s, attention),
            lambda b, n: (tokens(b, n), torch.ones(b, n, dtype=torch.long)),
            _hidden_states,
            states,
        ),
        "vit": Model(
            lambda attention: _vit(s, attention), images, lambda m, pixels: m(pixel_values=pixels).logits, labels
        ),
        "t5": Model(
            lambda attention: _t5(s, attention),
            lambda b, n: (tokens(b, n), tokens(b, n // 2)),
            _answer_logits,
            lambda b, n: tokens(b, n // 2),
        ),
        "mixtral": language(_mixtral),
        "qwen_moe": language(_qwen_moe),
        "moe": Model(
            lambda _: DenseMixture(s.hidden, s.inner, s.experts),
            lambda b, n: (states(b, n),),
            lambda m, x: m(x),
            states,
        ),
        "mamba": language(_mamba),
        "resnet": Model(
            lambda _: ResNet(2 * s.heads, s.classes), images, lambda m, pixels: m(pixels), labels, training=True
        ),
    }
