"""A sharded module has a program for each structure of arguments, and for few values of numbers."""

from typing import Any

import pytest
import torch

from tests.lowering.gloo_ranks import on_ranks
from tests.runtime import variants_cases
from tests.runtime.variants_cases import CALLS

pytestmark = pytest.mark.gloo


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict[str, Any]]:
    """What each of two ranks returns from `variants_cases.run`."""
    folder = tmp_path_factory.mktemp("ranks")
    return on_ranks(2, variants_cases.run, folder, str(folder))


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_built_otherwise_has_the_outputs_and_gradients_of_one_device(ranks, name):
    for found in ranks:
        mine, alone = found["structures"][name]
        torch.testing.assert_close(mine, alone, rtol=1e-12, atol=1e-12)


def test_calls_that_are_built_alike_share_a_program(ranks):
    for found in ranks:
        assert found["structures"]["programs"] == len(CALLS) - 1  # a mask by its name is the same as by its place


def test_numbers_that_change_again_and_again_are_an_error_that_names_the_argument(ranks):
    for found in ranks:
        assert found["structures"]["limit"] == (
            "'scale' has had 8 values, each of which needs a program; expected few values: pass it as a tensor, such "
            "as torch.tensor(9.0)"
        )


def test_shards_of_known_inputs_and_outputs_keep_their_layouts_where_arguments_are_left_out(ranks):
    for found in (each["shards"] for each in ranks):
        torch.testing.assert_close(*found["logits"], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(*found["smaller"], rtol=1e-12, atol=1e-12)
        assert "the call passes a shard 'inputs_c', whose global shape is not known" in found["unknown"]


def test_state_that_changes_on_one_rank_alone_is_an_error_on_all_ranks(ranks):
    for found in ranks:
        assert "make different calls, the inputs of a call and another program" in found["different_state"][0]
    assert "has reached another program of the module" in ranks[0]["different_state"][1]
    assert "rank 0 has not reached another program of the module within 5 s" in ranks[1]["different_state"][1]
