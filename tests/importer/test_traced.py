"""What a traced GraphModule becomes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from spmdir.core.errors import SpmdirWarning, UnsupportedError
from spmdir.dialects.names import full_name
from spmdir.importer.importer import import_fx
from spmdir.simulator.simulate import run_single, simulate
from tests.importer.imported_programs import MESH, arguments, op, ops, results

X, W = torch.arange(24.0).reshape(4, 6), torch.arange(36.0).reshape(6, 6)


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_mutations_are_made_functional(mode: str):
    def function(a, b):
        a.add_(1)
        b.view(-1).mul_(2)
        return a + b, a, b.view(-1)

    traced = make_fx(function, tracing_mode=mode)(X.clone(), X.clone())  # type: ignore
    module = import_fx(traced, MESH, {"b": "dp: S(0)"})
    assert results(module, "kind")[3:] == [("a_1", "mutation"), ("b_1", "mutation")]
    assert results(module)[4] == ("b_1", "dp: S(0)")
    for found, expected in zip(
        run_single(module, [X, X.clone()]), (3 * X + 1, X + 1, 2 * X.view(-1), X + 1, 2 * X), strict=True
    ):
        assert torch.equal(found, expected)


def test_a_large_constant_of_a_graph_with_mutations_is_not_allocated():
    def write(x):
        return x.add_(torch.ones(1 << 24, 1 << 24).sum())

    traced = make_fx(write, tracing_mode="fake")(torch.zeros(4))
    assert "aten.ones" in str(import_fx(traced, MESH))


def test_a_copy_into_a_strided_view_of_a_whole_tensor_replaces_it():
    def function(a):
        whole = a.new_zeros(4, 6)
        whole.as_strided((6, 4), (4, 1)).copy_(a.t().contiguous())
        return whole + 1

    (found,) = run_single(import_fx(make_fx(function)(X), MESH), [X])
    assert torch.equal(found, X.t().reshape(4, 6) + 1)


def test_a_copy_into_a_part_with_strides_is_one_into_a_slice():
    def function(a):
        whole = a.new_zeros(5, 6)
        whole.as_strided((4, 6), (6, 1)).copy_(a)
        return whole

    (found,) = simulate(import_fx(make_fx(function)(X), MESH, {"a": "dp: S(0)"}), [X])
    assert torch.equal(found, function(X))


def _put_row(a, mask):
    a = a.clone()
    a[mask[:, 0]] = a[0] + 1
    return a


def _put_column(a, mask):
    a = a.clone().view(4, 2, 3)
    a[mask[:, 0]] = a[0, :, :1] * 2
    return a


def _put_number(a, mask):
    a[mask] = 7
    return a[0]


@pytest.mark.parametrize(
    "function",
    [_put_row, _put_column, _put_number, lambda a, mask: torch.index_put(a, (mask,), a[:1, :1])],
    ids=["one row in many", "one column in many", "in place", "functional"],
)
def test_what_is_put_alike_wherever_a_mask_holds_is_a_choice(function):
    mask = X % 5 == 0
    module = import_fx(make_fx(function)(X.clone(), mask), MESH, {"a": "dp: S(0), tp: S(1)"})
    assert "aten.where.self" in [op.name for op in ops(module)]
    assert torch.equal(simulate(module, [X, mask])[0], function(X.clone(), mask))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    ("indices", "mask", "values"),
    [
        ((), (4, 6), ()),
        ((), (4,), (6,)),
        ((), (4,), (1,)),
        ((None,), (6,), ()),
        ((None,), (6,), (4,)),
    ],
    ids=["elements", "rows", "a number a row", "columns", "a column each"],
)
def test_values_are_put_in_their_order_where_a_mask_holds(indices, mask, values, accumulate):
    at = torch.arange(math.prod(mask)).reshape(mask) % 3 != 1
    count = int(at.sum())
    given = torch.arange(1.0, 1 + 4 * count).reshape(4, count) if values == (4,) else torch.arange(1.0, 1 + count)
    if not indices and values:
        given = torch.arange(1.0, 1 + count * values[0]).reshape(count, *values)

    def function(x, at, given):
        x = x.detach().requires_grad_()
        put = torch.ops.aten.index_put(x * 2, [*indices, at], given, accumulate)
        return [put.detach(), *torch.autograd.grad(put.square().sum(), x)]

    module = import_fx(make_fx(function)(X, at, given), MESH, {"input:0": "dp: S(0), tp: S(1)"})
    assert all(map(torch.equal, simulate(module, [X, at, given]), function(X, at, given)))


def test_the_gradient_of_a_ctc_loss_does_not_depend_on_the_traced_lengths():
    def function(x, targets, lengths, of_targets):
        x = x.detach().requires_grad_()
        loss = torch.nn.functional.ctc_loss(x.log_softmax(2), targets, lengths, of_targets)
        return [loss.detach(), *torch.autograd.grad(loss, x)]

    x, targets = torch.randn(6, 2, 5, dtype=torch.float64), torch.tensor([[1, 2, 3], [2, 2, 4]])
    traced, given = ([x, targets, torch.tensor([6, 5]), torch.tensor(lengths)] for lengths in ([2, 2], [3, 1]))
    module = import_fx(make_fx(function)(*traced), MESH, {"input:0": "dp: S(1)"})
    torch.testing.assert_close(simulate(module, given), function(*given))


def test_a_least_squares_solution_has_a_shape_and_its_residuals_have_not():
    def function(a, b):
        return torch.linalg.lstsq(a, b)

    a, b = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    with pytest.warns(SpmdirWarning, match="linalg_lstsq"):
        found = simulate(
            import_fx(make_fx(lambda a, b: function(a, b)[0])(a, b), MESH, {"input:0": "dp: S(0)"}), [a, b]
        )
    torch.testing.assert_close(found, [function(a, b)[0]])
    with pytest.raises(UnsupportedError, match="a shape that depends on data"):
        import_fx(make_fx(lambda a, b: function(a, b)[1])(a, b), MESH)


def test_a_ctc_loss_whose_lengths_torch_loses_is_rejected():
    graph = make_fx(lambda x, t: torch.nn.functional.ctc_loss(x, t, [6, 5], [3, 2]))  # type: ignore
    with pytest.raises(UnsupportedError, match="pass input_lengths and target_lengths as tensors"):
        import_fx(graph(torch.randn(6, 2, 5).log_softmax(2), torch.tensor([[1, 2, 3], [2, 2, 4]])), MESH)


def test_parameters_of_the_module_are_arguments_and_other_tensors_constants():
    module = nn.Module()
    module.weight, table = nn.Parameter(W), torch.ones(6)
    traced = make_fx(lambda x: x @ module.weight + table)(X)
    imported = import_fx(traced, MESH)
    assert arguments(imported, "kind") == {"_param_constant0": "parameter", "x_1": "input"}
    assert op(imported, "spmd.constant").argument["value"] == "0000803f" * 6


def test_a_graph_without_shapes_takes_them_from_example_inputs():
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.ops.aten.t.default, (x,))
    graph.output((graph.call_function(torch.ops.aten.mm.default, (x, y)),))
    module = import_fx(fx.GraphModule(nn.Module(), graph), MESH, {"x": "dp: S(0)"}, example_inputs=(X,))
    assert str(op(module, "aten.mm").metas[0]) == "4x4xf32"


def test_numbers_that_a_graph_takes_are_specialised():
    module = import_fx(make_fx(lambda n, x: x * n, tracing_mode="fake")(2, X), MESH, {"input:1": "dp: S(0)"})
    assert arguments(module) == {"x_1": "dp: S(0)"}


def test_leaves_of_dicts_are_called_by_their_keys():
    traced = make_fx(lambda state, x: x @ state["p"]["a.w"] + state["m"]["a.w"])(
        {"p": {"a.w": W}, "m": {"a.w": W[0]}}, X
    )
    assert list(arguments(import_fx(traced, MESH))) == ["p.a.w", "m.a.w", "x_1"]
    both = import_fx(traced, MESH, {"a.w": "tp: S(0)"})
    assert arguments(both) == {"p.a.w": "tp: S(0)", "m.a.w": "tp: S(0)", "x_1": None}


def test_leaves_of_lists_are_called_by_argument_and_index():
    traced = make_fx(lambda ws, x: x @ ws[0] @ ws[1])([W, W], X)
    assert list(arguments(import_fx(traced, MESH))) == ["ws.0", "ws.1", "x_1"]


def test_equal_keys_in_two_arguments_are_told_apart():
    traced = make_fx(lambda p, q: p["w"] + q["w"])({"w": W}, {"w": W})
    assert list(arguments(import_fx(traced, MESH))) == ["p.w", "q.w"]


def test_gradients_keyed_as_their_parameters_take_their_sharding():
    def gradients(p, x):
        held = {name: value.detach().requires_grad_() for name, value in p.items()}
        return dict(zip(p, torch.autograd.grad((x @ held["w"] * held["b"]).sum(), list(held.values())), strict=True))

    traced = make_fx(gradients)({"w": W, "b": W[0]}, X)
    assert results(import_fx(traced, MESH, {"w": "tp: S(1)", "b": "tp: S(0)"})) == [
        ("w", "tp: S(1)"),
        ("b", "tp: S(0)"),
    ]


def test_gradients_after_a_loss_take_the_sharding_of_the_inputs_of_their_shapes():
    def step(x, w, v):
        w, v = w.detach().requires_grad_(), v.detach().requires_grad_()
        loss = ((x @ w).relu() @ v).sum()
        return (loss, *torch.autograd.grad(loss, (w, v)))

    traced = make_fx(step)(X, W, torch.ones(6, 2))
    found = import_fx(traced, MESH, {"x": "dp: S(0)", "w": "tp: S(1)", "v": "tp: S(0)"})
    assert [sharding for _, sharding in results(found)] == [None, "tp: S(1)", "tp: S(0)"]


def test_an_updated_parameter_takes_its_parameters_sharding():
    traced = make_fx(lambda w, x: w * 0.99 - (x.t() @ x) * 0.1)(W, X)
    assert results(import_fx(traced, MESH, {"w": "tp: S(1)"})) == [("sub", "tp: S(1)")]


def test_a_residual_connection_is_no_update():
    traced = make_fx(lambda x, w: x + x @ w)(X, W)
    assert results(import_fx(traced, MESH, {"x": "dp: S(0)"})) == [("add", None)]


def test_results_that_are_none_in_a_tuple_stay_usable():
    def function(x, w):
        w = w.detach().requires_grad_()
        return torch.autograd.grad(nn.functional.conv2d(x, w).sum(), w)[0]

    image, kernel = torch.randn(1, 2, 4, 4), torch.randn(3, 2, 3, 3)
    module = import_fx(make_fx(function)(image, kernel), MESH)
    assert op(module, "aten.convolution_backward").metas.count(None) == 2
    (found,) = run_single(module, [image, kernel])
    torch.testing.assert_close(found, function(image, kernel))


def test_values_are_called_as_their_nodes():
    module = import_fx(make_fx(lambda x: x.exp().split(2))(X), MESH)
    assert [full_name(result) for o in ops(module) for result in o.results] == ["exp", "getitem", "getitem_1"]


def test_autocast_in_a_graph_from_before_dispatch_becomes_casts():
    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x.t()

    module = import_fx(make_fx(function, pre_dispatch=True)(X), MESH)
    assert [str(meta) for o in ops(module) if "mm" in o.name for meta in o.call().operands] == ["4x6xbf16", "6x4xbf16"]
    assert torch.equal(run_single(module, [X])[0], function(X))


def _statistics(x, mean, var, training=True):
    mean, var = mean.clone(), var.clone()
    normed = nn.functional.batch_norm(x, mean, var, training=training)
    return normed, mean, var


@pytest.mark.parametrize("training", [True, False])
def test_a_batch_norm_gives_new_statistics_and_leaves_the_old_ones(training: bool):
    inputs = [torch.rand(4, 6, 3), torch.rand(6), torch.rand(6)]
    traced = make_fx(lambda x, mean, var: _statistics(x, mean, var, training))(*inputs)
    module = import_fx(traced, MESH, {"mean": "dp: S(0)", "var": "tp: S(0)"})
    for found, expected in zip(simulate(module, inputs), _statistics(*inputs, training), strict=True):  # type: ignore
        assert torch.allclose(found, expected)


def test_a_batch_norm_that_updates_its_inputs_gives_them_as_mutations():
    def function(x, mean, var):
        return nn.functional.batch_norm(x, mean, var, training=True)

    inputs = [torch.rand(4, 6), torch.rand(6), torch.rand(6)]
    module = import_fx(make_fx(function)(*map(torch.clone, inputs)), MESH)
    assert [kind for _, kind in results(module, "kind")] == ["output", "mutation", "mutation"]
    for found, expected in zip(run_single(module, inputs), _statistics(*inputs), strict=True):  # type: ignore
        assert torch.equal(found, expected)


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_gradients_that_are_zero_without_memory_are_constants(mode):
    def gradient(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(x.amax([1, 0]).sgn(), x)[0]

    x = torch.randn(4, 6)
    module = import_fx(make_fx(gradient, tracing_mode=mode)(x), MESH, check=True)
    assert torch.equal(run_single(module, [x])[0], torch.zeros(4, 6))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_imported(dtype):
    x = torch.randn(4, 6)
    module = import_fx(make_fx(lambda x: (x.to(dtype).float(), torch.ones(6).to(dtype)))(x), MESH, check=True)
    assert torch.equal(run_single(module, [x])[0], x.to(dtype).float())
    assert run_single(module, [x])[1].dtype == dtype
