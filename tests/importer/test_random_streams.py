"""What eager draws is drawn by the imported program, used or not, and in the same order."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from spmdir.importer.importer import import_fx
from spmdir.simulator.simulate import run_single, simulate
from tests.importer.imported_programs import MESH, export

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "rand": lambda x: torch.rand(4, 6, dtype=x.dtype),
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(4, 6, dtype=x.dtype),
    "randperm": lambda x: torch.randperm(6).to(x.dtype) + x * 0,
    "randint_like": lambda x: torch.randint_like(x, 5),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli_": lambda x: (x * 0).bernoulli_(0.3),
    "normal of tensors": lambda x: torch.normal(x, x.abs()),
    "normal_": lambda x: (x * 0).normal_(),
    "uniform_": lambda x: (x * 0).uniform_(-1, 1),
    "exponential_": lambda x: (x * 0).exponential_(),
    "multinomial": lambda x: torch.multinomial(x.sigmoid(), 6).to(x.dtype),
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout_": lambda x: F.dropout(x * 1, 0.4, inplace=True),
    "dropout in eval": lambda x: F.dropout(x, 0.4, False),
    "dropout of nothing": lambda x: F.dropout(x, 0.0),
    "dropout of all": lambda x: F.dropout(x, 1.0),
    "native_dropout": lambda x: torch.native_dropout(x, 0.0, True)[0],
    "dropout1d": lambda x: F.dropout1d(x, 0.3),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "without gradient": lambda x: torch.no_grad()(torch.rand_like)(x),
}


def programs(seed: int) -> Callable[[Tensor], list[Tensor]]:
    """Return a program of random ops, of whose results it uses half; the last number that it draws is always used."""

    def program(x: Tensor) -> list[Tensor]:
        choose, values = random.Random(seed), [x]
        for draw in choose.choices(list(DRAWS.values()), k=8):
            drawn = draw(choose.choice(values))
            values += [drawn] if choose.random() < 0.5 else []
        return [*values[-2:], torch.rand_like(x)]

    return program


def unused(x: Tensor) -> list[Tensor]:
    for draw in DRAWS.values():
        draw(x)
    return [torch.rand_like(x)]


@pytest.mark.parametrize("trace", ["make_fx", "export"])
@pytest.mark.parametrize("program", [unused, *map(programs, range(3))], ids=["unused", "0", "1", "2"])
def test_the_stream_is_that_of_eager(program: Callable[[Tensor], list[Tensor]], trace: str):
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.random.fork_rng():
        graph = make_fx(program)(x) if trace == "make_fx" else export(lambda _, x: program(x), x)
        torch.manual_seed(5)
        expected = program(x)
    module = import_fx(graph, MESH, {"input:0": "dp: S(0), tp: S(1)"}, check=True)
    for run in (run_single, simulate):
        for found, right in zip(run(module, [x], seed=5), expected, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-12, atol=0)
