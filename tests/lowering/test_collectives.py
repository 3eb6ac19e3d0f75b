"""Every collective, simulated on every rank, against the placements' reference semantics."""

import itertools
import re

import attrs
import pytest
import torch

from spmdir.core.dtype import DTYPES
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.ir import parse
from spmdir.lowering.emit import lower_to_fx
from spmdir.pipeline.pipeline import run_passes
from spmdir.simulator.simulate import run_single, simulate
from spmdir.torch_interop.dtypes import TORCH_DTYPES
from tests.lowering.collective_programs import Program, ascending, assert_values_kept, programs, simulated

KINDS = ("slice", "partition", "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "permute", "broadcast")
MESHES = (Mesh({"a": 2}), Mesh({"a": 3}), Mesh({"a": 2, "b": 2}), Mesh({"a": 2, "b": 3}))
SHAPES = ((6, 12), (7, 5), (5, 1), (2, 0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_collective_keeps_the_global_value_whatever_the_sizes_and_nesting_orders(mesh, kind):
    every = (program for shape in SHAPES for program in programs(mesh, kind, shape))
    assert assert_values_kept(every, ascending) or kind in ("all_to_all", "permute")


@pytest.mark.parametrize(
    ("dtype", "ops"),
    [
        ("i1", ("any", "all", "max", "min")),
        ("bf16", ("sum", "max")),
        ("f32", ("sum", "avg", "min", "product")),
        ("i64", ("sum", "max", "product")),
        ("ui8", ("sum", "min")),
    ],
    ids=str,
)
def test_reductions_work_on_every_element_type_they_have_a_meaning_on(dtype, ops):
    every = (
        attrs.evolve(program, dtype=dtype)
        for kind, op in itertools.product(("all_reduce", "reduce_scatter", "partition"), ops)
        for program in programs(MESHES[2], kind, (3, 4), (op,))
        if dtype != "i1" or not program.source.partial or op in ("any", "all")
    )
    bits = torch.randint(0, 2, (3, 4), generator=torch.Generator().manual_seed(0)).to(TORCH_DTYPES[DTYPES[dtype]])
    rounding = {"bf16": 0.05, "f32": 1e-5}.get(dtype, 0)
    for program, x, y in simulated(every, lambda _: bits):
        assert y.dtype == x.dtype
        assert torch.allclose(y.double(), x.double(), rtol=0, atol=rounding), program.text


def test_sums_and_means_that_are_reduced_at_once_divide_by_the_axes_of_the_means():
    source = parse_sharding("a: P(avg), b: P(sum)")
    for kind, clauses, target in (
        ("all_reduce", "on [a, b] op sum", ""),
        ("reduce_scatter", "on [a, b] dim 0 op sum", "a: S(0), b: S(0)"),
    ):
        program = Program(MESHES[3], kind, clauses, source, parse_sharding(target), (7, 2))
        x = torch.arange(14.0, dtype=torch.float64).reshape(7, 2)
        torch.testing.assert_close(simulate(program.parse(), [x])[0], x)


@pytest.mark.parametrize(
    ("dtype", "op", "message"),
    [
        ("i64", "avg", "P(avg) on axis 'a' is not a reduction of i64 values"),
        ("i1", "sum", "P(sum) on axis 'a' is not a reduction of i1 values"),
    ],
)
def test_reductions_without_a_meaning_are_rejected(dtype, op, message):
    program = Program(
        MESHES[0], "all_reduce", f"on [a] op {op}", parse_sharding(f"a: P({op})"), Sharding(), (4,), dtype
    )
    with pytest.raises(SpmdirError, match=re.escape(message)):
        lower_to_fx(program.parse())


def test_a_scalar_is_reduced():
    program = Program(MESHES[0], "all_reduce", "on [a] op sum", parse_sharding("a: P(sum)"), Sharding(), ())
    assert simulate(program.parse(), [torch.tensor(3.0, dtype=torch.float64)])[0] == 3


def test_partition_does_not_spread_infinities():
    program = Program(MESHES[0], "partition", "on [a] op sum", Sharding(), parse_sharding("a: P(sum)"), (3,))
    x = torch.tensor([float("inf"), float("nan"), 1.0], dtype=torch.float64)
    held = [lower_to_fx(program.parse(), rank)(x)[0] for rank in range(2)]
    torch.testing.assert_close(held[0], x, equal_nan=True)
    assert torch.equal(held[1], torch.zeros_like(x))


def test_an_even_gather_along_an_inner_dimension_is_one_copy():
    program = Program(MESHES[0], "all_gather", "on [a] dim 1", parse_sharding("a: S(1)"), Sharding(), (4, 6))
    called = [str(node.target) for node in lower_to_fx(program.parse()).graph.nodes if node.op == "call_function"]
    assert called == [
        "aten.contiguous.default",
        "_c10d_functional.all_gather_into_tensor.default",
        "_c10d_functional.wait_tensor.default",
        "aten.reshape.default",
        "aten.permute.default",
        "aten.reshape.default",
        "aten.contiguous.default",
    ]


def test_axes_with_one_rank_take_no_part():
    mesh = Mesh({"a": 1, "b": 2})
    for kind in KINDS:
        for program in programs(mesh, kind, (3, 4)):
            x = torch.arange(12, dtype=torch.float64).reshape(3, 4)
            assert "mesh:a" not in lower_to_fx(program.parse()).code
            torch.testing.assert_close(simulate(program.parse(), [x])[0], x, msg=program.text)


def test_the_wait_of_an_async_collective_stands_where_the_program_says():
    text = """
    spmd.mesh @mesh <a = 3>
    func.func @main(%x: tensor<7x5xf64> {spmd.sharding = #spmd.sharding<@mesh, a: S(1)>}) -> tensor<7x5xf64> {
      %0 = spmd.all_gather_start %x on [a] dim 1 : !spmd.pending<tensor<7x5xf64>> <>
      %1 = aten.neg(%x) : tensor<7x5xf64> <a: S(1)>
      %2 = spmd.wait %0 : tensor<7x5xf64> <>
      %3 = spmd.slice %2 on [a] dim 1 : tensor<7x5xf64> <a: S(1)>
      %4 = aten.add.Tensor(%1, %3) : tensor<7x5xf64> <a: S(1)>
      return %4 : tensor<7x5xf64>
    }"""
    code = lower_to_fx(parse(text)).code
    assert code.index("all_gather") < code.index("aten.neg") < code.index("wait_tensor")
    assert not simulate(parse(text), [torch.randn(7, 5, dtype=torch.float64)])[0].any()


BUCKET = """
spmd.mesh @mesh <a = 2, b = 2>
func.func @main(%x: tensor<4x3xf64> {spmd.sharding = #spmd.sharding<@mesh, a: P(OP), b: S(0)>},
                %y: tensor<6xf64> {spmd.sharding = #spmd.sharding<@mesh, a: P(OP)>},
                %z: tensor<2x8xf64> {spmd.sharding = #spmd.sharding<@mesh, a: P(OP), b: S(1)>})
    -> (tensor<4x3xf64>, tensor<6xf64>, tensor<2x8xf64>) {
  REDUCE
  return %4, %5, %6 : tensor<4x3xf64>, tensor<6xf64>, tensor<2x8xf64>
}
"""
REDUCE = {
    "at_once": """
  %4, %5, %6 = spmd.all_reduce %x, %y, %z on [a] op OP : tensor<4x3xf64> <b: S(0)>, tensor<6xf64> <>, \
tensor<2x8xf64> <b: S(1)>""",
    "asynchronously": """
  %1, %2, %3 = spmd.all_reduce_start %x, %y, %z on [a] op OP : !spmd.pending<tensor<4x3xf64>> <b: S(0)>, \
!spmd.pending<tensor<6xf64>> <>, !spmd.pending<tensor<2x8xf64>> <b: S(1)>
  %4, %5, %6 = spmd.wait %1, %2, %3 : tensor<4x3xf64> <b: S(0)>, tensor<6xf64> <>, tensor<2x8xf64> <b: S(1)>""",
    "one_by_one": """
  %4 = spmd.all_reduce %x on [a] op OP : tensor<4x3xf64> <b: S(0)>
  %5 = spmd.all_reduce %y on [a] op OP : tensor<6xf64> <>
  %6 = spmd.all_reduce %z on [a] op OP : tensor<2x8xf64> <b: S(1)>""",
}


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "exchange", "two_round_exchange"])
@pytest.mark.parametrize("count", [2, 3])
def test_an_average_is_finite_where_that_of_one_device_is(kind, count):
    mesh, source = Mesh({"a": count}), parse_sharding("a: P(avg)")
    clauses = {"all_reduce": "on [a] op avg", "reduce_scatter": "on [a] dim 0 op avg"}.get(kind, "")
    target = Sharding() if kind == "all_reduce" else parse_sharding("a: S(0)")
    x = torch.tensor([60000.0, -65504.0, 1.0]).half()
    (y,) = simulate(Program(mesh, kind, clauses, source, target, (3,), "f16").parse(), [x])
    torch.testing.assert_close(y, x)


@pytest.mark.parametrize("op", ["sum", "avg", "max"])
@pytest.mark.parametrize("how", REDUCE)
def test_a_bucket_is_reduced_as_its_members_would_be(how, op):
    module = parse(BUCKET.replace("REDUCE", REDUCE[how]).replace("OP", op))
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in ((4, 3), (6,), (2, 8))]
    for got, expected in zip(simulate(run_passes(module, "verify-spmd"), inputs), inputs, strict=True):
        torch.testing.assert_close(got, expected)


LAYER_NORM_BACKWARD = """
spmd.mesh @mesh <a = 2>
func.func @main(%dy: tensor<3x4x6xf64>, %x: tensor<3x4x6xf64>, %mean: tensor<3x4x1xf64>, %rstd: tensor<3x4x1xf64>,
                %w: tensor<6xf64>, %b: tensor<6xf64>) -> (tensor<3x4x6xf64> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %dx, %dw, %db = aten.native_layer_norm_backward(%dy, %x, %mean, %rstd, %w, %b) \
{normalized_shape = [6], output_mask = [true, true, true]} \
: tensor<3x4x6xf64> <a: S(1)>, tensor<6xf64> <a: P(sum)>, tensor<6xf64> <a: P(sum)>
  return %dx : tensor<3x4x6xf64>
}
"""


def test_pieces_are_contiguous_because_some_kernels_ignore_strides():
    module = parse(LAYER_NORM_BACKWARD)
    generator = torch.Generator().manual_seed(0)
    arguments = ir.main_function(module).args
    inputs = [torch.rand(meta_of(a.type).shape, generator=generator, dtype=torch.float64) for a in arguments]
    (found,), (expected,) = simulate(module, inputs), run_single(module, inputs)
    torch.testing.assert_close(found, expected)
