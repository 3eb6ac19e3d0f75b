"""What a backward leaves in `grad` is what it leaves on one device, and torch's optimizers take it."""

import re
from typing import Any

import pytest
import torch

from tests.lowering.gloo_ranks import on_ranks
from tests.runtime import gradient_cases

pytestmark = pytest.mark.gloo


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict[str, Any]]:
    """What each of four ranks returns from `gradient_cases.run`."""
    return on_ranks(4, gradient_cases.run, tmp_path_factory.mktemp("ranks"))


def test_updates_by_every_optimizer_in_every_form_are_those_of_one_device(ranks):
    for found in (each["optimizers"] for each in ranks):
        for pair, reason in found["refused"].items():
            assert re.search(gradient_cases.REFUSED[pair], reason)
        for case, pairs in found["pairs"].items():
            for mine, expected in pairs:
                tolerance = gradient_cases.ROUNDING.get(case[1], 1e-12)
                torch.testing.assert_close(mine, expected, rtol=0, atol=tolerance, msg=str(case))


def test_gradients_and_states_have_the_strides_of_their_parameters(ranks):
    for found in (each["optimizers"] for each in ranks):
        for case, (parameter, *others) in found["strides"].items():
            assert others == [parameter] * 2, case


def test_parameters_that_no_used_output_depends_on_have_no_gradient(ranks):
    for found in (each["unused_heads"] for each in ranks):
        assert any(gradient is None for _, expected in found["pairs"] for gradient in expected)
        for mine, expected in found["pairs"]:
            torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)
        part, whole = found["nodes"]
        assert part < whole
    for mine, expected in (pair for each in ranks for pair in each["other_heads_on_other_ranks"]):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)


def test_a_gradient_of_a_gradient_and_torch_func_are_errors_that_say_what_to_do(ranks):
    for found in (each["edges"] for each in ranks):
        assert "use spmdir.training_step" in found["penalty"]
        assert "inside a transform of torch.func" in found["func"]
        assert "cannot compute the forward-mode derivative of a sharded module" in found["forward mode"]
        assert "is on the meta device, where tensors have no values" in found["meta"]


def test_hooks_that_cannot_be_traced_and_lazy_layers_are_errors_that_say_what_to_do(ranks):
    expected = {"lazy": "call the model once", "name": "rename it", "hook": "hook double"}
    for name, error in ranks[0]["untraceable"].items():
        (text,) = (text for kind, text in expected.items() if kind in name)
        assert text in error, (name, error)


def test_backward_hooks_of_the_module_and_of_a_step_do_what_they_do_on_one_device(ranks):
    for mine, expected in (pair for each in ranks for pair in each["backward_hooks"]):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)


def test_a_second_backward_and_anomaly_detection_are_as_on_one_device(ranks):
    for found in (each["edges"] for each in ranks):
        torch.testing.assert_close(*found["gradients"], rtol=1e-12, atol=1e-12)
        assert "returned nan values" in found["nan"]


def test_recurrent_layers_are_those_of_one_device_and_writes_to_parameters_are_errors(ranks):
    for found in ranks:
        for mine, expected in found["recurrent"]:
            torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)
        assert "the forward writes to its parameter 'weight'" in found["renormalised"]


def test_a_checkpointed_region_writes_to_buffers_again_in_the_backward(ranks):
    for found in (each["writes_of_regions"] for each in ranks):
        assert found["alone"]["norm.num_batches_tracked"] == 5
        torch.testing.assert_close(found["step"], found["alone"], rtol=1e-12, atol=1e-12)
        for mine, expected in found["pairs"]:
            torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)
    assert all("writes to the buffer 'norm.running_mean'" in each["unclear_regions"] for each in ranks)


def test_submodules_called_by_themselves_are_errors_and_their_hooks_are_in_the_program(ranks):
    for found in (each["inner_modules"] for each in ranks):
        assert "Linear(in_features=6, out_features=10, bias=True) is a submodule of a sharded" in found["method"]
        for mine, expected in found["pairs"]:
            torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)
