"""Modules that read or change Python state, run by each of the three fronts; cases return what their tests compare."""

# pyright: reportOperatorIssue=false
from __future__ import annotations

import copy
import enum
import functools
import itertools
import os
import random
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import spmdir
from spmdir.core.errors import SpmdirError

MESH = spmdir.Mesh({"dp": 1})
X = torch.arange(8, dtype=torch.float64).view(4, 2) / 4
FRONTS = ("shard_module", "parallelize", "training_step")
FACTOR = 1.0
SETTINGS = types.ModuleType("settings_of_tests")
SETTINGS.factor = 1.0  # type: ignore[attr-defined]
sys.modules[SETTINGS.__name__] = SETTINGS


class Kind(enum.Enum):
    ONE = 1.0
    TWO = 2.0


class Named:
    """A configuration whose attributes have two names."""

    def __init__(self) -> None:
        self.n_factor = 1.0

    def __getattr__(self, name: str) -> Any:
        if name == "factor":
            return self.__dict__["n_" + name]
        raise AttributeError(name)


def scaled(x: Tensor, factor: float = 1.0) -> Tensor:
    return x * factor


def closing_over(factors: list[float]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        return x * factors[0]

    return function


FACTORS = [1.0]
CLOSURE = closing_over(FACTORS)


class Reading(nn.Module):
    """Holds state of each kind, and reads all of it."""

    class_factor, shadowed = 1.0, 1.0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 2)
        self.number, self.filled, self.kind = 1.0, 1.0, Kind.ONE
        self.config, self.named = types.SimpleNamespace(inner=types.SimpleNamespace(factor=1.0)), Named()
        self.entries, self.items_, self.chosen = {"factor": 1.0, "other": 5}, [1.0, 2.0], {1}
        self.w0, self.w1 = 1.0, 1.0
        self.function = functools.partial(scaled, factor=1.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        for read, _, _ in READ.values():
            y = read(self, y)
        return y

    def factor(self) -> float:
        return 1.0


def change_global(model: Any) -> Iterator[None]:
    global FACTOR
    FACTOR = 2.0
    yield
    FACTOR = 1.0


def change_attribute(owner: Callable[[Any], Any], name: str, value: Any) -> Callable[[Any], Iterator[None]]:
    def change(model: Any) -> Iterator[None]:
        before = getattr(owner(model), name)
        setattr(owner(model), name, value)
        yield
        setattr(owner(model), name, before)

    return change


def change_by(apply: Callable[[Any], Any], undo: Callable[[Any], Any]) -> Callable[[Any], Iterator[None]]:
    def change(model: Any) -> Iterator[None]:
        apply(model)
        yield
        undo(model)

    return change


def inside(context: Callable[[], Any]) -> Callable[[Any], Iterator[None]]:
    def change(model: Any) -> Iterator[None]:
        with context():
            yield

    return change


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def replace_forward(model: Any) -> Iterator[None]:
    forward = model.layer.forward
    model.layer.forward = lambda x: forward(x) * 2
    yield
    del model.layer.forward


def add_hook(model: Any) -> Iterator[None]:
    hook = model.layer.register_forward_hook(lambda module, args, output: output * 2)
    yield
    hook.remove()


def _model(model: Any) -> Any:
    return model


READ: dict[str, tuple[Callable[[Any, Tensor], Any], Callable[[Any], Iterator[None]], str]] = {
    "global": (lambda m, y: y * FACTOR, change_global, "FACTOR was 1.0 and is 2.0"),
    "global of another module": (
        lambda m, y: y * SETTINGS.factor,  # type: ignore[attr-defined]
        change_attribute(lambda m: SETTINGS, "factor", 2.0),
        "settings_of_tests.factor was 1.0 and is 2.0",
    ),
    "class attribute": (
        lambda m, y: y * m.class_factor,
        change_attribute(lambda m: Reading, "class_factor", 2.0),
        "Reading.class_factor was 1.0 and is 2.0",
    ),
    "class attribute that an instance shadows": (
        lambda m, y: y * m.shadowed,
        change_by(lambda m: setattr(m, "shadowed", 2.0), lambda m: delattr(m, "shadowed")),
        "model.shadowed was absent and is 2.0",
    ),
    "method of the class": (
        lambda m, y: y * m.factor(),
        change_attribute(lambda m: Reading, "factor", lambda self: 2.0),
        "Reading.factor was function",
    ),
    "attribute": (
        lambda m, y: y * m.number,
        change_attribute(_model, "number", 2.0),
        "model.number was 1.0 and is 2.0",
    ),
    "type of a number": (
        lambda m, y: y * (1 if type(m.filled) is float else 2),
        change_attribute(_model, "filled", 1),
        "model.filled was 1.0 and is 1",
    ),
    "enumeration": (
        lambda m, y: y * (2 if m.kind is Kind.TWO else 1),
        change_attribute(_model, "kind", Kind.TWO),
        "model.kind was <Kind.ONE: 1.0>",
    ),
    "configuration": (
        lambda m, y: y * m.config.inner.factor,
        change_attribute(lambda m: m.config.inner, "factor", 2.0),
        "model.config.inner.factor was 1.0 and is 2.0",
    ),
    "configuration that computes names": (
        lambda m, y: y * m.named.factor,
        change_attribute(lambda m: m.named, "n_factor", 2.0),
        "model.named.n_factor was 1.0 and is 2.0",
    ),
    "entry of a dict": (
        lambda m, y: y * m.entries["factor"],
        change_by(lambda m: m.entries.update(factor=2.0), lambda m: m.entries.update(factor=1.0)),
        "model.entries was {'factor': 1.0, 'other': 5} and is {'factor': 2.0, 'other': 5}",
    ),
    "item of a list": (
        lambda m, y: y * m.items_[0],
        change_by(lambda m: m.items_.reverse(), lambda m: m.items_.reverse()),
        "model.items_ was [1.0, 2.0] and is [2.0, 1.0]",
    ),
    "set": (
        lambda m, y: y * (2 if 7 in m.chosen else 1),
        change_by(lambda m: m.chosen.add(7), lambda m: m.chosen.discard(7)),
        "model.chosen was {1} and is {1, 7}",
    ),
    "built name": (
        lambda m, y: y * getattr(m, f"w{1}"),
        change_attribute(_model, "w1", 2.0),
        "model.w1 was 1.0 and is 2.0",
    ),
    "closure": (
        lambda m, y: CLOSURE(y),
        change_by(lambda m: FACTORS.insert(0, 2.0), lambda m: FACTORS.pop(0)),
        "CLOSURE:factors was [1.0] and is [2.0, 1.0]",
    ),
    "default of an argument": (
        lambda m, y: scaled(y),
        change_attribute(lambda m: scaled, "__defaults__", (2.0,)),
        "scaled.__defaults__ was (1.0,) and is (2.0,)",
    ),
    "partial": (
        lambda m, y: m.function(y),
        change_attribute(_model, "function", functools.partial(scaled, factor=2.0)),
        "model.function.keywords was {'factor': 1.0} and is {'factor': 2.0}",
    ),
    "forward of a submodule": (lambda m, y: y, replace_forward, "model.layer.forward was absent"),
    "hook of a submodule": (lambda m, y: y, add_hook, "model.layer._forward_hooks"),
    "grad mode": (
        lambda m, y: y * (1 if torch.is_grad_enabled() else 2),
        inside(torch.no_grad),
        "torch.is_grad_enabled() was True and is False",
    ),
    "default dtype": (
        lambda m, y: y + torch.zeros(2) + torch.tensor(0.1).double(),
        inside(lambda: default_dtype(torch.float64)),
        "torch.get_default_dtype() was torch.float32 and is torch.float64",
    ),
    "autocast": (
        lambda m, y: y + nn.functional.linear(y.float(), torch.full((2, 2), 0.1).float()),
        inside(lambda: torch.autocast("cpu", torch.bfloat16)),
        "torch.autocast was None and is torch.bfloat16",
    ),
    "environment": (
        lambda m, y: y * float(os.environ.get("SPMDIR_TEST_FACTOR", "1")),
        change_by(lambda m: os.environ.update(SPMDIR_TEST_FACTOR="2"), lambda m: os.environ.pop("SPMDIR_TEST_FACTOR")),
        "os.environ['SPMDIR_TEST_FACTOR'] was None and is '2'",
    ),
}
"""What is read → (how, how it is changed and changed back, what the error says)."""


class Ema(nn.Module):
    """Assigns a buffer of a submodule, and returns the old one too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.inner = nn.Linear(2, 2), nn.Module()
        self.inner.register_buffer("ema", torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Any:
        y, old = self.layer(x), self.inner.ema
        self.inner.ema = self.inner.ema * 0.5 + y.detach().mean(0)
        return y + self.inner.ema * 2 + old


def replaced(m: Any, y: Tensor) -> None:
    m.held = torch.ones_like(y[0].detach()) * 2


def sum_replaced(m: Any, y: Tensor) -> None:
    m.held = m.held + y.size(0)


def in_place(m: Any, y: Tensor) -> None:
    m.held += y.detach().mean(0)


def ones_in_place(m: Any, y: Tensor) -> None:
    m.held += torch.ones_like(y[:, 0]).sum()


def by_method(m: Any, y: Tensor) -> None:
    m.held.add_(torch.full_like(y[0].detach(), y.size(0)))


ASSIGNED = {each.__name__: each for each in (replaced, sum_replaced, in_place, ones_in_place, by_method)}
"""Ways to write to the buffer `held`."""


class Assigning(nn.Module):
    """Returns what it has written to a buffer by `assign`."""

    def __init__(self, assign: Callable[[Any, Tensor], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.assign = nn.Linear(2, 2), assign
        self.register_buffer("held", torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Any:
        y = self.layer(x)
        self.assign(self, y)
        return y + self.held


class Changing(nn.Module):
    """Changes state by `change`."""

    def __init__(self, change: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.change = nn.Linear(2, 2), change
        self.n, self.seen, self.entries, self.config = 0, [], {}, types.SimpleNamespace(calls=0)  # type: ignore[var-annotated]
        self.first, self.table, self.length, self.bytes_ = True, None, 0, bytearray(b"a")
        self.register_buffer("held", torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Any:
        y = self.layer(x)
        result = self.change(self, y)
        return y if result is None else result


CALLS = {"n": 0}
COUNTER = itertools.count()


def count_calls(m: Any, y: Tensor) -> None:
    CALLS["n"] += 1


def count(m: Any, y: Tensor) -> Tensor:
    m.n += 1
    return y * m.n


def only_first(m: Any, y: Tensor) -> Tensor:
    if m.first:
        m.first = False
        return y * 2
    return y


def lazy_table(m: Any, y: Tensor) -> Tensor:
    """Build a table at the first call, as rotary embeddings do."""
    if m.table is None or m.length < y.shape[0]:
        m.table, m.length = torch.arange(y.shape[0], dtype=torch.float64).cos()[:, None], y.shape[0]
    return y * m.table


TABLES: dict[int, Tensor] = {}


@functools.lru_cache
def table_of_cosines(size: int) -> Tensor:
    return torch.arange(size, dtype=torch.float64).cos()[:, None]


def table_of_sines(size: int) -> Tensor:
    if size not in TABLES:
        TABLES[size] = torch.arange(size, dtype=torch.float64).sin()[:, None]
    return TABLES[size]


def global_tables(m: Any, y: Tensor) -> Tensor:
    return y * table_of_cosines(y.shape[0]) + table_of_sines(y.shape[0])


CHANGED: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "number": (count, "the forward changes model.n, which was 1 and is 2"),
    "list": (lambda m, y: m.seen.append(1), "the forward changes model.seen, which was [1] and is [1, 1]"),
    "entry": (
        lambda m, y: m.entries.update(n=len(m.entries.get("n", "")) * "a" + "a"),
        "the forward changes model.entries",
    ),
    "configuration": (
        lambda m, y: setattr(m.config, "calls", m.config.calls + 1),
        "the forward changes model.config.calls, which was 1 and is 2",
    ),
    "global": (count_calls, "CALLS, which was {'n': "),
    "tensor": (lambda m, y: setattr(m, "last", y), "the forward changes model.last, which was a tensor"),
    "generator of Python": (lambda m, y: y * random.random(), "the generator of Python's `random` drew numbers"),
    "generator of numpy": (lambda m, y: y * np.random.rand(), "the generator of `numpy.random` drew numbers"),
    "iterator": (lambda m, y: y if next(COUNTER) < 2 else y * 2, "COUNTER (itertools.count); spmdir"),
    "bytes": (lambda m, y: m.bytes_.extend(b"a"), "the forward changes model.bytes_, which was bytearray(b"),
    "first call": (
        only_first,
        "the second call of the forward runs other ops, so the forward changes Python state",
    ),
    "parameter": (
        lambda m, y: setattr(m.layer, "bias", nn.Parameter(y[0].detach())),
        "the forward assigns the parameter 'layer.bias'",
    ),
    "new buffer": (lambda m, y: m.register_buffer("late", y[0].detach()), "the forward registers the buffer 'late'"),
    "buffer of another shape": (
        lambda m, y: setattr(m, "held", y.detach()),
        "the forward assigns the buffer 'held', a tensor of torch.float64 [2], a tensor of torch.float64 [4, 2]",
    ),
}
"""What the forward changes → (how, what the error says)."""


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum()


def on_front(front: str, model: nn.Module) -> tuple[Callable[[Tensor], Tensor], nn.Module]:
    """Return what runs `model`, or its loss, and the model whose state it follows."""
    if front == "shard_module":
        sharded = spmdir.shard_module(model, MESH, {}, (X,))
        return (lambda x: loss(sharded, x)), sharded
    if front == "parallelize":
        parallel = spmdir.parallelize(model, MESH, {}, (X,))
        return (lambda x: parallel(x).square().sum()), model
    step, state = spmdir.training_step(model, loss, torch.optim.SGD(model.parameters(), lr=0.0))
    return spmdir.parallelize(step, MESH, {}, (X,), state=state), model


def read_cases(front: str) -> dict[str, dict[str, Any]]:
    """Kind of state → what a front gives before, after and after undoing a change, with what one device gives.

    An error counts as its text.
    """
    model = Reading().double()
    alone = copy.deepcopy(model)
    run, followed = on_front(front, model)
    return {name: read_case(run, followed, alone, name) for name in READ}


def read_case(run: Callable[[Tensor], Tensor], followed: nn.Module, alone: nn.Module, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"before": (run(X).item(), loss(alone, X).item())}
    models = [followed, alone] if name in ON_INSTANCE else [followed]
    states = [READ[name][1](model) for model in models]
    for state in states:
        next(state)
    try:
        after = run(X).item()
    except SpmdirError as error:
        after = error.message
    found["after"] = (after, loss(alone, X).item())
    for state in reversed(states):
        next(state, None)
    found["undone"] = (run(X).item(), loss(alone, X).item())
    return found


def programs_of_unread() -> list[int]:
    """How many programs there are after changes of what no code reads, and calls with and without gradients."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).double()
    sharded = spmdir.shard_module(model, MESH, {}, (X,))
    counts = []
    for number in range(2):
        sharded.note, sharded[0].note = number, {"number": number}  # type: ignore[assignment]  # attributes
        sharded(X)
        with torch.no_grad():
            sharded(X)
        counts.append(len(spmdir.report.rank_programs(sharded)))
    sharded.eval()
    sharded(X)
    return [*counts, len(spmdir.report.rank_programs(sharded))]


ON_INSTANCE = frozenset({
    "class attribute that an instance shadows", "attribute", "type of a number", "enumeration", "configuration",
    "configuration that computes names", "entry of a dict", "item of a list", "set", "built name", "partial",
    "forward of a submodule", "hook of a submodule",
})  # fmt: skip
"""The kinds of state that each copy of a model has."""


def changed_case(front: str, name: str) -> str:
    """The error of a front for a forward that changes state."""
    try:
        on_front(front, Changing(CHANGED[name][0]).double())
    except SpmdirError as error:
        return error.message
    return ""


def repeated(front: str, model: nn.Module) -> list[tuple[float, float]]:
    """What three calls give, on a front and on one device."""
    alone = copy.deepcopy(model)
    run, _ = on_front(front, model)
    return [(run(X).item(), loss(alone, X).item()) for _ in range(3)]


def with_global_tables(front: str) -> list[tuple[float, float]]:
    """What three calls give with tables that no call has built before."""
    TABLES.clear()
    table_of_cosines.cache_clear()
    return repeated(front, Changing(global_tables).double())


def run(rank: int) -> dict[str, Any]:
    return {
        "read": {front: read_cases(front) for front in FRONTS},
        "unread": programs_of_unread(),
        "changed": {(front, name): changed_case(front, name) for front in FRONTS for name in CHANGED},
        "assigned": {front: repeated(front, Ema().double()) for front in FRONTS},
        "assigned by": {
            (front, name): repeated(front, Assigning(assign).double())
            for front in FRONTS
            for name, assign in ASSIGNED.items()
        },
        "global tables": {front: with_global_tables(front) for front in FRONTS},
        "table": {front: repeated(front, Changing(lazy_table).double()) for front in FRONTS},
    }
