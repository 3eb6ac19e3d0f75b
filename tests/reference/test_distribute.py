"""What PyTorch's graph expansion to DTensor could do; docs/reference-systems.md numbers its capabilities."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.core.errors import SpmdirWarning, UnsupportedError
from spmdir.core.placement.call import Local
from spmdir.dialects import ir
from spmdir.dialects.size_ops import SizeOp
from spmdir.dialects.values import function_attrs
from spmdir.simulator.lockstep import run_alone
from tests.importer.imported_programs import ops

MESH = spmdir.Mesh({"dp": 2, "tp": 3})
X = torch.arange(30, dtype=torch.float64).reshape(5, 6) / 7
ROWS, BOTH = "dp: S(0)", "dp: S(0), tp: S(1)"
WHOLE_WAY = "propagate,insert-reshard,lower-reshard,fuse-collectives,verify-spmd,localize"


def trace(function: Callable[..., Any], *args: Any, mode: Any = "fake") -> fx.GraphModule:
    return make_fx(function, tracing_mode=mode)(*args)


def partition(graph: fx.GraphModule, shardings: dict[str, Any], outputs: list[Any] | None = None) -> ModuleOp:
    """Return the local program."""
    return spmdir.run_passes(spmdir.import_fx(graph, MESH, shardings, out_shardings=outputs), WHOLE_WAY)


def assert_computes(module: ModuleOp, function: Callable[..., Any], *args: Tensor) -> None:
    """The program, run by all ranks, gives what the function gives."""
    expected = pytree.tree_leaves(function(*(a.clone() for a in args)))
    found = spmdir.simulate(module, list(args))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def names(module: ModuleOp) -> list[str]:
    return [op.name for op in ops(module)]


def argument(module: ModuleOp, op: str, name: str) -> Any:
    return next(found for found in ops(module) if found.name == op).argument[name]


def test_a_forward_and_a_backward_graph_are_partitioned_apart():
    """Items 1 and 22: what the forward graph says of its outputs describes the inputs of the backward graph."""
    w = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def forward(x, w):
        h = x @ w
        return h.tanh(), h

    def backward(grad, h, x):
        grad_h = grad * (1 - h.tanh() ** 2)
        return (x.t() @ grad_h,)

    first = spmdir.import_fx(trace(forward, X, w), MESH, {"x": ROWS, "w": "tp: S(1)"})
    spmdir.run_passes(first, "propagate,insert-reshard")
    held = [function_attrs(ir.main_function(first), "res_attrs", i)["spmd.sharding"].data for i in range(2)]
    assert str(held[1]) == BOTH
    y, h = spmdir.simulate(first, [X, w])
    second = partition(trace(backward, y, h, X), {"grad": held[0], "h": held[1], "x": ROWS}, ["tp: S(1)"])
    x, weight = X, w.clone().requires_grad_()
    (expected,) = torch.autograd.grad((x @ weight).tanh().sum(), weight)
    (found,) = spmdir.simulate(second, [torch.ones_like(y), h, X])
    torch.testing.assert_close(found, expected)


def test_importing_leaves_example_inputs_as_they_were():
    """Item 2."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.aten.add_.Tensor, (x, 1)),))
    example = X.clone()
    spmdir.import_fx(fx.GraphModule(torch.nn.Module(), graph), MESH, {"x": ROWS}, example_inputs=(example,))
    assert torch.equal(example, X)


SEVERAL = ((5, 6), (4, 4), (7, 3))
"""Shapes for a program of symbolic sizes: as traced, and others that the axes divide and do not divide."""


def values(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=X.dtype, generator=torch.Generator().manual_seed(sum(shape)))


def sizes(module: ModuleOp) -> dict[str, list[str]]:
    """Op → what the types of its results say of sizes and of what divides them."""
    found: dict[str, list[str]] = {}
    for op in ir.main_function(module).body.block.ops:
        if isinstance(op, SizeOp):
            found.setdefault(op.name, []).append(str(op.measure))
    return found


