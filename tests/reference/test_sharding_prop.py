"""What DTensor's sharding propagation could do for one op; docs/reference-systems.md numbers its capabilities."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.rule_set import default

MESH = spmdir.Mesh({"dp": 2, "tp": 3})
WHOLE_WAY = "propagate,insert-reshard,lower-reshard,fuse-collectives,verify-spmd,localize"


def values(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def text_of(function: Any, shardings: dict[str, object], *args: Tensor, mesh: spmdir.Mesh = MESH) -> str:
    """Return the partitioned program, once it has been seen to compute what `function` does."""
    module = spmdir.import_fx(make_fx(function, tracing_mode="fake")(*args), mesh, shardings)
    found = spmdir.simulate(module, list(args))
    expected = function(*args)
    for one, other in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    return spmdir.print_ir(spmdir.run_passes(module, WHOLE_WAY))


def test_a_call_of_any_op_is_looked_up_with_all_its_arguments() -> None:
    """Items 1 and 6: one table of rules; what is remembered of a call depends on every argument."""
    rules = default()
    x = (TensorMeta((6, 4), "f64"),)
    calls = [rules.infer_call("aten.sum.dim_IntList", x, {"dim": (dim,), "keepdim": keep})
             for dim in (0, 1) for keep in (False, True)]  # fmt: skip
    found = [rules.instantiate(call) for call in calls]
    assert len({id(rule) for rule in found}) == 4
    assert [rules.instantiate(call) for call in calls] == found


def test_a_strategy_names_every_operand_and_every_result() -> None:
    """Items 2, 9 and 11: no operand takes the place of a result unsaid, and results may differ."""
    mm = spmdir.rules.op_strategies("aten.mm", (TensorMeta((4, 6), "f64"), TensorMeta((6, 8), "f64")), {}, 2)
    assert all(len(row.operands) == 2 and len(row.results) == 1 for row in mm)
    norm = (TensorMeta((4, 6), "f64"), TensorMeta((6,), "f64"), TensorMeta((6,), "f64"))
    rows = spmdir.rules.op_strategies("aten.native_layer_norm", norm, {"normalized_shape": (6,), "eps": 1e-5}, 2)
    assert "(S(1), S(0), S(0)) -> (S(1), P(sum), R) expand" in map(str, rows)


@pytest.mark.parametrize("mask", [(True, True, True), (False, True, False)])
def test_results_that_are_none_have_no_sharding(mask: tuple[bool, ...]) -> None:
    """Items 3 and 4: the backward of a convolution may leave out the gradient of its input."""

    def function(grad, x, w):
        found = torch.ops.aten.convolution_backward(
            grad, x, w, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, list(mask)
        )
        return tuple(g for g in found if g is not None)

    given = values(4, 4, 5, 5), values(4, 3, 5, 5), values(4, 3, 3, 3)
    text_of(function, {"grad": "dp: S(0)", "x": "dp: S(0)", "w": ""}, *given)


def test_results_of_another_number_or_shape_are_rejected() -> None:
    """Item 4."""
    rules = default()
    call = rules.infer_call("aten.mm", (TensorMeta((4, 6), "f64"), TensorMeta((6, 8), "f64")), {})
    for results in ((TensorMeta((4, 9), "f64"),), (*call.results, *call.results), (TensorMeta((4, 8), "f32"),)):
        with pytest.raises(SpmdirError, match=r"expected|has n = 9"):
            rules.instantiate(type(call)(call.name, call.operands, call.arguments, results, call.structure))


def test_lists_of_tensors_are_operands_one_by_one() -> None:
    """Items 5 and 12: the entries of a list are placed each for itself."""

    def function(x, y):
        return torch.cat([x, y, x], dim=1)

    text = text_of(function, {"x": "dp: S(0)", "y": "tp: S(0)"}, values(6, 4), values(6, 2))
    assert re.search(r"aten.cat\(\[%x\S*, %y\S*, %x\S*\]", text)


def test_a_number_read_from_a_tensor_is_rejected_with_its_place() -> None:
    """Item 7: what `_local_scalar_dense` gives is known when the program runs, not before."""

    class Reads(torch.nn.Module):
        def forward(self, x):
            return x * x.sum().item()

    program = torch.export.export(Reads(), (values(4, 6),))
    with pytest.raises(UnsupportedError, match="reads a number out of a tensor") as raised:
        spmdir.import_fx(program, MESH, {"x": "dp: S(0)"})
    assert raised.value.location is not None


def test_what_an_op_wants_is_said_and_only_that_is_resharded() -> None:
    """Items 8 and 13: `needs` is the suggested schema, and absent where operands fit."""

    def function(x, w):
        return (x @ w).relu()

    module = spmdir.import_fx(
        make_fx(function)(values(4, 6), values(6, 6)),
        MESH,
        {"x": "dp: S(0)", "w": "dp: S(0)"},
        out_shardings=["dp: S(0)"],
    )
    text = spmdir.print_ir(spmdir.run_passes(module, "propagate"))
    assert "aten.mm(%x_1, %w_1) : tensor<4x6xf64> <dp: S(0)> needs (_, <>)" in text
    assert text.count("needs") == 1


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.reshape(6, 2, 2), "size = [3, 2, 2]"),
        (lambda x: x.unsqueeze(0).expand(5, 6, 4), "size = [5, 3, 4]"),
        (lambda x: torch.ops.aten._unsafe_view(x, [6, 4, 1]), "size = [3, 4, 1]"),
        (lambda x: x + x.new_zeros(6, 4), "size = [3, 4]"),
        (lambda x: torch.ops.aten.select_backward(x, [6, 3, 4], 1, 2), "input_sizes = [3, 3, 4]"),
        (lambda x: torch.ops.aten.slice_backward(x, [6, 9], 1, 2, 6, 1), "input_sizes = [3, 9]"),
        (lambda x: torch.nn.functional.group_norm(x.reshape(6, 4, 1), 2), "3"),
        (lambda x: torch.ops.aten.upsample_nearest2d(x.reshape(6, 4, 1, 1), [2, 2]), "output_size = [2, 2]"),
    ],
    ids=["view", "expand", "_unsafe_view", "new_zeros", "select_backward", "slice_backward", "group_norm", "upsample"],
)
def test_sizes_among_arguments_become_those_of_a_rank(function: Any, expected: str) -> None:
    """Item 10, and the sizes of a group norm, which are arguments too."""
    assert expected in text_of(function, {"x": "dp: S(0)"}, values(6, 4), mesh=spmdir.Mesh({"dp": 2}))


def test_a_dimension_that_a_rank_alone_has_of_size_one_is_not_squeezed() -> None:
    """Item 10: only what has size 1 over all ranks goes."""
    text_of(lambda x: x.squeeze(), {"x": "dp: S(0)"}, values(2, 1, 4))


def test_an_op_without_a_rule_is_sharded_as_what_torch_makes_of_it() -> None:
    """Item 14: `hstack` is `cat`, whose rows stay sharded."""
    assert "aten.hstack" not in default().names
    text = text_of(lambda x: torch.ops.aten.hstack([x, x]), {"x": "dp: S(0)"}, values(4, 6))
    assert "aten.cat" in text and "aten.hstack" not in text and "all_gather" not in text


def test_a_choice_looks_past_the_next_op() -> None:
    """Item 15: one op at a time would reduce the first product at once, as its cheapest way; the sum is paid once."""

    def function(x, w, v):
        return (x @ w) + (x @ v)

    text = text_of(
        function, {"x": "tp: S(1)", "w": "tp: S(0)", "v": "tp: S(0)"}, values(9, 6), values(6, 9), values(6, 9)
    )
    assert text.count("spmd.all_reduce") + text.count("spmd.reduce_scatter") == 1


def test_strides_are_those_of_each_ranks_shard() -> None:
    """Item 16: a view of a transposed shard is taken of the local tensor, as torch takes it of the global one."""
    text_of(lambda x: x.t().reshape(4, 3, 2), {"x": "dp: S(0)"}, values(6, 4))
