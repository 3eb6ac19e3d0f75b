"""Modules of several functions: calls are inlined on the way to a rank's program, and one function is the program."""

import sys

import pytest
import torch

import spmdir
from spmdir.dialects import ir
from spmdir.lowering.emit import emit
from spmdir.lowering.process_groups import symbolic_group
from spmdir.simulator.simulate import run_single

CALLS = """
spmd.mesh @mesh <tp = 2>

func.func private @layer(%x: tensor<4x8xf64>,
                         %w: tensor<8x8xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<4x8xf64> {
  %0 = aten.mm(%x, %w) : tensor<4x8xf64>
  %1 = aten.relu(%0) : tensor<4x8xf64>
  return %1 : tensor<4x8xf64>
}

func.func @main(%x: tensor<4x8xf64>, %w1: tensor<8x8xf64>, %w2: tensor<8x8xf64>) -> (tensor<4x8xf64>, tensor<4x8xf64>) {
  %h = func.call @layer(%x, %w1) : (tensor<4x8xf64>, tensor<8x8xf64>) -> tensor<4x8xf64>
  %y = func.call @layer(%h, %w2) : (tensor<4x8xf64>, tensor<8x8xf64>) -> tensor<4x8xf64>
  return %h, %y : tensor<4x8xf64>, tensor<4x8xf64>
}
"""


def test_a_program_with_calls_computes_what_its_functions_compute() -> None:
    x, w1, w2 = (torch.randn(shape, dtype=torch.float64) for shape in ((4, 8), (8, 8), (8, 8)))
    h, y = spmdir.simulate(spmdir.parse(CALLS), [x, w1, w2])
    torch.testing.assert_close(h, (x @ w1).relu())
    torch.testing.assert_close(y, (h @ w2).relu())


def test_an_annotation_of_a_called_function_is_a_constraint_of_each_call() -> None:
    module = spmdir.run_passes(spmdir.parse(CALLS), "inline,propagate,insert-reshard")
    text = spmdir.print_ir(module)
    assert "func.call" not in text
    assert text.count("aten.mm") == text.count("aten.relu") == 2
    assert text.count("{spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}") >= 2  # both weights


def test_a_chain_of_more_calls_than_python_nests_is_inlined() -> None:
    count = sys.getrecursionlimit() + 100
    signature = "(%x: tensor<4xf32>) -> tensor<4xf32>"
    functions = ["spmd.mesh @mesh <tp = 2>", f"func.func private @f0{signature} {{\n  return %x : tensor<4xf32>\n}}"]
    for n in range(1, count):
        call = f"%y = func.call @f{n - 1}(%x) : (tensor<4xf32>) -> tensor<4xf32>"
        name = f"private @f{n}" if n < count - 1 else "@main"
        functions.append(f"func.func {name}{signature} {{\n  {call}\n  return %y : tensor<4xf32>\n}}")
    module = spmdir.run_passes(spmdir.parse("\n".join(functions)), "inline")
    assert spmdir.print_ir(module).count("func.func") == 1


def test_of_several_functions_main_or_the_only_public_one_is_the_program() -> None:
    with pytest.raises(spmdir.SpmdirError, match="has 2 functions, and none is @main; expected one function to run"):
        spmdir.simulate(spmdir.parse(CALLS.replace("private @layer", "@layer").replace("@main", "@model")), [])
    x, w1, w2 = (torch.randn(shape, dtype=torch.float64) for shape in ((4, 8), (8, 8), (8, 8)))
    h, _ = spmdir.simulate(spmdir.parse(CALLS.replace("@main", "@model")), [x, w1, w2])
    torch.testing.assert_close(h, (x @ w1).relu())


def test_calls_are_inlined_where_every_argument_is_annotated_too() -> None:
    annotation = " {spmd.sharding = #spmd.sharding<@mesh>}"
    head, _, main = CALLS.partition("func.func @main")
    signature, _, body = main.partition(" -> ")
    signature = signature.replace("f64>", f"f64>{annotation}")
    module = spmdir.parse(f"{head}func.func @main{signature} -> {body}")
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in ((4, 8), (8, 8), (8, 8))]
    for found, expected in zip(spmdir.simulate(module, inputs), run_single(module, inputs), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_call_is_not_emitted() -> None:
    module = spmdir.parse(CALLS)
    with pytest.raises(spmdir.SpmdirError, match="calls @layer; expected a function without calls"):
        emit(ir.main_function(module), ir.mesh(module), 0, symbolic_group)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(%h, %w2) :", "(%h, %w2) {spmd.sharding = #spmd.sharding<@mesh>} :", "a call has the attributes"),
        (") -> tensor<4x8xf64> {", ') -> (tensor<4x8xf64> {spmd.kind = "mutation"}) {', "mutated arguments"),
        (
            ") -> tensor<4x8xf64> {",
            ') -> tensor<4x8xf64> attributes {spmd.stage = "local"} {',
            "cannot inline a call of a localized function",
        ),
    ],
    ids=["an attribute", "a mutation", "types of one rank"],
)
def test_what_inlining_would_lose_is_an_error(old: str, new: str, message: str) -> None:
    module = spmdir.parse(CALLS.replace(old, new, 1), verify_module=False)
    with pytest.raises(spmdir.SpmdirError, match=message):
        spmdir.run_passes(module, "inline")


def test_calls_that_would_make_millions_of_ops_are_an_error_at_once() -> None:
    signature, call = "(%x: tensor<4xf32>) -> tensor<4xf32>", "(tensor<4xf32>) -> tensor<4xf32>"
    functions = ["spmd.mesh @mesh <tp = 2>", f"func.func @f0{signature} {{\n  return %x : tensor<4xf32>\n}}"]
    for n in range(1, 40):
        body = "".join(f"  %{name} = func.call @f{n - 1}(%x) : {call}\n" for name in "ab")
        functions.append(f"func.func @f{n}{signature} {{\n{body}  return %b : tensor<4xf32>\n}}")
    with pytest.raises(spmdir.SpmdirError, match="too many ops after inlining"):
        spmdir.run_passes(spmdir.parse("\n".join(functions)), "inline")
