"""Traced programs of small models, made once a process.

`forward_program` exports a model; `training_graph` traces forward, loss, backward and update as one graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import attrs
import torch
import transformers
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from spmdir.importer import constrain, training_step

VOCABULARY, HIDDEN, LAYERS, HEADS, IMAGE, CLASSES = 128, 64, 2, 4, 16, 12
_TEXT = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}

Inputs = tuple[Any, ...]


@attrs.frozen
class Model:
    """How to make a model and what to feed it.

    Attributes:
        build: attention implementation → the module.
        inputs: (batch, sequence) → the arguments of `forward`.
        call: (module, *inputs) → its output tensor.
    """

    build: Callable[[str], nn.Module]
    inputs: Callable[[int, int], Inputs]
    call: Callable[..., Tensor]


class MLP(nn.Module):
    """Two linear layers around a gelu."""

    def __init__(self, width: int = HIDDEN, inner: int = 4 * HIDDEN):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


def _tokens(batch: int, sequence: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, sequence))


def _llama(attention: str) -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **_TEXT, intermediate_size=128, num_key_value_heads=2, use_cache=False, attn_implementation=attention
        )
    )


def _gpt2(attention: str) -> nn.Module:
    sizes = {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 32}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, use_cache=False, attn_implementation=attention)
    )


def _bert(attention: str) -> nn.Module:
    return transformers.BertModel(
        transformers.BertConfig(
            **_TEXT, intermediate_size=128, max_position_embeddings=32, attn_implementation=attention
        ),
        add_pooling_layer=False,
    )


def _vit(attention: str) -> nn.Module:
    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            **sizes,
            intermediate_size=128,
            image_size=IMAGE,
            patch_size=4,
            num_labels=CLASSES,
            attn_implementation=attention,
        )
    )


def _t5(attention: str) -> nn.Module:
    sizes = {"vocab_size": VOCABULARY, "d_model": HIDDEN, "d_kv": HIDDEN // HEADS, "d_ff": 128}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, num_layers=LAYERS, num_heads=HEADS, use_cache=False, decoder_start_token_id=0)
    )


def _logits(model: nn.Module, ids: Tensor) -> Tensor:
    return model(input_ids=ids, use_cache=False).logits


MODELS: dict[str, Model] = {
    "mlp": Model(lambda _: MLP(), lambda b, s: (torch.randn(b, s, HIDDEN),), lambda m, x: m(x)),
    "llama": Model(_llama, lambda b, s: (_tokens(b, s),), _logits),
    "gpt2": Model(_gpt2, lambda b, s: (_tokens(b, s),), _logits),
    "bert": Model(
        _bert,
        lambda b, s: (_tokens(b, s), torch.ones(b, s, dtype=torch.long)),
        lambda m, ids, mask: m(input_ids=ids, attention_mask=mask).last_hidden_state,
    ),
    "vit": Model(
        _vit,
        lambda b, s: (torch.randn(b, 3, IMAGE, IMAGE),),
        lambda m, pixels: m(pixel_values=pixels).logits,
    ),
    "t5": Model(
        _t5,
        lambda b, s: (_tokens(b, s), _tokens(b, s // 2)),
        lambda m, ids, answer: m(input_ids=ids, decoder_input_ids=answer, use_cache=False).logits,
    ),
}
"""T5's attention is eager always; GPT-2 with sdpa in double precision is beyond torch's default decompositions."""


class Program(nn.Module):
    """A model with tensors in and one tensor out; its parameters are called `model.…`."""

    def __init__(self, model: nn.Module, call: Callable[..., Tensor]):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *args: Any) -> Tensor:
        return self.call(self.model, *args)


def eager_model(name: str, dtype: torch.dtype = torch.float64, attention: str = "sdpa", seed: int = 0) -> Program:
    """The module of a model, in evaluation mode, with seeded random weights."""
    torch.manual_seed(seed)
    return Program(MODELS[name].build(attention), MODELS[name].call).to(dtype).eval()


def example_inputs(name: str, dtype: torch.dtype, batch: int, sequence: int) -> Inputs:
    """Seeded random arguments of a model's forward."""
    torch.manual_seed(1)
    given = MODELS[name].inputs(batch, sequence)
    return tuple(value.to(dtype) if value.is_floating_point() else value for value in given)


BLOCKS = ("LlamaDecoderLayer", "GPT2Block", "BertLayer", "ViTLayer", "T5Block")
"""Classes whose output is the residual stream."""


def _constrain_residual(model: Program, sharding: str) -> None:
    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (constrain(output[0], sharding), *output[1:])
        return constrain(output, sharding)

    modules = [m for m in model.modules() if type(m).__name__ in BLOCKS]
    for module in modules or [m for m in model.modules() if isinstance(m, nn.Linear)]:
        module.register_forward_hook(hook)


@cache
def forward_program(
    name: str,
    dtype: torch.dtype = torch.float64,
    batch: int = 4,
    sequence: int = 8,
    attention: str = "sdpa",
    residual: str | None = None,
) -> tuple[torch.export.ExportedProgram, Inputs]:
    """A model's forward as torch.export gives it, and arguments for it.

    Args:
        residual: the sharding to which the residual stream is constrained after every block.
    """
    inputs = example_inputs(name, dtype, batch, sequence)
    model = eager_model(name, dtype, attention)
    if residual:
        _constrain_residual(model, residual)
    return torch.export.export(model, inputs), inputs


def loss_of(model: nn.Module, *args: Any) -> Tensor:
    """Cross entropy against the last argument where it is integers, else the mean square distance from it."""
    *inputs, target = args
    output = model(*inputs)
    if target.is_floating_point():
        return (output - target).square().mean()
    return nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())


def example_target(name: str, inputs: Inputs, dtype: torch.dtype) -> Tensor:
    """A seeded random target for `loss_of`."""
    torch.manual_seed(2)
    if name in ("mlp", "bert"):
        return torch.randn(*inputs[0].shape[:2], HIDDEN, dtype=dtype)
    if name == "vit":
        return torch.randint(0, CLASSES, (inputs[0].shape[0],))
    return torch.randint(0, VOCABULARY, inputs[-1].shape)


@cache
def training_graph(
    name: str,
    optimizer: str = "adamw",
    dtype: torch.dtype = torch.float64,
    batch: int = 4,
    sequence: int = 8,
    attention: str = "sdpa",
    residual: str | None = None,
) -> tuple[fx.GraphModule, tuple[Tensor, ...], tuple[str, ...]]:
    """One training step as make_fx gives it, its flat arguments, and the name of each in the IR.

    The graph's outputs are the loss and the leaves of the new state.
    """
    step, arguments = training_case(name, optimizer, dtype, batch, sequence, attention, residual)
    graph = make_fx(step, tracing_mode="fake")(*arguments)
    leaves, _ = pytree.tree_flatten_with_path(arguments)
    names = [".".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path[1:]) for path, _ in leaves]
    return graph, tuple(leaf for _, leaf in leaves), tuple(names)


def training_case(
    name: str,
    optimizer: str,
    dtype: torch.dtype,
    batch: int,
    sequence: int,
    attention: str = "sdpa",
    residual: str | None = None,
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The eager training step of a model, and the arguments of its first call."""
    inputs = example_inputs(name, dtype, batch, sequence)
    model = eager_model(name, dtype, attention)
    if residual:
        _constrain_residual(model, residual)
    step, state = training_step(model, loss_of, optimizer, lr=0.1)
    return step, (state, *inputs, example_target(name, inputs, dtype))
