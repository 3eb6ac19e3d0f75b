"""`parallelize` with dynamic shapes on real ranks: compiled once, called at several sizes."""

import pytest
import torch
from torch.utils import _pytree as pytree

from spmdir.core.mesh import Mesh
from tests.lowering.gloo_ranks import on_ranks
from tests.runtime import dynamic_shapes_cases

MESH = Mesh({"dp": 2, "tp": 1})


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_ranks(MESH.world_size, dynamic_shapes_cases.run, tmp_path_factory.mktemp("ranks"), MESH)


def assert_close(found, expected):
    for leaf, wanted in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(leaf, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.gloo
def test_a_model_runs_at_every_size_and_is_compiled_once_for_each(ranks):
    for result in ranks:
        assert_close(result["outputs"], result["expected"])


@pytest.mark.gloo
def test_a_training_step_runs_at_every_size_and_goes_on_with_its_state(ranks):
    for result in ranks:
        assert_close(result["losses"], result["wanted"])
        assert_close(result["state"], result["wanted state"])


@pytest.mark.gloo
def test_a_sharded_module_runs_forward_and_backward_at_every_size_with_the_state_of_the_first_rank(ranks):
    for result in ranks:
        torch.testing.assert_close(*result["modules"], rtol=1e-12, atol=1e-12)


@pytest.mark.gloo
def test_sizes_that_the_program_was_not_traced_for_are_refused(ranks):
    for result in ranks:
        assert result["refused"] == (
            "dimension 0 of argument 'ids' (Dim 'batch') is 17; expected 0 to 16, the range in dynamic_shapes"
        )
        assert "dimension 1 of" in result["different"] and "is 5; expected" in result["different"]


@pytest.mark.gloo
def test_ranks_with_batches_of_their_own_sizes_have_the_numbers_of_fsdp2(ranks):
    for result in ranks:
        torch.testing.assert_close(*result["own"], rtol=1e-12, atol=1e-12)


@pytest.mark.gloo
def test_whole_results_of_batches_of_their_own_sizes_are_means_over_ranks(ranks):
    for result in ranks:
        torch.testing.assert_close(*result["means"], rtol=1e-12, atol=1e-12)


@pytest.mark.gloo
def test_calls_have_smaller_sizes_than_examples_of_the_largest_ones(ranks):
    for result in ranks:
        for found, expected in result["largest"]["pairs"]:
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert "pass local inputs of different sizes, 1 and 2" in result["largest"]["at least 2"]
        assert "expected 3 to 4, for which the program was traced" in result["largest"]["at least 3"]


@pytest.mark.gloo
def test_buffers_that_sizes_of_batches_are_added_to_are_equal_on_all_ranks(ranks):
    positions = sum(range(8)) + (sum(range(10)) + sum(range(6))) / 2
    for result in ranks:
        found = result["counters"]
        for front in ("module", "step"):
            assert [float(each) for each in found[front]] == [16, positions], front
        assert "a result of type i64 is computed from the separate batch of each rank" in found["integers"]
        assert "use a floating-point buffer" in found["integers"]


@pytest.mark.gloo
def test_local_sizes_that_a_message_depends_on_are_compared_in_each_call(ranks):
    for result in ranks:
        shape, different, beyond = result["needed"]
        assert shape == (6, 5, 24)
        assert different.startswith("ranks 0 and 1 pass local inputs of different sizes, 3 and 4 in dimension 0")
        assert "on mesh axes [dp] depends on the sizes; pass inputs of one size" in different
        assert "is 17; expected " in beyond


@pytest.mark.gloo
def test_sizes_of_0_and_1_have_programs_of_their_own(ranks):
    beyond = "dimension 0 of argument 'x' (Dim 'rows') is 17; expected 0 to 16, the range in dynamic_shapes"
    for result in ranks:
        found, expected = result["special"]["numbers"]
        assert_close(found, expected)
        assert result["special"]["programs"] == 3
        assert result["special"]["errors"] == [beyond, beyond]
        assert result["special"]["local"] == (
            "dimension 0 of argument 'x' (Dim 'rows') is 0 in the global input; expected at least 2 with local_inputs, "
            "since torch traces sizes of 0 and 1 separately: give this rank more, or pass global inputs"
        )
