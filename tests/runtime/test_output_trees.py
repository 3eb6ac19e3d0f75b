"""What modules return beside tensors: dataclasses come back as such, caches of transformers are left out."""

# pyright: reportArgumentType=false
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers import LlamaConfig, LlamaForCausalLM

from spmdir.core.errors import SpmdirWarning, UnsupportedError
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.runtime.capture import capture_model
from spmdir.runtime.joint_capture import capture_joint

X = torch.ones(4, 8)


class Cache:
    """An object that pytrees do not know."""


@dataclasses.dataclass
class Inner:
    hidden: Tensor


@dataclasses.dataclass
class Out:
    logits: Any
    inner: Inner | None = None
    length: int = 0
    cache: Any = None


class Pair(NamedTuple):
    logits: Any
    cache: Any


class Model(nn.Module):
    def __init__(self, returned: Callable[[Tensor], Any]):
        super().__init__()
        self.linear, self.returned = nn.Linear(8, 8), returned

    def forward(self, x: Tensor) -> Any:
        return self.returned(self.linear(x))


def of_joint(model: nn.Module, kwargs: dict[str, Any]) -> pytree.TreeSpec:
    return capture_joint(model, (), kwargs, torch.device("cpu"), ShardingPlan()).capture.convention.out_spec


def of_forward(model: nn.Module, kwargs: dict[str, Any]) -> pytree.TreeSpec:
    return capture_model(model, tuple(kwargs.values())).convention.out_spec


FRONTS = pytest.mark.parametrize("out_spec", [of_joint, of_forward], ids=["shard_module", "parallelize"])

TREES = {
    "a dataclass with one inside": (lambda y: Out(y, Inner(y + 1), y.shape[0]), Out(0, Inner(1), 2)),
    "a dataclass with a cache": (lambda y: Out(y, cache=Cache()), Out(0, None, 2, None)),
    "a dictionary with a cache": (lambda y: {"logits": y, "cache": Cache()}, {"logits": 0, "cache": None}),
    "a tuple with a cache": (lambda y: (y, Cache()), (0, None)),
    "a named tuple with a cache": (lambda y: Pair(y, Cache()), Pair(0, None)),
}


@FRONTS
@pytest.mark.parametrize("name", TREES)
def test_a_module_returns_its_own_containers_and_none_for_a_cache(name: str, out_spec: Any) -> None:
    returned, expected = TREES[name]
    model = Model(returned)
    if "cache" in name:
        with pytest.warns(SpmdirWarning, match=r"output .* of Model is a Cache, .* returns None instead") as issued:
            spec = out_spec(model, {"x": X})
        assert {w.filename for w in issued if isinstance(w.message, SpmdirWarning)} == {__file__}
    else:
        spec = out_spec(model, {"x": X})
    assert spec == pytree.tree_structure(expected)


@FRONTS
@pytest.mark.parametrize(
    ("returned", "place"),
    [(lambda y: Cache(), "the output of the module"), (lambda y: {"a": [Cache()]}, r"output\['a'\]\[0\]")],
)
def test_an_unknown_object_that_cannot_be_left_out_is_an_error(returned: Any, place: str, out_spec: Any) -> None:
    with pytest.raises(UnsupportedError, match=f"{place} is a Cache; expected tensors and numbers"):
        out_spec(Model(returned), {"x": X})


@FRONTS
def test_a_causal_model_of_transformers_is_captured_as_it_is_configured_by_default(out_spec: Any) -> None:
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    with pytest.warns(SpmdirWarning, match="LlamaForCausalLM is a DynamicCache"):
        spec = out_spec(LlamaForCausalLM(config), {"input_ids": torch.zeros(2, 4, dtype=torch.long)})
    assert (spec.type.__name__, spec.context) == ("CausalLMOutputWithPast", ["logits"])


class Counts(nn.Module):
    def forward(self, x: Tensor, cache: Any) -> Tensor:
        cache.calls = getattr(cache, "calls", 0) + 1
        return x * cache.calls


def test_an_error_of_the_forward_names_the_cache_that_it_is_given() -> None:
    with pytest.raises(UnsupportedError, match=r"the argument 'cache' contains a Cache; expected .* use_cache=False"):
        of_joint(Counts(), {"x": X, "cache": Cache()})