def test_a_symbolic_size_says_its_global_value_and_what_shards_it():
    """Items 3 and 4: `DSymInt`, of `sym_size`, `sym_numel` and `sym_stride`."""

    def function(x):
        return x * x.size(0) + x.size(1) * x.numel() + x.stride(0)

    module = spmdir.import_fx(trace(function, X, mode="symbolic"), MESH, {"x": "dp: S(0)"})
    spmdir.run_passes(module, "propagate")
    found = sizes(module)
    assert found["aten.sym_size.int"] == ["s0, dp", "s1"]
    assert found["aten.sym_numel"] == ["s0*s1, dp"]
    for rows, columns in SEVERAL:
        assert_computes(module, function, values(rows, columns))


def test_arithmetic_on_symbolic_sizes_stays_in_the_program_until_they_are_known():
    """Items 5 and 6: views of sharded sizes, and what is computed of these."""

    def function(x):
        flat = x.view(x.size(0) * x.size(1)).relu()
        return flat.view(x.size(0), x.size(1)), x[:, None].expand(-1, x.size(0) + 2, -1).sum()

    module = spmdir.import_fx(trace(function, X, mode="symbolic"), MESH, {"x": "dp: S(0)"})
    spmdir.run_passes(module, "propagate")
    assert sizes(module)["operator.mul"] == ["s0*s1, dp"]
    assert sizes(module)["operator.add"] == ["s0 + 2, dp"]
    for rows, columns in SEVERAL:
        assert_computes(module, function, values(rows, columns))


SYMBOLIC: dict[str, Callable[[Tensor], Any]] = {
    "slice_backward": lambda x: torch.ops.aten.slice_backward(x[:, 1:], x.shape, 1, 1, x.size(1), 1),
    "full": lambda x: torch.full((x.size(0), x.size(1)), 2.0) + x,
    "arange": lambda x: torch.arange(x.size(0))[:, None] + x,
    "arange.start": lambda x: torch.arange(1, x.size(1) + 1) + x,
    "an op without a rule": lambda x: torch.cumsum(x, 0) * torch.ops.aten._cdist_forward(x, x, 2.0, None).sum(),
    "sizes that nothing divides": lambda x: x.view(x.size(0), x.size(1), 1) * x.size(1),
}
"""What a program does with symbolic sizes → the function."""


@pytest.mark.filterwarnings("ignore:.*has no rule")
@pytest.mark.parametrize("case", SYMBOLIC)
def test_symbolic_sizes_are_right_at_every_size(case: str):
    """Items 7, 8, 10 and 12."""
    function = SYMBOLIC[case]
    module = spmdir.import_fx(trace(function, X, mode="symbolic"), MESH, {"x": "dp: S(0), tp: S(1)"})
    spmdir.run_passes(module, "propagate")
    for rows, columns in SEVERAL:
        assert_computes(module, function, values(rows, columns))


