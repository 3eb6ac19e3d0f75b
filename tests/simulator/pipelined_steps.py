"""Models and their training steps for tests of pipelined steps, and the comparison with one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.core.mesh import Mesh
from spmdir.importer.importer import import_fx
from spmdir.pipeline.pipeline import run_passes
from spmdir.runtime.training import TrainingStep, training_step
from spmdir.simulator.pipelined_step import simulate_step
from spmdir.simulator.step_inputs import flat_state

MICRO = 4
LOWERED = "propagate,expand,insert-reshard,lower-reshard"


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class SkipConnections(nn.Module):
    """Layers of the second half use the results of those of the first half, as in a U-net."""

    def __init__(self, frozen: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(6)])
        for layer in self.layers[:frozen]:
            layer.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer in self.layers[:3]:
            x = torch.tanh(layer(x))
            kept.append(x)
        for layer in self.layers[3:]:
            x = torch.tanh(layer(x)) * kept.pop()
        return x


class SharedLayer(nn.Module):
    """One layer is used at three places."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.shared, self.first, self.shared, self.second):
            x = torch.tanh(layer(x))
        return self.shared(x)


def blocks() -> nn.Module:
    return nn.Sequential(*[Block() for _ in range(4)])


def batch_norms() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(4)])


def square_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def cross_entropy(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    logits = model(input_ids=tokens, use_cache=False).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def numbers(rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 8, generator=generator).double(), torch.randn(rows, 8, generator=generator).double()


def tokens() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 16, (8, 6), generator=generator), torch.randint(0, 16, (8, 6), generator=generator)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 4, "vocab_size": 16}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))


def t5() -> nn.Module:
    """Return a model whose decoder uses the result of the encoder in each layer."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_decoder_layers": 2, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(**sizes, vocab_size=16, dropout_rate=0.0))


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    image = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 4}
    return ViTForImageClassification(ViTConfig(**sizes, **image))


def mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    experts = {"num_local_experts": 4, "experts_implementation": "grouped_mm"}
    return MixtralForCausalLM(MixtralConfig(**sizes, **heads, **experts))


def translation(model: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    logits = model(input_ids=tokens, decoder_input_ids=labels, use_cache=False).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def classification(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(pixel_values=images).logits, labels)


def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 1, 8, 8, generator=generator).double(), torch.randint(0, 4, (8,), generator=generator)


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    tokens_of_text = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(
        GPT2Config(n_embd=8, n_layer=4, n_head=2, vocab_size=16, n_positions=8, **dropout, **tokens_of_text)
    )


def training_step_of(
    make_model: Callable[[], nn.Module],
    loss: Callable[..., Tensor] = square_error,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    clip: float | None = None,
) -> tuple[TrainingStep, dict[str, Any]]:
    """Return a training step in double precision, and its state."""
    torch.manual_seed(0)
    model = make_model().double()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return training_step(model, loss, optimizer(trained, lr=0.01), accumulate=MICRO, clip_grad_norm=clip)


def step_of(
    make_model: Callable[[], nn.Module],
    loss: Callable[..., Tensor] = square_error,
    batch: tuple[Tensor, ...] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    clip: float | None = None,
    plan: Any = None,
    mesh: Mapping[str, int] | None = None,
) -> tuple[TrainingStep, dict[str, Any], ModuleOp]:
    """Return a training step in double precision, its state, and its program for one micro-batch."""
    step, state = training_step_of(make_model, loss, optimizer, clip)
    micro_batch = step.split_batch(batch or numbers())[0]
    traced = make_fx(step.micro_step, tracing_mode="fake")(state, *micro_batch)
    return step, state, import_fx(traced, Mesh(mesh or {"tp": 2}), plan)


def relative_error(step: TrainingStep, state: Any, module: ModuleOp, batch: tuple[Tensor, ...], steps: int) -> float:
    """Return the largest relative error of losses and state of a pipelined step, against one device."""
    pipelined_state, errors = state, []
    for _ in range(steps):
        loss, state = step(state, *batch)
        outputs, pipelined_state = simulate_step(module, pipelined_state, batch)
        errors += [float((output - loss).abs() / loss.abs()) for output in outputs]
        expected, found = flat_state(state), flat_state(pipelined_state)
        for name, tensor in expected.items():
            scale = max(float(tensor.abs().max()), 1e-300)
            errors.append(float((found[name] - tensor).abs().max()) / scale)
    return max(errors)


def pipelined(module: ModuleOp, cut: str, kind: str = "1f1b", passes: str = LOWERED, split: bool = False) -> ModuleOp:
    """Return a step with stages and an order, after its text has been parsed again."""
    split_pass = ",split-backward" if split or kind in ("zb", "zbv") else ""
    module = run_passes(module, f"{passes},cut-stages{{{cut}}}{split_pass},make-schedule{{kind={kind}}}")
    return spmdir.parse(spmdir.print_ir(module))
