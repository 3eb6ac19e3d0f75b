"""A model's own word on its values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.export.experimental import _export_forward_backward
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.core.errors import ParseError, ShardingError
from spmdir.core.placement.sharding import parse_sharding
from spmdir.importer.constrain import constrain
from spmdir.importer.importer import import_fx
from spmdir.simulator.simulate import simulate
from tests.importer.imported_programs import MESH, export, op, ops
from tests.placements.lossy_placements import coarse

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


GRADIENTS = {
    "tp: S(1)": "tp: S(1)",
    "dp: S(0), tp: ?": "dp: S(0), tp: ?",
    "tp: P(sum)": "",
    "tp: P(max)": "",
    "dp: P(sum), tp: P(avg)": "",
    "tp: S(0), ep: P(sum), dp: S(0)": "tp: S(0), dp: S(0)",
    "dp: ?, tp: P(sum)": "dp: ?",
    "tp: Cyclic(0, 1)": "tp: Cyclic(0, 1)",
    "dp: Ragged(0, [1, 3]), tp: Norm(2.0)": "dp: Ragged(0, [1, 3])",
    "tp: Masked": "",
    "tp: Quantised": "",
    "tp: Shadow(bf16)": "tp: ?",
    "dp: S(0), tp: Shadow(f16)": "dp: S(0), tp: ?",
    "ep(1)2: P(sum), ep(2)2: S(1)": "ep(2)2: S(1)",
    "ep(1)2: S(0), ep(2)2: P(sum)": "ep(1)2: S(0)",
}
"""A constraint and that of the gradient."""

DEEP = spmdir.Mesh({"dp": 2, "tp": 2, "ep": 4})


def constraints(module: ModuleOp) -> list[str]:
    return [str(found.shardings[0]) for found in ops(module) if found.name == "spmd.constraint"]


def by_make_fx(sharding: str) -> Any:
    def gradient(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad((constrain(x, sharding).exp()).sum(), x)[0]

    return make_fx(gradient)(X)


def by_transform(sharding: str) -> Any:
    return make_fx(torch.func.grad(lambda x: constrain(x, sharding).exp().sum()))(X)


def by_aot(sharding: str) -> Any:
    return aot_export_joint_simple(
        lambda x: (constrain(x, sharding).exp(),), (X.clone().requires_grad_(),), trace_joint=True
    )


def by_export(sharding: str) -> Any:
    weight = nn.Parameter(X.clone())
    program = export(lambda model, x: constrain(model.weight * x, sharding).exp().sum(), X, weight=weight)
    return _export_forward_backward(program)


@pytest.mark.parametrize("joint", [by_make_fx, by_transform, by_aot, by_export])
@pytest.mark.parametrize(("sharding", "gradient"), GRADIENTS.items())
def test_constrains_the_gradient_alike_but_leaves_nothing_partial(joint, sharding: str, gradient: str):
    module = import_fx(joint(sharding), DEEP)
    assert constraints(module) == [str(parse_sharding(sharding)), gradient]


def test_is_traced_by_dynamo_in_both_directions():
    graphs: list[Any] = []

    def keep(graph, _):
        graphs.append(graph)
        return make_boxed_func(graph)

    compiled = torch.compile(
        lambda x: constrain(x, {"dp": "S(0)", "tp": "P(sum)"}).exp(),
        backend=aot_autograd(fw_compiler=keep, bw_compiler=keep),
        fullgraph=True,
    )
    compiled(X.clone().requires_grad_()).sum().backward()
    assert [constraints(import_fx(graph, MESH)) for graph in graphs] == [["dp: S(0), tp: P(sum)"], ["dp: S(0)"]]
    strict = torch.export.export(_Constrained("dp: S(0), tp: ?"), (X,), strict=True)
    assert constraints(import_fx(strict, MESH)) == ["dp: S(0), tp: ?"]
    with pytest.raises(ParseError, match="is not part of a sharding"):
        torch.export.export(_Constrained("dp S(0)"), (X,), strict=True)


def test_the_gradient_of_two_constraints_goes_back_from_one_to_the_other():
    def gradient(x):
        x = x.detach().requires_grad_()
        moved = constrain(constrain(x, "dp: S(0), tp: P(sum)"), "tp: S(1), dp: P(sum)")
        return torch.autograd.grad(moved.exp().sum(), x)[0]

    forward = ["dp: S(0), tp: P(sum)", "tp: S(1), dp: P(sum)"]
    assert constraints(import_fx(make_fx(gradient)(X), MESH)) == [*forward, "tp: S(1)", "dp: S(0)"]


@pytest.mark.parametrize("sharding", ["tp: S(1)", "dp: S(0), tp: P(sum)"])
def test_is_differentiable_twice_and_forwards(sharding: str):
    x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def cubed(x):
        return constrain(x.sin(), sharding) ** 3

    assert torch.autograd.gradgradcheck(cubed, x)
    hessian = torch.func.hessian(lambda x: cubed(x).sum())
    torch.testing.assert_close(hessian(x), torch.func.hessian(lambda x: (x.sin() ** 3).sum())(x))
    tangent = make_fx(lambda x: torch.func.jvp(cubed, (x,), (x.cos(),))[1])(x.detach())
    assert constraints(import_fx(tangent, MESH)) == [str(parse_sharding(sharding))] * 2


def test_the_tangent_of_a_lossy_constraint_is_left_to_the_compiler():
    tangent = make_fx(lambda x: torch.func.jvp(lambda x: constrain(x, "dp: Shadow(bf16)"), (x,), (x.cos(),))[1])(X)
    assert constraints(import_fx(tangent, MESH))[-1] == "dp: ?"


@pytest.mark.parametrize("sharding", ["dp: Coarse", "dp: CoarseRows"])
def test_a_training_step_rounds_a_constrained_weight_and_passes_its_gradient_through(sharding: str):
    def step(w, x, given):
        w = w.detach().requires_grad_()
        loss = (x @ given(w).relu()).square().sum()
        (gradient,) = torch.autograd.grad(loss, w)
        return loss.detach(), gradient, w.detach() - gradient

    w, x = torch.arange(-12.0, 12.0, dtype=torch.float64).reshape(6, 4), torch.ones(4, 6, dtype=torch.float64)
    expected = step(w, x, lambda value: value + (coarse(value) - value).detach())
    traced = make_fx(lambda w, x: step(w, x, lambda value: constrain(value, sharding)))(w, x)
    module = import_fx(traced, MESH, plan={"input:0": "dp: S(0)", "input:1": "dp: S(0)"})
    found = simulate(module, [w, x])
    assert not torch.equal(expected[0], step(w, x, lambda value: value)[0])
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_the_second_gradient_is_constrained_as_the_first():
    def gradient(x):
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad((constrain(x, "dp: S(0), tp: P(sum)") ** 3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    module = import_fx(make_fx(gradient)(X), MESH)
    assert constraints(module) == ["dp: S(0), tp: P(sum)", *["dp: S(0)"] * 3]
    torch.testing.assert_close(simulate(module, [X])[0], gradient(X))


def test_is_recorded_under_function_transforms():
    def function(x):
        samples = torch.func.vmap(lambda row: constrain(row.sin(), "tp: S(0)"), in_dims=1)(x)
        return torch.func.grad(lambda x: (constrain(x, "dp: S(0)") ** 2).sum())(x), samples

    module = import_fx(make_fx(function)(X), MESH)
    assert sorted(constraints(module)) == ["dp: S(0)", "dp: S(0)", "tp: S(1)"]
    for result, expected in zip(simulate(module, [X]), function(X), strict=True):
        assert torch.allclose(result, expected)


@pytest.mark.parametrize(
    ("row", "rows"), [("tp: Cyclic(0, 2)", "tp: Cyclic(1, 2)"), ("dp: Ragged(0, [2, 4])", "dp: Ragged(1, [2, 4])")]
)
def test_a_dimension_of_samples_comes_before_those_that_a_placement_shards(row: str, rows: str):
    samples = torch.func.vmap(lambda x: constrain(x, row))
    assert constraints(import_fx(make_fx(samples)(X), MESH)) == [rows]


def test_malformed_text_is_rejected_in_eager():
    with pytest.raises(ParseError, match="is not part of a sharding"):
        constrain(X, "dp S(0)")


class _Constrained(nn.Module):
    def __init__(self, sharding: str):
        super().__init__()
        self.sharding = sharding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return constrain(x, self.sharding)


MISFITS = [("ep: R", "axis 'ep'"), ("dp: S(2)", "dimension 2 of a tensor of rank 2")]


@pytest.mark.parametrize(("sharding", "message"), MISFITS)
def test_a_constraint_that_does_not_fit_is_rejected_with_its_line(sharding, message):
    with pytest.raises(ShardingError, match=message) as raised:
        import_fx(torch.export.export(_Constrained(sharding), (X,)), MESH)
    assert raised.value.location is not None
    assert raised.value.location.file == "test_constrain.py"
