"""Causal context parallelism: a Llama whose sequence is sharded by `ZigZag(1)`."""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import spmdir
from spmdir.core.errors import SpmdirWarning
from spmdir.core.placement.shards import ShardPlacement
from spmdir.dialects import ir
from spmdir.dialects.values import signature_name

RANKS, SEQUENCE, VOCABULARY = 4, 1024, 64
MESH = spmdir.Mesh({"cp": RANKS})
PIPELINE = "propagate{topology=flat effort=1000},insert-reshard,verify-spmd,lower-reshard,fuse-collectives,localize"


@cache
def llama() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """Return a Llama of one layer in double precision, token ids and their labels, one of them ignored."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 1, "max_position_embeddings": SEQUENCE}
    ids, labels = torch.randint(0, VOCABULARY, (2, 1, SEQUENCE))
    labels[0, 3] = -100
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads)).double(), ids, labels


def loss(model: torch.nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    hidden = spmdir.constrain(model.get_input_embeddings()(ids), "cp: ZigZag(1)")
    logits = model(inputs_embeds=hidden, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def partitioned(graph: Any, tokens: int) -> Any:
    """Return the program where the last `tokens` arguments are sharded along the sequence, and no other ones."""
    function = ir.main_function(spmdir.import_fx(graph, MESH))
    names = [signature_name(function, "arg_attrs", index) or "" for index in range(len(function.args))]
    given = dict.fromkeys(names, "") | dict.fromkeys(names[-tokens:], "cp: ZigZag(1)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpmdirWarning)
        return spmdir.run_passes(spmdir.import_fx(graph, MESH, given), PIPELINE)


def moved(module: Any, kind: str, length: int) -> list[str]:
    """Return the types that collectives of `kind` give, as far as a dimension of `length` is in them."""
    made = re.findall(rf"= spmd\.{kind} .*? : (?:tensor<)?([^>]*)", ir.print_ir(module))
    return [text for text in made if str(length) in text.split("x")]


@pytest.fixture(scope="module")
def training() -> tuple[Any, list[Any], list[Any]]:
    """Return the partitioned training step, its arguments, and what one device makes of them."""
    model, ids, labels = llama()
    step, state = spmdir.training_step(model, loss, torch.optim.AdamW(model.parameters()))
    graph = make_fx(step, tracing_mode="fake")(state, ids, labels)
    expected = pytree.tree_leaves(step(state, ids, labels))
    return partitioned(graph, 2), pytree.tree_leaves((state, ids, labels)), expected


def test_training_computes_what_one_device_does(training: Any):
    module, arguments, expected = training
    for one, other in zip(spmdir.simulate(module, arguments), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12 * float(other.abs().max()))


def test_training_gathers_keys_and_values_of_activations_and_scatters_their_gradients(training: Any):
    module, _, _ = training
    gathered = [text for text in moved(module, "all_gather", SEQUENCE) if not text.endswith("i64")]
    # Keys and values of one head and 8 features, in whichever form the einsums leave them.
    assert sorted(text.replace("1x", "") for text in gathered) == ["1024x8xf64"] * 2
    assert len(moved(module, "reduce_scatter", SEQUENCE // RANKS)) == 2


def pairs(placement: str, size: int = 512) -> list[int]:
    """Return the pairs of a query and a key not after it, of the queries of each rank."""
    found = spmdir.placement.parse_placement(placement)
    assert isinstance(found, ShardPlacement)
    ranges = [found.ranges(size, RANKS, rank) for rank in range(RANKS)]
    return [sum(position + 1 for start, end in own for position in range(start, end)) for own in ranges]


def test_every_rank_has_as_many_pairs_of_query_and_key():
    zigzag, contiguous = pairs("ZigZag(0)"), pairs("S(0)")
    assert max(zigzag) * RANKS == sum(zigzag)
    assert max(contiguous) * RANKS / sum(contiguous) == pytest.approx(1.75, abs=0.01)


@pytest.mark.parametrize("size", [500, 509, 4093])
def test_uneven_sizes_are_nearly_balanced(size: int):
    found = pairs("ZigZag(0)", size)
    assert max(found) * RANKS / sum(found) <= 1.05
