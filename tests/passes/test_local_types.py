"""The program of one rank is checked before it runs: it must be what localize makes of a right program."""

from __future__ import annotations

import warnings
from random import Random

import pytest
import torch

from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir
from spmdir.lowering.emit import lower_to_fx
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.pipeline.remaining_passes import localize
from spmdir.simulator.simulate import simulate
from tests.fuzz.edits import outcome, random_edit
from tests.fuzz.local_programs import PROGRAMS, inputs, program

WRONG = [
    ("4 P(sum)", "aten.exp(%x) : tensor<4xf64> <a: P(sum)>", "not a strategy"),
    ("4 P(sum)", "aten.neg(%x) : tensor<4xf64> <>", "not a strategy"),
    ("4 P(sum)", "aten.neg(%x) : tensor<4xf64> <a: P(max)>", "not a strategy"),
    ("2 S(0)", "aten.neg(%x) : tensor<2xf64> <a: Cyclic(0, 1)>", "not a strategy"),
    ("2 S(0)", "aten.neg(%x) : tensor<2xf64> <>", "result 0 has size 2 for d0; expected 4"),
    ("2x6 S(0)", "aten.view(%x) {size = [3, 4]} : tensor<4x3xf64> <a: S(0)>", r"found `aten.view \{size = \[3, 4\]\}"),
    ("2 S(0)", "aten.add.Scalar(%x) {other = offset(4, a)} : tensor<2xf64> <a: S(0)>", "depends on the rank"),
    ("4x2 S(1)", "spmd.halo %x on [a] dim 1 before 1 after 1 : tensor<4x4xf64> <a: S(1)>", "exchanges halos"),
    ("4 P(sum)", "aten.neg(%x) : tensor<4xf64> <a: P(sum)>", "result 0 is a partial value"),
]
"""Local shape and sharding of the argument, an op, and what the error says."""


@pytest.mark.parametrize(("argument", "op", "message"), WRONG)
def test_a_wrong_claim_about_what_ranks_hold_does_not_run(argument: str, op: str, message: str) -> None:
    shape, sharding = argument.split()
    result = op.rpartition(" : ")[2].partition(" <")[0]
    text = (
        "spmd.mesh @mesh <a = 2>\n"
        f"func.func @main(%x: tensor<{shape}xf64> {{spmd.sharding = #spmd.sharding<@mesh, a: {sharding}>}})"
        f' -> {result} attributes {{spmd.stage = "local"}} {{\n  %0 = {op}\n  return %0 : {result}\n}}\n'
    )
    for run in (lower_to_fx, lambda module: simulate(module, [torch.ones(4)])):
        with pytest.raises(SpmdirError, match=message) as caught:
            run(ir.parse(text))
        assert caught.value.location is not None
    with pytest.raises(SpmdirError, match=message):
        run_passes(ir.parse(text), "verify-spmd")


@pytest.mark.parametrize("promised", ["a: S(0)", ""])
def test_localize_makes_no_program_that_breaks_what_the_function_promises(promised: str) -> None:
    text = (
        "spmd.mesh @mesh <a = 2>\n"
        "func.func @main(%x: tensor<4xf64> {spmd.sharding = #spmd.sharding<@mesh, a: P(sum)>})"
        f" -> (tensor<4xf64> {{spmd.sharding = #spmd.sharding<@mesh{', ' * bool(promised)}{promised}>}}) {{\n"
        "  %0 = aten.neg(%x) : tensor<4xf64> <a: P(sum)>\n  return %0 : tensor<4xf64>\n}\n"
    )
    with pytest.raises(SpmdirError, match=r"result 0 has the sharding <a: P\(sum\)>; expected <"):
        run_passes(ir.parse(text), "localize")


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_localize_makes_passes_the_check_and_computes_what_one_device_does(name: str) -> None:
    text = program(name, "localize")
    run_passes(ir.parse(text), "verify-spmd")
    assert outcome(text, inputs(name)) == "right"


FORM_EDITS = [
    ("vocabulary", "of = shard(11, tp)", "of = shard(12, tp)"),
    ("vocabulary", "of = shard(11, tp)", "of = size(11, tp)"),
    ("vocabulary", "of = shard(11, tp)", "of = shard(11, dp)"),
    ("vocabulary", "aten.ge.Scalar", "aten.gt.Scalar"),
    ("vocabulary", '"aten.embedding"', '"aten.embedding_bag"'),
    ("vocabulary", "ops = 6", "ops = 5"),
    ("vocabulary", "ops = 6", "ops = 99999"),
    ("vocabulary", "results = [[5, 0]]", "results = [[5, 1]]"),
    ("vocabulary", "results = [[5, 0]]", "results = [[99, 0]]"),
    ("vocabulary", "made = ", "unmade = "),
    ("vocabulary", 'op = "aten.embedding"', "op = 1 : i64"),
    ("pixels", "before 1", "before 2"),
    ("pixels", " fill lowest", ""),
    ("positions", "diagonal = offset(8, dp) + 1", "diagonal = offset(8, dp) + 2"),
]
"""Program, what stands in its local form, what stands there instead."""


@pytest.mark.parametrize(("name", "old", "new"), FORM_EDITS)
def test_an_edit_inside_a_local_form_is_found(name: str, old: str, new: str) -> None:
    text = program(name, "localize")
    edited = text.replace(old, new, 1)
    assert edited != text
    assert outcome(edited, inputs(name)) == "rejected"


UNTRUE = [
    ("padding = [1, 1], stride = [2, 1]", "padding = [1, 0], stride = [2, 1]"),
    ("kernel_size = [3, 3]", "kernel_size = [2, 3]"),
    ("padding = [1, 1], stride = [1, 1]", "padding = [2, 1], stride = [1, 1]"),
]
"""What a convolution or a pool says of its windows, and what goes with another size of its result."""


@pytest.mark.parametrize(("old", "new"), UNTRUE)
def test_windows_that_give_another_number_of_pixels_do_not_run_where_these_are_sharded(old: str, new: str) -> None:
    edited = program("pixels", "lower-reshard").replace(old, new)
    assert edited != program("pixels", "lower-reshard")
    assert outcome(edited, inputs("pixels")) == "rejected"


@pytest.mark.parametrize("stage", ["localize", "lower-reshard"])
def test_no_random_edit_makes_a_program_that_computes_something_else(stage: str) -> None:
    random = Random(stage)
    names = ["vocabulary", "positions", "bucket", "dealt", "mlp"]
    programs = [(program(name, stage), inputs(name)) for name in names]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an op that an edit renamed may have no rule
        for _ in range(60):
            text, given = random.choice(programs)
            edited = random_edit(text, random)
            assert outcome(edited, given) != "wrong", edited


def test_a_module_that_localize_made_is_not_checked_again_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ir.parse(program("mlp", "lower-reshard"))
    run_passes(module, "localize")
    checked: list[str] = []
    monkeypatch.setattr("spmdir.pipeline.remaining_passes.run_passes", lambda module, name: checked.append(name))
    localize(module, Pipeline())
    assert not checked
    ir.main_function(module).attributes["spmd.note"] = ir.main_function(module).attributes["spmd.stage"]
    localize(module, Pipeline())
    assert not checked
    first = ir.main_function(module).body.block.first_op
    assert first is not None
    del first.properties["sharding"]
    localize(module, Pipeline())
    assert checked == ["verify-spmd"]
    localize(module.clone(), Pipeline())
    localize(ir.parse(program("mlp", "localize")), Pipeline())
    assert checked == ["verify-spmd"] * 3
