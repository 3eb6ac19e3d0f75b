"""Parallel styles: what they say of parameters and activations, and that DTensor gives the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from transformers.pytorch_utils import Conv1D

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.plans.resolve import resolve
from tests.lowering.gloo_ranks import on_ranks
from tests.plans.planned import ids, language_loss, llama, planned

MESH = Mesh({"tp": 2})


class Model(nn.Module):
    """An embedding, a norm, a pair of linear layers and a head tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(8, 4), nn.LayerNorm(4)
        self.up, self.down, self.packed = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 8, bias=False)
        self.conv, self.head = Conv1D(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens))
        gate, inner = self.packed(x).chunk(2, -1)
        return self.head(x + self.down(self.up(x).relu()) + gate * inner)


SAID = {
    "colwise": ({"up": "colwise"}, {"up.weight": "tp: S(0)", "up.bias": "tp: S(0)"}, ""),
    "rowwise": ({"down": "rowwise"}, {"down.weight": "tp: S(1)", "down.bias": ""}, ""),
    "a Conv1D": ({"conv": "colwise"}, {"conv.weight": "tp: S(1)", "conv.bias": "tp: S(0)"}, ""),
    "packed": ({"packed": "packed_colwise"}, {"packed.weight": "tp: Strided(0, 2)"}, ""),
    "embedding_rowwise": ({"embed": "embedding_rowwise"}, {"embed.weight": "tp: S(0)"}, ""),
    "embedding_colwise": (
        {"embed": "embedding_colwise"},
        {"embed.weight": "tp: S(1)"},
        '"embed" = { outputs = "tp: R" }',
    ),
    "a tied weight by its other name": (
        {"head": "colwise_gather_output"},
        {"embed.weight": "tp: S(0)"},
        '"head" = { outputs = "tp: R" }',
    ),
    "sequence_parallel": (
        {"norm": "sequence_parallel"},
        {"norm.weight": "", "norm.bias": ""},
        '"norm" = { inputs = "tp: S(1)", outputs = "tp: S(1)" }',
    ),
    "ColwiseParallel": ({"up": ColwiseParallel()}, {"up.weight": "tp: S(0)", "up.bias": "tp: S(0)"}, ""),
    "ColwiseParallel, layouts": (
        {"up": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())},
        {"up.weight": "tp: S(0)", "up.bias": "tp: S(0)"},
        '"up" = { inputs = "tp: S(1)", outputs = "tp: R" }',
    ),
    "RowwiseParallel, layouts": (
        {"down": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))},
        {"down.weight": "tp: S(1)", "down.bias": ""},
        '"down" = { inputs = "tp: R", outputs = "tp: S(1)" }',
    ),
    "RowwiseParallel of an embedding": ({"embed": RowwiseParallel()}, {"embed.weight": "tp: S(0)"}, ""),
    "SequenceParallel": (
        {"norm": SequenceParallel(sequence_dim=0)},
        {"norm.weight": "", "norm.bias": ""},
        '"norm" = { inputs = "tp: S(0)", outputs = "tp: S(0)" }',
    ),
    "PrepareModuleInput": (
        {"up": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))},
        {},
        '"up" = { inputs = "tp: R" }',
    ),
    "PrepareModuleInput by name": (
        {
            "up": PrepareModuleInput(
                input_kwarg_layouts={"input": Shard(1)}, desired_input_kwarg_layouts={"input": Replicate()}
            )
        },
        {},
        '"up" = { inputs = { "input" = "tp: R" } }',
    ),
    "PrepareModuleOutput": (
        {"*": PrepareModuleOutput(output_layouts=Shard(-1), desired_output_layouts=Shard(-1))},
        {},
        "".join(
            f'"{name}" = {{ outputs = "tp: S(-1)" }}\n'
            for name in ("embed", "norm", "up", "down", "packed", "conv", "head")
        ),
    ),
    "PrepareModuleInputOutput": (
        {
            "up": PrepareModuleInputOutput(
                input_layouts=(Shard(1),),
                desired_input_layouts=(Replicate(),),
                output_layouts=(Shard(-1),),
                desired_output_layouts=(Replicate(),),
            )
        },
        {},
        '"up" = { inputs = "tp: R", outputs = "tp: R" }',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_a_style_says_how_parameters_and_activations_lie(name: str) -> None:
    styles, shardings, activations = SAID[name]
    plan = resolve(styles, Model(), MESH)
    assert {key: str(one) for key, one in plan.shardings.items()} == shardings
    assert str(plan).partition("[activations]\n")[2].strip() == activations.strip()
    assert plan.keep == ("tp",)


class Experts(ColwiseParallel):
    """A style of the user's own that is one of torch's."""


def test_a_style_derived_from_one_of_torchs_is_that_one() -> None:
    assert resolve({"up": Experts()}, Model(), MESH) == resolve({"up": "colwise"}, Model(), MESH)


def test_styles_and_shardings_may_be_mixed_and_other_axes_are_open() -> None:
    plan = resolve({"up": "colwise", "down.weight": "dp: S(0)"}, Model(), Mesh({"dp": 2, "tp": 2}))
    found = {key: str(one) for key, one in plan.shardings.items()}
    assert found == {"up.weight": "tp: S(0), dp: ?", "up.bias": "tp: S(0), dp: ?", "down.weight": "dp: S(0)"}


WRONG = {
    "unknown": ({"up": "colwize"}, "'up' has the style 'colwize'; expected one of colwise, .*did you mean 'colwise'"),
    "experts": ({"up": "ep_router"}, "'up' has the style 'ep_router' for experts"),
    "no weight": ({"": "colwise"}, "'' is a Model; expected a linear layer or an embedding"),
    "a norm": ({"norm": "colwise"}, "'norm' is a LayerNorm; expected a linear layer or an embedding"),
    "no module": (
        {"upp": "colwise"},
        "'upp', which is not a module of the model; expected a name or glob of .*; did you mean",
    ),
    "a glob": ({"layers.*": "colwise"}, "the plan names 'layers.*', which matches no module"),
    "a partial layout": (
        {"up": PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=torch.distributed.tensor.Partial())},
        "a style has the layout Partial",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_style_says_what_is_expected(name: str) -> None:
    styles, message = WRONG[name]
    with pytest.raises(SpmdirError, match=message):
        resolve(styles, Model(), MESH)


TITAN = {
    "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "model.norm": SequenceParallel(),
    "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1)),
    "model.layers.*.input_layernorm": SequenceParallel(),
    "model.layers.*.self_attn": PrepareModuleInput(
        input_kwarg_layouts={"hidden_states": Shard(1)}, desired_input_kwarg_layouts={"hidden_states": Replicate()}
    ),
    "model.layers.*.self_attn.[qkv]_proj": ColwiseParallel(),
    "model.layers.*.self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
    "model.layers.*.post_attention_layernorm": SequenceParallel(),
    "model.layers.*.mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "model.layers.*.mlp.gate_proj": ColwiseParallel(),
    "model.layers.*.mlp.up_proj": ColwiseParallel(),
    "model.layers.*.mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
}
"""torchtitan's plan of Llama, under the names of Hugging Face."""


def test_torchtitans_plan_shards_weights_and_the_sequence() -> None:
    step = planned(TITAN, llama(), language_loss, (ids(),), MESH)
    assert step.error < 1e-9
    norms = [line for line in spmdir.print_ir(step.decided).splitlines() if "aten.rsqrt" in line]
    assert len(norms) == 3 and all("tp: S(1)" in line for line in norms)
    assert not [line for line in step.collectives("all_gather") if "_proj.weight" in line]


def test_hugging_faces_own_plan_is_taken_as_it_is() -> None:
    whole, base = llama().tp_plan, llama().config.base_model_tp_plan
    step = planned(whole, llama(), language_loss, (ids(),), MESH)
    assert step.error < 1e-9
    assert step.inputs["parameters.model.layers.0.mlp.down_proj.weight"] == "tp: S(1)"
    found = resolve(base, llama(), MESH).shardings
    assert found == {name: resolve(whole, llama(), MESH).shardings[name] for name in found}


class Pair(nn.Module):
    """What DTensor runs eagerly too."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(8, 4), nn.LayerNorm(4)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.down(self.up(self.norm(self.embed(tokens))).relu())


COMPARED = {
    "a pair": {"up": ColwiseParallel(), "down": RowwiseParallel()},
    "gathered outputs": {
        "up": ColwiseParallel(output_layouts=Replicate()),
        "down": RowwiseParallel(input_layouts=Replicate()),
    },
    "a sharded sequence": {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(),
    },
    "prepared inputs": {
        "embed": ColwiseParallel(output_layouts=Replicate()),
        "": PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Shard(1), use_local_output=False
        ),
    },
}  # fmt: skip


def trained_by_dtensor(rank: int) -> list[list[Tensor]]:
    """The output and gradients of each case, by DTensor and by a step of SGD of rate 1 that `parallelize` runs."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    tokens, results = torch.arange(8).reshape(2, 4), []
    for styles in COMPARED.values():
        torch.manual_seed(0)
        model, ours = Pair().double(), Pair().double()
        ours.load_state_dict(model.state_dict())
        optimizer = torch.optim.SGD(ours.parameters(), lr=1.0)
        step, state = spmdir.training_step(ours, lambda m, t: m(t).square().mean(), optimizer)
        parallel = spmdir.parallelize(step, mesh, styles, (tokens,), state=state)
        value = parallel(tokens)
        updated = parallel.gather_state()["parameters"]
        parallelize_module(model, mesh, styles)
        output = model(tokens)
        output = output.full_tensor() if isinstance(output, DTensor) else output
        loss = output.square().mean()
        loss.backward()
        for name, parameter in model.named_parameters():
            whole, gradient = (t.full_tensor() if isinstance(t, DTensor) else t for t in (parameter, parameter.grad))
            results.append([(whole - gradient).detach(), updated[name]])
        results.append([loss.detach(), value])
    return results


def test_dtensor_gives_the_same_gradients(tmp_path: Path) -> None:
    for pairs in on_ranks(2, trained_by_dtensor, tmp_path):
        assert len(pairs) == len(COMPARED) * 8
        for index, (theirs, ours) in enumerate(pairs):
            torch.testing.assert_close(theirs, ours, rtol=1e-12, atol=1e-12, msg=lambda text, at=index: f"{at}: {text}")
