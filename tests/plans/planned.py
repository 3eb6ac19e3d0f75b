"""Small models, and their training steps under a plan: partitioned, simulated, and compared with one device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.values import sharding_of, signature_name
from spmdir.plans.activations import constrained_activations
from spmdir.plans.resolve import resolve
from tests.models.catalog import Sizes, models
from tests.runtime.parallelize_cases import VOCABULARY, WIDTH, Block

SIZES = Sizes(vocabulary=32, hidden=16, layers=1, heads=4, groups=2, inner=32, image=8, classes=4)
DECIDE = "propagate{topology=flat},insert-reshard,verify-spmd"
LOWER = "lower-reshard{topology=flat},fuse-collectives,localize"


class MLP(nn.Module):
    """Two linear layers; it has no list of layers and no tp_plan."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Layers(nn.Module):
    """A language model whose norms are in the element type of the rest."""

    def __init__(self, layers: int = 1):
        super().__init__()
        self.embed, self.layers = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@cache
def llama() -> nn.Module:
    torch.manual_seed(0)
    return models(SIZES)["llama"].build("sdpa").double()


def language_loss(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(input_ids=ids, use_cache=False).logits.double()
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def mean_square(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def ids(batch: int = 4, sequence: int = 8) -> Tensor:
    return torch.randint(0, SIZES.vocabulary, (batch, sequence), generator=torch.Generator().manual_seed(1))


@attrs.frozen(eq=False)
class Planned:
    """A training step under a plan.

    Attributes:
        decided: the program with its shardings.
        local: the program of one rank.
        error: the largest difference from one device of what a simulated step gives, relative to each tensor.
    """

    decided: ModuleOp
    local: str
    error: float

    @property
    def inputs(self) -> dict[str, str]:
        """Name of an argument → its sharding."""
        function = ir.main_function(self.decided)
        named = [(signature_name(function, "arg_attrs", index), index) for index in range(len(function.args))]
        return {name: str(sharding_of(function.args[index])) for name, index in named}

    def collectives(self, kind: str) -> list[str]:
        """The lines of the rank's program that have a collective of this kind."""
        return re.findall(rf"^.*= spmd\.{kind} .*$", self.local, re.MULTILINE)


def planned(plan: Any, model: nn.Module, loss: Any, batch: Sequence[Tensor], mesh: Mesh) -> Planned:
    """Return the step of AdamW of a model under a plan, decided where latencies cost nothing."""
    explicit = resolve(plan, model, mesh)
    step, state = spmdir.training_step(model, loss, torch.optim.AdamW(model.parameters(), lr=0.1, eps=1e-2))
    leaves = pytree.tree_leaves((state, *batch))
    with constrained_activations(model, explicit):
        graph = make_fx(step, tracing_mode="fake")(state, *batch)
    module = spmdir.import_fx(graph, mesh, explicit.with_inputs(len(leaves) - len(batch), len(batch)))
    spmdir.run_passes(module, DECIDE)
    local = module.clone()
    spmdir.run_passes(local, LOWER)
    wanted = pytree.tree_leaves(step(state, *batch))
    found = spmdir.simulate(local, leaves)
    error = max(
        float((one - other).abs().max() / other.abs().max().clamp(min=1e-3))
        for one, other in zip(found, wanted, strict=True)
    )
    return Planned(module, ir.print_ir(local), error)
