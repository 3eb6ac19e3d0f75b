"""Recipes: the explicit plans that they stand for, and that training under them is what it is on one device."""

from __future__ import annotations

import re
import textwrap

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.plans.resolve import resolve
from tests.plans.planned import MLP, Layers, ids, mean_square, planned

ONE = Mesh({"dp": 2})
TWO = Mesh({"dp": 2, "tp": 2})

PLANS = {
    ("ddp", ONE): """
        [shardings]
        "input:*" = "dp: S(0)"
        "up.weight" = ""
        "up.bias" = ""
        "down.weight" = ""
        "down.bias" = ""
        """,
    ("zero1", ONE): """
        [shardings]
        "input:*" = "dp: S(0)"
        "up.weight" = "dp: S(0)"
        "up.bias" = "dp: S(0)"
        "down.weight" = "dp: S(0)"
        "down.bias" = "dp: S(0)"
        "parameters.up.weight" = ""
        "parameters.up.bias" = ""
        "parameters.down.weight" = ""
        "parameters.down.bias" = ""
        """,
    ("fsdp", Mesh({"dp": 4})): """
        [shardings]
        "input:*" = "dp: S(0)"
        "up.weight" = "dp: S(0)"
        "up.bias" = "dp: S(0)"
        "down.weight" = "dp: S(1)"
        "down.bias" = ""
        """,
    ("tp", TWO): """
        keep = ["tp"]

        [shardings]
        "up.weight" = "tp: S(0), dp: ?"
        "up.bias" = "tp: S(0), dp: ?"
        "down.weight" = "tp: S(1), dp: ?"
        "down.bias" = "dp: ?"
        """,
    ("fsdp*tp", TWO): """
        keep = ["tp"]

        [shardings]
        "input:*" = "dp: S(0)"
        "up.weight" = "tp: S(0), dp: S(1)"
        "up.bias" = "tp: S(0), dp: S(0)"
        "down.weight" = "dp: S(0), tp: S(1)"
        "down.bias" = "dp: S(0)"
        """,
    ("hsdp(dp, tp)", TWO): """
        [shardings]
        "input:*" = "dp: S(0), tp: S(0)"
        "up.weight" = "tp: S(0)"
        "up.bias" = "tp: S(0)"
        "down.weight" = "tp: S(0)"
        "down.bias" = "tp: S(0)"
        """,
    ("pp(dp, schedule=zbv)*tp", TWO): """
        keep = ["tp"]

        [shardings]
        "up.weight" = "tp: S(0)"
        "up.bias" = "tp: S(0)"
        "down.weight" = "tp: S(1)"
        "down.bias" = ""

        [pipeline]
        axis = "dp"
        schedule = "zbv"
        """,
    ("pp(stages=4)", Mesh({"pp": 2})): """
        [pipeline]
        axis = "pp"
        schedule = "1f1b"
        stages = 4
        """,
    ("ddp(dp)*zero2(tp)", TWO): """
        [shardings]
        "input:*" = "dp: S(0), tp: S(0)"
        "up.weight" = "tp: S(0)"
        "up.bias" = "tp: S(0)"
        "down.weight" = "tp: S(0)"
        "down.bias" = "tp: S(0)"
        "parameters.up.weight" = ""
        "parameters.up.bias" = ""
        "parameters.down.weight" = ""
        "parameters.down.bias" = ""
        """,
    ("auto", TWO): "",
}


@pytest.mark.parametrize(("recipe", "mesh"), PLANS)
def test_a_recipe_stands_for_an_explicit_plan(recipe: str, mesh: Mesh) -> None:
    text = textwrap.dedent(PLANS[recipe, mesh]).strip()
    plan = resolve(recipe, MLP(), mesh)
    assert str(plan).strip() == text
    assert str(resolve(str(plan), MLP(), mesh)) == str(plan)


def test_layers_of_one_plan_are_one_glob() -> None:
    assert str(resolve("cp", Layers(2), Mesh({"cp": 2}))) == textwrap.dedent(
        """\
        [shardings]
        "input:*" = "cp: S(1)"
        "embed.weight" = ""
        "layers.*.before.weight" = ""
        "layers.*.between.weight" = ""
        "layers.*.qkv.weight" = ""
        "layers.*.out.weight" = ""
        "layers.*.up.weight" = ""
        "layers.*.up.bias" = ""
        "layers.*.down.weight" = ""
        "layers.*.down.bias" = ""
        "head.weight" = ""

        [activations]
        "embed" = { outputs = "cp: S(1)" }
        "layers.?" = { outputs = "cp: S(1)" }
        "layers.*.before" = { outputs = "cp: S(1)" }
        "layers.*.between" = { outputs = "cp: S(1)" }
        "layers.*.qkv" = { outputs = "cp: S(1)" }
        "layers.*.out" = { outputs = "cp: S(1)" }
        "layers.*.up" = { outputs = "cp: S(1)" }
        "layers.*.down" = { outputs = "cp: S(1)" }
        "head" = { outputs = "cp: S(1)" }
        """
    )


