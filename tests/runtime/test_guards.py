"""Guards hold until something that the forward reads has changed: ways to read, places of state, kinds of values."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import operator
import re
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from spmdir.core.errors import UnsupportedError
from spmdir.runtime.dry_run import dry_run_module
from spmdir.runtime.guards import Guards, setting_facts
from spmdir.runtime.state_walk import StateWalk
from spmdir.runtime.variants import Structure

CPU = torch.device("cpu")
X = torch.ones(4, requires_grad=True)
_get, _grad = getattr, torch.is_grad_enabled


def guards_of(model: nn.Module, *args: Any) -> Guards:
    dry_run = dry_run_module(model, args or (X,), {})
    walk = StateWalk(dry_run.code, {"model": model}, caches=frozenset(dry_run.caches.dicts))
    return Guards.of(walk, dry_run.code, ["model"], CPU).check_now(model)


def change_seen(model: nn.Module, change: Callable[[], Any], *args: Any) -> str:
    """Return what the guards of a model say after a change; they hold before."""
    guards = guards_of(model, *args)
    assert guards.hold(model)
    change()
    assert not guards.hold(model)
    return guards.find_change(model) or ""


class Model(nn.Module):
    """Calls `forward_by`, with state in all that `PLACES` names."""

    def __init__(self, forward_by: Callable[[Any, torch.Tensor], Any] = lambda m, x: x) -> None:
        super().__init__()
        self.inner, self.forward_by = nn.Linear(4, 4), forward_by

    def forward(self, x: torch.Tensor) -> Any:
        return self.forward_by(self, x)


@dataclasses.dataclass
class Config:
    a: Any = 1.0
    b: Any = 1.0


class Slotted:
    __slots__ = ("value",)


class Computing:
    """A configuration with another name for an attribute."""

    def __getattr__(self, name: str) -> Any:
        if name == "value":
            return self.__dict__["n_" + name]
        raise AttributeError(name)


def numbered(name: str) -> str:
    return name + str(1)


def by_match(m: Any) -> Any:
    match m:
        case Model(w1=found):
            return found


READERS: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda m: m.w1,
    "concatenation": lambda m: getattr(m, "w" + str(1)),
    "percent": lambda m: getattr(m, "w%d" % 1),  # noqa: UP031  # one of the ways
    "format": lambda m: getattr(m, f"w{1}"),
    "helper": lambda m: getattr(m, numbered("w")),
    "another name of getattr": lambda m: functools.partial(_get, m)(numbered("w")),
    "mapped getattr": lambda m: next(map(getattr, [m], [numbered("w")])),
    "hasattr": lambda m: m.w1 if hasattr(m, numbered("w")) else 0,
    "text in the state": lambda m: getattr(m, m.which),
    "vars": lambda m: vars(m)[numbered("w")],
    "dict": lambda m: m.__dict__[numbered("w")],
    "attrgetter": lambda m: operator.attrgetter(numbered("w"))(m),
    "match": by_match,
}
"""Ways to read the attribute `w1` of a model."""


@pytest.mark.parametrize("name", READERS)
def test_an_attribute_is_seen_however_it_is_read(name):
    model = Model(lambda m, x: x * READERS[name](m))
    model.w1, model.which = 1.0, "w1"
    assert "w1" in change_seen(model, lambda: setattr(model, "w1", 2.0))


class Class:
    value: Any = None


def scaled() -> None:
    """Has attributes."""


def with_default(value: Any = None) -> Any:
    return value


def closing_over(value: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def get() -> Any:
        return value

    def put(new: Any) -> None:
        nonlocal value
        value = new

    return get, put


GLOBAL: Any = None
OTHER = types.ModuleType("other_of_tests")
sys.modules[OTHER.__name__] = OTHER
LOCAL, SET_LOCAL = closing_over(None)


def set_global(value: Any) -> None:
    global GLOBAL
    GLOBAL = value


class Holder:
    """Is equal to nothing but itself."""


PLACES: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "attribute": (lambda m: m.value, lambda m, v: setattr(m, "value", v)),
    "configuration": (lambda m: m.config.b, lambda m, v: setattr(m.config, "b", v)),
    "fields of a dataclass": (lambda m: dataclasses.astuple(m.config)[1], lambda m, v: setattr(m.config, "b", v)),
    "slot": (lambda m: m.slotted.value, lambda m, v: setattr(m.slotted, "value", v)),
    "computed name": (lambda m: m.computing.value, lambda m, v: setattr(m.computing, "n_value", v)),
    "entry of a dict": (lambda m: m.entries["k"], lambda m, v: m.entries.__setitem__("k", v)),
    "entry of an ordered dict": (lambda m: m.ordered["k"], lambda m, v: m.ordered.__setitem__("k", v)),
    "item of a list": (lambda m: m.items_[0], lambda m, v: m.items_.__setitem__(0, v)),
    "item of a deque": (lambda m: m.queue[0], lambda m, v: m.queue.__setitem__(0, v)),
    "object in a set": (lambda m: [e.value for e in m.chosen], lambda m, v: setattr(next(iter(m.chosen)), "value", v)),
    "object that is a key": (
        lambda m: [e.value for e in m.keyed],
        lambda m, v: setattr(next(iter(m.keyed)), "value", v),
    ),
    "object behind a weak reference": (lambda m: m.weak().value, lambda m, v: setattr(m.weak(), "value", v)),
    "method that is bound": (lambda m: m.bound("k"), lambda m, v: m.entries.__setitem__("k", v)),
    "class": (lambda m: Class.value, lambda m, v: setattr(Class, "value", v)),
    "function": (lambda m: scaled.value, lambda m, v: setattr(scaled, "value", v)),  # type: ignore[attr-defined]
    "default": (lambda m: with_default(), lambda m, v: setattr(with_default, "__defaults__", (v,))),
    "closure": (lambda m: LOCAL(), lambda m, v: SET_LOCAL(v)),
    "global": (lambda m: GLOBAL, lambda m, v: set_global(v)),
    "global of another module": (lambda m: OTHER.value, lambda m, v: setattr(OTHER, "value", v)),
    "object of torch": (lambda m: m.transform.event_dim_, lambda m, v: setattr(m.transform, "event_dim_", v)),
}
"""Places of state → how it is read there, and set."""


def replaced(value: Any) -> Callable[[Any], Any]:
    return lambda before: value


def in_place(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def apply(value: Any) -> Any:
        change(value)
        return value

    return apply


VALUES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "number": (lambda: 1.0, replaced(2.0)),
    "zero of another sign": (lambda: 0.0, replaced(-0.0)),
    "number of another type": (lambda: 1, replaced(1.0)),
    "flag": (lambda: 1, replaced(True)),
    "complex number": (lambda: complex(0.0, 1.0), replaced(complex(-0.0, 1.0))),
    "pattern": (lambda: re.compile("a+"), replaced(re.compile("b"))),
    "bytes that change": (lambda: bytearray(b"a"), in_place(lambda v: v.extend(b"b"))),
    "array": (lambda: np.ones(4), in_place(lambda v: v.fill(2))),
    "shape of an array": (lambda: np.ones((2, 3)), replaced(np.ones((3, 2)))),
    "type of an array": (lambda: np.zeros(2, np.int32), replaced(np.zeros(2, np.float32))),
    "list": (lambda: [1, 2], in_place(lambda v: v.reverse())),
    "set": (lambda: {1, 2}, in_place(lambda v: v.add(3))),
    "type of a key": (lambda: {1: 0}, replaced({True: 0})),
    "order of keys": (lambda: {"a": 1, "b": 2}, replaced({"b": 2, "a": 1})),
    "namespace": (lambda: types.SimpleNamespace(k=1), in_place(lambda v: setattr(v, "k", 2))),
    "plain tensor": (lambda: torch.tensor(1.0), replaced(torch.tensor(1.0))),
    "plain tensor that is written to": (lambda: torch.tensor(1.0), in_place(lambda v: v.add_(1))),
    "object": (object, replaced(object())),
    "generator of numbers": (lambda: np.random.default_rng(0), in_place(lambda v: v.random())),
}
"""Kinds of values → how one is made, and changed."""


def with_state(place: str, value: Any) -> Model:
    model = Model(lambda m, x: (PLACES[place][0](m), x * 2)[1])
    model.config, model.slotted, model.computing = Config(), Slotted(), Computing()
    model.entries, model.ordered, model.items_, model.queue = {}, collections.OrderedDict(), [0], collections.deque([0])
    model.chosen, model.keyed, model.kept, model.bound = {Holder()}, {Holder(): 1}, Holder(), model.entries.get
    model.weak, model.transform = weakref.ref(model.kept), torch.distributions.transforms.ExpTransform()
    PLACES[place][1](model, value)
    return model


PAIRS = [(place, "number") for place in PLACES] + [("attribute", kind) for kind in VALUES]
PAIRS += [(place, kind) for place in ("configuration", "item of a list", "global", "closure") for kind in VALUES]


@pytest.mark.parametrize(("place", "kind"), sorted(set(PAIRS)))
def test_a_change_is_seen_in_each_place_and_of_each_kind(place, kind):
    make, change = VALUES[kind]
    value = make()
    model = with_state(place, value)
    assert change_seen(model, lambda: PLACES[place][1](model, change(value)))


def shadow(model: Any) -> None:
    del model.other
    model.class_value = 3.0


class Shadowed(Model):
    class_value, other = 2.0, None


def shadowed() -> nn.Module:
    model = Shadowed(lambda m, x: x * m.class_value)
    model.other = 1.0
    return model


class Double(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return by_global(gradient)


def by_global(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * FACTOR


def with_hook(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y.register_hook(by_global)
    return y


FACTOR = 1.0


def change_factor() -> None:
    global FACTOR
    FACTOR += 1.0


OTHERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], str]] = {
    "a new attribute in the place of another": (
        lambda: shadowed(),
        shadow,
        "model.class_value was absent and is 3.0",
    ),
    "global that the backward reads": (
        lambda: Model(lambda m, x: Double.apply(x)),
        lambda m: change_factor(),
        "FACTOR",
    ),
    "global that a hook reads": (lambda: Model(with_hook), lambda m: change_factor(), "FACTOR"),
    "training of a module of torch": (
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4))),
        lambda m: m.eval(),
        "training was True and is False",
    ),
    "modules that change places": (
        lambda: nn.Sequential(nn.ReLU(), nn.Tanh()),
        lambda m: m._modules.update({"0": m[1], "1": m[0]}),
        "model.0 was a torch.nn.modules.activation.ReLU",
    ),
    "further layer": (
        lambda: nn.Sequential(nn.ReLU()),
        lambda m: m.append(nn.Tanh()),
        "model.1 was absent and is a torch.nn.modules.activation.Tanh",
    ),
    "removed layer": (
        lambda: nn.Sequential(nn.ReLU(), nn.Tanh()),
        lambda m: m.__delitem__(1),
        "model.1 was there and is gone",
    ),
    "layers in another order": (
        lambda: nn.Sequential(nn.ReLU(), nn.Tanh()),
        lambda m: m._modules.update({"0": m._modules.pop("0")}),
        "the order of names in model was ['0', '1'] and is ['1', '0']",
    ),
    "parameters that change places in a list": (
        lambda: with_parameters(),
        lambda m: m.lists.reverse(),
        "was the same as model.lists[0] and is",
    ),
    "function of torch": (
        lambda: Model(lambda m, x: torch.nn.functional.gelu(x)),
        lambda m: setattr(torch.nn.functional, "gelu", torch.nn.functional.relu),
        "torch.nn.functional.gelu was",
    ),
    "hook with keyword arguments": (
        lambda: Model(lambda m, x: m.inner(x)),
        lambda m: m.inner.register_forward_pre_hook(lambda *args: None, with_kwargs=True),
        "model.inner._forward_pre_hooks was empty",
    ),
}
"""Further changes → the model, the change, what is said of it."""


def with_parameters() -> nn.Module:
    model = Model(lambda m, x: x * m.lists[0].sum())
    model.lists = [model.inner.weight, model.inner.bias]
    return model


@pytest.mark.parametrize("name", OTHERS)
def test_further_changes_are_seen_and_named(name, monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "gelu", torch.nn.functional.gelu)
    make, change, text = OTHERS[name]
    model = make()
    assert text in change_seen(model, lambda: change(model))


def test_attributes_that_no_code_reads_may_change():
    model = Model(lambda m, x: getattr(m.inner, "wei" + "ght") * x)
    guards = guards_of(model)
    model.note, model.inner.note = 1, [2]  # type: ignore[assignment]  # attributes
    assert guards.hold(model)


def test_a_setting_is_seen_by_another_name_of_its_function():
    guards = guards_of(Model(lambda m, x: x * (2 if _grad() else 3)))
    with torch.no_grad():
        assert guards.facts["torch.is_grad_enabled()"] == "True"
        assert not guards.hold(Model())


@pytest.mark.parametrize("state", [itertools.count(), iter([1, 2]), (n for n in (1, 2)), zip([1], [2], strict=True)])
def test_state_that_cannot_be_compared_is_an_error_that_names_it(state):
    model = Model(lambda m, x: x if m.state is None else x * 2)
    model.state = state
    with pytest.raises(UnsupportedError, match=r"the forward reads model\.state \("):
        guards_of(copy_with(model, state))


def copy_with(model: nn.Module, state: Any) -> nn.Module:
    model.__deepcopy__ = lambda memo: model  # type: ignore[assignment]  # generators have no copies
    return model


def test_an_inference_tensor_is_compared_by_identity():
    model = Model(lambda m, x: x * m.table.size(0))
    with torch.inference_mode():
        model.table = torch.ones(4)
    assert "model.table" in change_seen(model, lambda: setattr(model, "table", torch.ones(4)))


def test_arguments_are_told_apart_by_the_bits_of_numbers():
    def structure(value: Any) -> Structure:
        return Structure.of([value], torch.utils._pytree.tree_structure([0]))

    assert structure(float("nan")) == structure(float("nan"))
    assert structure(0.0) != structure(-0.0)
    assert structure(1) != structure(1.0)
    assert structure(1.0) == structure(1.0)


def test_settings_are_in_one_order_whatever_the_hash_seed_of_the_process() -> None:
    code: Any = types.SimpleNamespace(
        users_names={"requires_grad", "is_inference", "are_deterministic_algorithms_enabled"}
    )
    assert list(setting_facts(code, CPU)) == [
        "torch.get_default_dtype()",
        "torch.get_default_device()",
        "torch.autocast",
        "torch.nn.attention.sdpa_kernel",
        "torch.get_float32_matmul_precision()",
        "torch.is_grad_enabled()",
        "torch.is_inference_mode_enabled()",
        "torch.are_deterministic_algorithms_enabled()",
    ]


def test_results_that_a_user_has_cached_stay_in_the_cache():
    @functools.lru_cache
    def table(size: int) -> list[float]:
        return [float(size)]

    table(7)
    guards_of(Model(lambda m, x: x * table(3)[0]))
    assert table.cache_info().currsize == 2


def test_guards_hold_after_torch_compile_has_replaced_the_constructor_of_modules(monkeypatch):
    model = Model(lambda m, x: nn.Identity()(x))
    guards = guards_of(model)
    original = nn.Module.__init__
    monkeypatch.setattr(nn.Module, "__init__", lambda self, *args, **kwargs: original(self, *args, **kwargs))
    assert guards.hold(model)


def _times_factor(model, x):
    return model.factor * x


def test_state_that_is_read_after_a_grouped_product_is_guarded():
    weight, ends = torch.ones(2, 4, 4), torch.tensor([1, 3], dtype=torch.int32)
    model = Model(lambda m, x: _times_factor(m, torch._grouped_mm(x.expand(4, 4), weight, offs=ends)))
    model.factor = 2.0
    assert change_seen(model, lambda: setattr(model, "factor", 3.0)) == "model.factor was 2.0 and is 3.0"
