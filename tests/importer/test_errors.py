"""What cannot be imported is rejected, with the reason and what to do."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from spmdir.core.errors import UnsupportedError
from spmdir.importer.importer import import_fx
from tests.importer.imported_programs import MESH, export

X = torch.ones(4, 6)


def _condition():
    return export(lambda s, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), X)


def _without_shapes():
    graph = fx.Graph()
    graph.output(graph.call_function(torch.ops.aten.t.default, (graph.placeholder("x"),)))
    return fx.GraphModule(nn.Module(), graph)


def _sparse():
    return make_fx(lambda x: x.to_sparse().to_dense())(X)


def _own_generator():  # by hand, as the next: not every torch traces it
    root, graph = nn.Module(), fx.Graph()
    root.generator = torch.Generator()  # type: ignore
    x = graph.placeholder("x")
    result = graph.call_function(torch.ops.aten.bernoulli.default, (x,), {"generator": graph.get_attr("generator")})
    x.meta["val"] = result.meta["val"] = X
    graph.output(result)
    return fx.GraphModule(root, graph)


def _left_by_a_transform():
    graph = fx.Graph()
    x = graph.placeholder("x")
    result = graph.call_function(torch._C._functorch._unwrap_for_grad, (x, 1))  # type: ignore
    x.meta["val"] = result.meta["val"] = X
    graph.output(result)
    return fx.GraphModule(nn.Module(), graph)


def _instance_norm():
    mean, var = nn.Buffer(torch.zeros(2)), nn.Buffer(torch.ones(2))
    norm = nn.functional.instance_norm
    x = torch.ones(3, 2, 4)
    return export(lambda s, x: norm(x, s.mean, s.var, use_input_stats=True), x, mean=mean, var=var)


def _adam():
    def step(p, moment, square, count):
        optimizer = torch.optim.Adam([p], foreach=False)
        optimizer.state[p] = {"step": count, "exp_avg": moment, "exp_avg_sq": square}
        p.grad = p * 2
        optimizer.step()
        return p

    return make_fx(torch.no_grad()(step), tracing_mode="fake")(*(torch.ones(4) for _ in range(3)), torch.tensor(1.0))


def _nested():
    value = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    graph = fx.Graph()
    argument = graph.placeholder("x")
    call = graph.call_function(torch.ops.aten.sin.default, (argument,))
    argument.meta["val"] = call.meta["val"] = value
    graph.output(call)
    return fx.GraphModule(nn.Module(), graph)


def _item_of_a_tensor():
    graph = fx.Graph()
    argument = graph.placeholder("x")
    call = graph.call_function(operator.getitem, (argument, 0))
    argument.meta["val"], call.meta["val"] = X, X[0]
    graph.output(call)
    return fx.GraphModule(nn.Module(), graph)


REJECTED = {
    "nested tensors": (_nested, "input 'x' has the size .* of a nested tensor"),
    "calls that torch does not know": (_item_of_a_tensor, "'getitem' takes item 0 of 'x', which is not a tuple"),
    "an object that is not a graph": (lambda: nn.Linear(2, 2), "object of type Linear; expected an fx.GraphModule"),
    "shapes that depend on data": (lambda: export(lambda s, x: x.nonzero(), X), "aten.nonzero.*depends on data"),
    "boolean masks": (lambda: make_fx(lambda x: x[x > 0])(X), "aten.index.Tensor.*use an op of fixed shape"),
    "numbers read from tensors": (lambda: export(lambda s, x: x * x.sum().item(), X), "reads a number out of a tensor"),
    "numbers read by optimizers": (_adam, "reads a number out of a tensor.*torch's optimizers .* with fused=True"),
    "control flow": (_condition, "higher-order op cond; expected a graph of torch ops"),
    "strides": (lambda: export(lambda s, x: x.as_strided((3, 3), (1, 2)), X), r"strides \[1, 2\].*write it with view"),
    "float8": (
        lambda: export(lambda s, x: x.to(torch.float8_e5m2fnuz), X),
        "element type float8_e5m2fnuz; expected one of",
    ),
    "sparse tensors": (_sparse, "_to_sparse, whose result is not a dense tensor"),
    "generators": (_own_generator, "aten.bernoulli draws from a custom generator; expected the default generator"),
    "graphs of transforms that export breaks": (_left_by_a_transform, "Python function _unwrap_for_grad"),
    "statistics that no schema declares": (_instance_norm, "instance_norm, which writes running statistics"),
    "graphs without shapes": (_without_shapes, "node 'x' has no shape; .*pass example_inputs"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_is_rejected(case):
    make, message = REJECTED[case]
    with pytest.raises(UnsupportedError, match=message):
        import_fx(make(), MESH)


def test_graphs_of_modules_and_functions_are_rejected():
    traced = fx.symbolic_trace(nn.Sequential(nn.Linear(6, 3)))
    with pytest.raises(UnsupportedError, match=r"node '_0' is a call_module of '0'.*torch.export or make_fx"):
        import_fx(traced, MESH, example_inputs=(X,))
    traced = fx.symbolic_trace(lambda x: torch.relu(x))
    with pytest.raises(UnsupportedError, match="calls the Python function relu; expected torch ops"):
        import_fx(traced, MESH, example_inputs=(X,))


def test_example_inputs_that_do_not_fit_are_rejected():
    with pytest.raises(UnsupportedError, match="example_inputs has 2 entries; expected 1, one for each input"):
        import_fx(_without_shapes(), MESH, example_inputs=(X, X))
    with pytest.raises(UnsupportedError, match=r"cannot run the graph on example_inputs: .*3D"):
        import_fx(_without_shapes(), MESH, example_inputs=(torch.ones(2, 2, 2),))


class _Nonzero(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.nonzero()


def test_an_error_names_the_line_of_the_model():
    with pytest.raises(UnsupportedError) as raised:
        import_fx(torch.export.export(_Nonzero(), (X,)), MESH)
    assert raised.value.location is not None
    assert raised.value.location.file == "test_errors.py"