WRONG = {
    "fdsp": "'fdsp' is not a recipe; expected one of ddp, .*did you mean 'fsdp'",
    "fsdp*": "'' is not a recipe",
    "fsdp(pp)": "axis 'pp' is not in mesh",
    "cp": "cp uses the axis cp, which mesh .* does not have; expected an axis of the mesh: name one, as in cp.dp.",
    "pp": "pp uses the axis pp, which mesh .* does not have",
    "pp(dp, schedule=1g1b)": "schedule='1g1b'; expected one of gpipe, 1f1b, zb, zbv, search",
    "pp(dp, micro=4)": r"unknown option 'micro' .*training_step\(…, accumulate=N\) sets the micro-batches",
    "pp(dp, stages=two)": "stages='two'; expected a number of stages",
    "tp(schedule=zbv)": "has the option 'schedule'; expected names of axes, as only pp has options",
    "hsdp(dp)": "'hsdp.dp.' names 1 axes; expected 2, for ddp and fsdp",
    "ddp*fsdp": "'ddp.fsdp' has two recipes for axis 'dp' of mesh .*; expected one for each axis",
    "sp": r"the model has no nn.ModuleList, .* of layers.*outputs = \"tp: S\(1\)\"",
}


@pytest.mark.parametrize("recipe", WRONG)
def test_a_wrong_recipe_says_what_is_expected(recipe: str) -> None:
    with pytest.raises(SpmdirError, match=WRONG[recipe]):
        resolve(recipe, MLP(), TWO)


@pytest.mark.parametrize("recipe", ["tp*sp", "cp"])
def test_numbered_layers_of_a_module_dict_are_planned_as_those_of_a_list(recipe: str) -> None:
    mesh = Mesh({"cp": 2} if recipe == "cp" else {"tp": 2})
    listed, numbered = Layers(2), Layers(2)
    numbered.layers = nn.ModuleDict({str(index): layer for index, layer in enumerate(numbered.layers)})
    assert spmdir.placement.sharding_plan(listed, mesh, recipe).activations
    assert spmdir.placement.sharding_plan(numbered, mesh, recipe) == spmdir.placement.sharding_plan(
        listed, mesh, recipe
    )


def test_tp_shards_what_peft_has_put_adapters_beside() -> None:
    config = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=4, vocab_size=8)
    llama = LlamaForCausalLM(config)
    plan = spmdir.placement.sharding_plan(
        get_peft_model(llama, LoraConfig(target_modules=["q_proj"])), Mesh({"tp": 2}), "tp"
    )
    layer = "base_model.model.model.layers.*.self_attn"
    assert str(plan.shardings[f"{layer}.q_proj.base_layer.weight"]) == "tp: S(0)"
    assert str(plan.shardings[f"{layer}.o_proj.weight"]) == "tp: S(1)"
    assert str(plan.shardings[f"{layer}.q_proj.lora_A.default.weight"]) == ""


def test_tp_knows_the_layers_of_gpt2() -> None:
    config = GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=8, n_positions=8)
    plan = spmdir.placement.sharding_plan(GPT2LMHeadModel(config), Mesh({"tp": 2}), "tp")
    layer = "transformer.h.*"  # weights of Conv1D are [input, output]
    assert str(plan.shardings[f"{layer}.mlp.c_fc.weight"]) == "tp: S(1)"
    assert str(plan.shardings[f"{layer}.mlp.c_proj.weight"]) == "tp: S(0)"


def test_tp_asks_for_names_where_it_does_not_know_the_layers() -> None:
    with pytest.raises(SpmdirError, match=r"tp finds no layers to shard in Sequential.*give their names"):
        resolve("tp", nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), TWO)


STEPS = {
    "ddp": Mesh({"dp": 2}),
    "zero1": Mesh({"dp": 2}),
    "fsdp": Mesh({"dp": 4}),
    "fsdp*tp": TWO,
    "hsdp": Mesh({"dp_replicate": 2, "dp_shard": 2}),
    "auto": TWO,
}


@pytest.mark.parametrize("recipe", STEPS)
def test_a_step_under_a_recipe_is_that_of_one_device(recipe: str) -> None:
    step = planned(recipe, MLP().double(), mean_square, (torch.randn(4096, 8, dtype=torch.float64),), STEPS[recipe])
    assert step.error < 1e-12
    for name, sharding in resolve(recipe, MLP(), STEPS[recipe]).shardings.items():
        for of in ("exp_avg", "parameters") if "." in name and not name.startswith("parameters.") else ():
            alone = resolve(recipe, MLP(), STEPS[recipe]).shardings.get(f"{of}.{name}", sharding)
            assert step.inputs[f"{of}.{name}"] == str(alone)
    if recipe == "zero1":  # each gradient is reduced to the shard that is updated, and the loss to all
        assert [len(step.collectives(kind)) for kind in ("reduce_scatter", "all_gather", "all_reduce")] == [4, 4, 1]


def test_weights_that_are_kept_are_gathered_along_no_kept_axis() -> None:
    step = planned("fsdp*tp", Layers().double(), mean_square, (ids(4, 16) % 24,), TWO)
    gathers = [line for kind in ("all_gather", "all_to_all") for line in step.collectives(kind)]
    of_weights = [line for line in gathers if re.search(r"(up|down)\.weight", line)]
    assert of_weights and not [line for line in of_weights if "tp" in line.partition(" on ")[2].partition("]")[0]]
    assert step.error < 1e-12


@pytest.mark.parametrize("recipe", ["cp", "tp*sp"])
def test_one_recipe_shards_the_sequence_of_activations(recipe: str) -> None:
    axis = recipe[:2]
    step = planned(recipe, Layers().double(), mean_square, (ids(2, 32) % 24,), Mesh({axis: 2}))
    norms = [line for line in spmdir.print_ir(step.decided).splitlines() if "rsqrt" in line]
    assert norms and all(f"{axis}: S(1)" in line for line in norms), norms
    assert step.error < 1e-12
