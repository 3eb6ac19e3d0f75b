"""What the arguments and results of a captured program are for."""

import pytest
import torch

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from spmdir.dialects import ir
from spmdir.importer.importer import import_fx
from spmdir.pipeline.pipeline import run_passes
from spmdir.runtime.capture import capture_step
from spmdir.runtime.signature import annotate_updates, read_signature

MESH = Mesh({"a": 2})
X = torch.ones(4)


def signature_of(step, state, shardings, whole=False):
    capture = capture_step(step, state, (X,), torch.device("cpu"))
    module = import_fx(capture.program, MESH, shardings, out_shardings=capture.result_shardings(None))
    annotate_updates(module, capture, whole_inputs=whole)
    function = ir.main_function(run_passes(module, "propagate"))
    return function, read_signature(function, len(capture.outputs), capture.state)


def step(state, x):
    """The old state and an argument change in place; only the new state counts for the state."""
    state["n"].add_(1)
    x.mul_(2)
    return {"x": x + 1, "number": 5}, {"n": state["n"] * 3, "k": state["k"]}


def test_results_are_outputs_or_renew_an_argument_once():
    _, signature = signature_of(step, {"n": X, "k": 7}, {"n": "a: S(0)"})
    assert [argument.name for argument in signature.state_arguments] == ["n"]
    (given,) = signature.inputs
    assert signature.state == (signature.state_arguments[0], 7)
    output, number = signature.outputs
    assert number == 5
    renewed = {argument.name: result.index for argument, result in signature.updates}
    assert len(signature.updates) == len(renewed) == 2
    assert renewed["n"] not in (output.index, renewed[given.name])
    assert signature.state_arguments[0].sharding == parse_sharding("a: S(0)")


def shardings_of_new_values(function, signature):
    renewed = {argument.name: result.index for argument, result in signature.updates}
    return {name: function.res_attrs.data[index].data["spmd.sharding"].data for name, index in renewed.items()}


@pytest.mark.parametrize("whole", [False, True])
def test_a_new_value_is_returned_where_the_old_one_is_held_and_inputs_are_whole_for_their_caller(whole):
    function, signature = signature_of(step, {"n": X, "k": 7}, {"n": "a: S(0)", "x": "a: S(0)"}, whole)
    given = parse_sharding("" if whole else "a: S(0)")
    expected = {"n": parse_sharding("a: S(0)"), signature.inputs[0].name: given}
    assert shardings_of_new_values(function, signature) == expected
