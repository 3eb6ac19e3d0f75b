"""A model's own word on its values."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir
from spmdir.errors import ParseError, ShardingError
from spmdir.importer import constrain, import_fx
from spmdir.lowering import simulate
from tests.importer.helpers import MESH, export, op, ops

X = torch.arange(24.0).reshape(4, 6)


def test_is_an_identity_in_eager_with_an_identity_gradient():
    x = X.clone().requires_grad_()
    y = constrain(x, "dp: S(0), tp: ?")
    assert torch.equal(y, x)
    (gradient,) = torch.autograd.grad((y * X).sum(), x)
    assert torch.equal(gradient, X)


def test_is_a_public_verb():
    assert spmdir.constrain is constrain


@pytest.mark.parametrize("sharding", ["dp: S(0), tp: ?", {"dp": "S(0)", "tp": "?"}])
def test_survives_export_and_decompositions(sharding):
    program = export(lambda s, x: constrain(x.exp(), sharding) + 1, X)
    for stage in (program, program.run_decompositions({}), program.run_decompositions()):
        assert str(op(import_fx(stage, MESH), "spmd.constraint").shardings[0]) == "dp: S(0), tp: ?"


def test_constrains_the_gradient_alike():
    def gradient(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad((constrain(x, "tp: S(1)").exp()).sum(), x)[0]

    found = [o for o in ops(import_fx(make_fx(gradient)(X), MESH)) if o.name == "spmd.constraint"]
    assert [str(o.shardings[0]) for o in found] == ["tp: S(1)", "tp: S(1)"]


def test_is_recorded_under_function_transforms():
    def function(x):
        samples = torch.func.vmap(lambda row: constrain(row.sin(), "tp: S(0)"), in_dims=1)(x)
        return torch.func.grad(lambda x: (constrain(x, "dp: S(0)") ** 2).sum())(x), samples

    module = import_fx(make_fx(function)(X), MESH)
    found = [str(o.shardings[0]) for o in ops(module) if o.name == "spmd.constraint"]
    assert sorted(found) == ["dp: S(0)", "dp: S(0)", "tp: S(1)"]
    for result, expected in zip(simulate(module, [X]), function(X), strict=True):
        assert torch.allclose(result, expected)


def test_malformed_text_is_refused_in_eager():
    with pytest.raises(ParseError, match="is no part of a sharding"):
        constrain(X, "dp S(0)")


class _Constrained(nn.Module):
    def __init__(self, sharding: str):
        super().__init__()
        self.sharding = sharding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return constrain(x, self.sharding)


MISFITS = [("ep: R", "axis 'ep'"), ("dp: S(2)", "dimension 2 of a tensor of rank 2")]


@pytest.mark.parametrize(("sharding", "message"), MISFITS)
def test_a_constraint_that_does_not_fit_is_refused_with_its_line(sharding, message):
    with pytest.raises(ShardingError, match=message) as refusal:
        import_fx(torch.export.export(_Constrained(sharding), (X,)), MESH)
    assert refusal.value.location is not None
    assert refusal.value.location.file == "test_constrain.py"
