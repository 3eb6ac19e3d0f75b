"""Folded programs compute what they did, under every sharding, and keep their names and places."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spmdir.dialects import ir
from spmdir.dialects.locations import location_of
from spmdir.dialects.value_op import ValueOp
from spmdir.importer.importer import import_fx
from spmdir.pipeline.pipeline import run_passes
from spmdir.simulator.simulate import run_single, simulate
from spmdir.tools.golden import read_golden
from tests.conftest import GOLDEN
from tests.importer.imported_programs import MESH, export

LOSSY = "a_lossy_conversion_and_its_inverse_stay"  # one device, which is compared with here, does not round
FILES = sorted(file for file in (GOLDEN / "fold-views").glob("*.mlir") if file.stem != LOSSY)
PROGRAMS = {
    f"{file.stem} {number}": part.replace("f32", "f64")
    for file in FILES
    for number, part in enumerate(read_golden(file.read_text(), str(file)).sources)
}

LINEAR = """
spmd.mesh @mesh <dp = 2, tp = 2>
func.func @main(%x: tensor<{outer}xf64>, %w: tensor<{inner}xf64>) -> tensor<{result}xf64> {{
  %rows = aten.view(%x) {{size = [{m}, {k}]}} : tensor<{m}x{k}xf64>
  %columns = aten.view(%w) {{size = [{k}, {n}]}} : tensor<{k}x{n}xf64>
  %product = aten.mm(%rows, %columns) : tensor<{m}x{n}xf64>
  %y = aten.view(%product) {{size = [{sizes}]}} : tensor<{result}xf64>
  return %y : tensor<{result}xf64>
}}
"""


def inputs(module):
    generator = torch.Generator().manual_seed(0)
    shapes = [argument.type.get_shape() for argument in ir.main_function(module).args]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def check_equal(text, *shardings):
    expected = run_single(ir.parse(text), given_inputs := inputs(ir.parse(text)))
    folded = run_passes(ir.parse(text), "fold-views")
    torch.testing.assert_close(run_single(folded, given_inputs), expected)
    torch.testing.assert_close(simulate(folded, given_inputs), expected)
    for sharding in shardings:
        sharded = ir.print_ir(folded).replace(
            "xf64>,", f"xf64> {{spmd.sharding = #spmd.sharding<@mesh, {sharding}>}},", 1
        )
        torch.testing.assert_close(simulate(ir.parse(sharded), given_inputs), expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_folded_program_computes_what_it_did(name):
    check_equal(PROGRAMS[name], "dp: S(0), tp: S(1)", "tp: S(1), dp: P(sum)")


sizes = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3)


@settings(max_examples=25)
@given(sizes, sizes, sizes, st.booleans(), st.booleans())
def test_views_of_any_sizes_fold_to_the_same_values(rows, contracted, columns, contracted_first, regrouped):
    m, k, n = map(math.prod, (rows, contracted, columns))

    def shape(dims):
        return "x".join(map(str, dims))

    result = [*(reversed(rows) if regrouped else rows), *columns]
    text = LINEAR.format(
        outer=shape([*rows, *contracted]),
        inner=shape([k, *columns] if contracted_first else [*contracted, n]),
        result=shape(result),
        sizes=", ".join(map(str, result)),
        m=m,
        k=k,
        n=n,
    )
    check_equal(text, "dp: S(0)")


def test_an_einsum_has_the_name_of_the_value_it_gives_and_the_place_of_its_contraction():
    text = PROGRAMS["a_linear_layer_over_batch_and_sequence_becomes_one_einsum 0"]
    before = run_passes(ir.parse(text, "in.mlir"), "")
    lines = {op.name: location_of(op) for op in before.walk() if isinstance(op, ValueOp)}
    (einsum,) = [op for op in run_passes(before, "fold-views").walk() if isinstance(op, ValueOp)]
    assert einsum.results[0].name_hint == "y"
    assert location_of(einsum) == lines["aten.mm"]


def test_folding_twice_changes_nothing():
    for text in PROGRAMS.values():
        once = ir.print_ir(run_passes(ir.parse(text), "fold-views"))
        assert ir.print_ir(run_passes(ir.parse(once), "fold-views")) == once


def test_import_folds_unless_told_otherwise():
    program = export(lambda _, x, w: (x.view(12, 8) @ w).view(2, 6, 4), torch.ones(2, 6, 8), torch.ones(8, 4))
    names = [
        [op.name for op in import_fx(program, MESH, **options).walk() if isinstance(op, ValueOp)]
        for options in ({}, {"fold_views": False})
    ]
    assert names == [["aten.einsum"], ["aten.view", "aten.matmul", "aten.view"]]