FIVE = Local("size", 5, ("dp",))
SIZED: dict[str, tuple[Callable[[Tensor], Any], str, str, Any]] = {
    "sym_size in a view": (lambda x: x.view(x.size(0), 3, 2).relu(), "aten.view", "size", (FIVE, 1, 2)),
    "sym_numel in a factory": (lambda x: x.new_full((x.numel() // 3,), 2.0), "aten.full", "size", (5,)),
    "sym_stride as a number": (lambda x: x * x.stride(0), "aten.mul.Tensor", "other", 6),
    "arithmetic on sizes": (lambda x: x.view(x.size(0), (x.size(1) + 6) // 4, -1), "aten.view", "size", (FIVE, 1, 2)),
    "view": (lambda x: x.view(5, 6, 1).relu(), "aten.view", "size", (FIVE, 2, 1)),
    "_unsafe_view": (lambda x: torch.ops.aten._unsafe_view(x, [5, 6, 1]), "aten._unsafe_view", "size", (FIVE, 2, 1)),
    "expand": (lambda x: x[..., None].expand(x.size(0), x.size(1), 4), "aten.expand", "size", (FIVE, 2, 4)),
    "slice_backward": (
        lambda x: torch.ops.aten.slice_backward(x[:, :, None], [5, 6, 9], 2, 2, 3, 1),
        "aten.slice_backward",
        "input_sizes",
        (FIVE, 2, 9),
    ),
    "full": (lambda x: torch.full((x.size(0), x.size(1)), 2.0) + x, "aten.full", "size", (FIVE, 2)),
}
"""What the function does with sizes → the function, the op and argument that hold them, and what localize makes."""


@pytest.mark.parametrize("case", SIZED)
def test_sizes_of_a_static_trace_are_global_and_become_local(case: str):
    """Items 3 to 8 and 12: `size(5, dp)` is what a rank holds of 5, which is not the same number on each."""
    function, op, name, expected = SIZED[case]
    module = partition(trace(function, X), {"x": BOTH}, ["dp: S(0)" if "numel" in case else BOTH])
    assert argument(module, op, name) == expected
    assert_computes(module, function, X)


def test_a_counting_factory_starts_at_the_offset_of_the_rank():
    """Item 8."""

    def function(x):
        return torch.arange(x.size(0), dtype=x.dtype), x + 1

    module = partition(trace(function, X), {"x": ROWS}, [ROWS, ROWS])
    assert_computes(module, function, X)


@pytest.mark.parametrize(
    "factory", [lambda: torch.scalar_tensor(2.0), lambda: torch.arange(1, 7), lambda: torch.zeros(6)]
)
def test_factories_take_part_without_tensor_operands(factory: Callable[[], Tensor]):
    """Item 9."""

    def function(x):
        return x + factory()

    assert_computes(partition(trace(function, X), {"x": ROWS}), function, X)


@torch.library.custom_op("reference::turned", mutates_args=())
def turned(x: Tensor) -> Tensor:
    return x.flip(0).contiguous()


turned.register_fake(torch.empty_like)


def test_an_op_without_a_rule_warns_and_runs_replicated():
    """Item 10: its numbers are right whatever it does with sizes."""

    def function(x):
        return torch.ops.reference.turned(x)

    with pytest.warns(SpmdirWarning, match="'reference.turned' has no rule, so it runs replicated"):
        module = partition(trace(function, X), {"x": ROWS})
    assert_computes(module, function, X)


def test_an_op_in_the_right_place_stays_as_it_is():
    """Item 14."""
    module = spmdir.import_fx(trace(lambda x: x.relu(), X), MESH, {"x": BOTH}, out_shardings=[BOTH])
    before = names(module)
    assert names(spmdir.run_passes(module, "propagate,insert-reshard,lower-reshard")) == before == ["aten.relu"]


def test_one_reshard_serves_every_user():
    """Items 15 and 17."""

    def function(x):
        return x.cumsum(0), x.cumprod(0), x.sort(0)[0]

    module = spmdir.import_fx(trace(function, X), MESH, {"x": ROWS}, out_shardings=["", "", ""])
    spmdir.run_passes(module, "propagate,insert-reshard")
    assert names(module).count("spmd.reshard") == 1
    assert_computes(module, function, X)


def test_tensors_among_keyword_arguments_are_resharded_too():
    """Item 16."""
    graph = fx.Graph()
    x, w, b = (graph.placeholder(name) for name in ("x", "w", "b"))
    graph.output((graph.call_function(torch.ops.aten.linear.default, (x,), {"weight": w, "bias": b}),))
    weight, bias = torch.arange(24.0).reshape(4, 6).double(), torch.arange(4.0).double()
    source = fx.GraphModule(torch.nn.Module(), graph)
    shardings: dict[str, Any] = {"x": "", "w": "tp: S(1)", "b": "dp: S(0)"}
    module = spmdir.import_fx(source, MESH, shardings, out_shardings=[""], example_inputs=(X, weight, bias))
    assert_computes(module, torch.nn.functional.linear, X, weight, bias)


def test_ops_on_lists_become_ops_on_their_entries():
    """Item 19: each entry has a sharding of its own, and there is no item of an item."""

    def function(x, y):
        moved = list(torch._foreach_add([x, y], [y, x], alpha=2))  # type: ignore
        torch._foreach_mul_(moved, [2.0, 3.0])  # type: ignore
        return torch._foreach_lerp(moved, [x, y], 0.5)  # type: ignore

    graph = trace(function, X, X + 1)
    module = partition(graph, {"x": ROWS, "y": ROWS}, [ROWS, ROWS])
    assert (
        names(module)
        == ["aten.add.Tensor", "aten.add.Tensor", "aten.mul.Scalar", "aten.mul.Scalar"] + ["aten.lerp.Scalar"] * 2
    )
    assert_computes(module, function, X, X + 1)


def test_ops_on_lists_in_an_exported_program_are_those_on_entries():
    """Item 19."""

    class Lists(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return sum(torch._foreach_mul([x, x + 1], 2.0))  # type: ignore

    module = spmdir.import_fx(torch.export.export(Lists(), (X,)), MESH, {"x": ROWS})
    assert names(module).count("aten.mul.Scalar") == 2
    assert_computes(module, Lists(), X)


def test_optimizers_that_update_lists_in_one_kernel_become_ops_on_each_parameter():
    """Item 19."""

    def update(p, g, m, v, s):
        rates = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
        torch._fused_adam_([p], [g], [m], [v], [], [s], **rates, amsgrad=False, maximize=False)  # type: ignore
        return p + 0

    graph = trace(update, X, X, X, X, torch.tensor(1.0))
    module = spmdir.import_fx(graph, MESH, {"p": ROWS})
    assert "aten.sqrt" in names(module) and not any("fused" in name for name in names(module))


def test_outputs_are_not_partial_unless_asked_for():
    """Item 21."""
    graph = trace(lambda x, w: (x @ w, 3, None), X, X.t().contiguous())
    shardings: dict[str, Any] = {"x": "tp: S(1)", "w": "tp: S(0)"}
    module = partition(graph, shardings)
    kept = partition(graph, shardings, ["tp: P(sum)", None, None])
    assert any("reduce" in name for name in names(module))
    assert names(kept) == ["aten.mm"]
    for program in (module, kept):
        assert spmdir.simulate(program, [X, X.t().contiguous()])[1:] == [3, None]


class _Alive(TorchDispatchMode):
    """Counts the results of ops that are alive when the next one runs."""

    def __init__(self):
        super().__init__()
        self.results: list[weakref.ref[Tensor]] = []
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.most = max(self.most, sum(ref() is not None for ref in self.results))
        result = func(*args, **(kwargs or {}))
        self.results.append(weakref.ref(result))
        return result


@pytest.mark.parametrize("run", [lambda g, x: g(x), lambda g, x: run_alone(g, [x])], ids=["graph", "simulation"])
def test_values_are_freed_after_their_last_use(run: Callable[[fx.GraphModule, Tensor], Any]):
    """Item 23."""
    module = spmdir.import_fx(trace(lambda x: x.sin().cos().sin().cos().sin(), X), spmdir.Mesh({"dp": 1}))
    program = spmdir.lower_to_fx(module)
    with _Alive() as alive:
        run(program, X)
    assert len(alive.results) == 5
    assert alive.most == 1


def test_nodes_that_are_not_calls_are_rejected():
    """Item 25."""
    graph = fx.symbolic_trace(lambda x: x.relu())
    with pytest.raises(UnsupportedError, match="is a call_method of 'relu'; expected calls of torch ops"):
        spmdir.import_fx(graph, MESH, example_inputs=(X,))
