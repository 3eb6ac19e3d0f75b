"""A sharded module trains as the module does on one device."""

import importlib
import sys
from typing import Any

import pytest
import torch

import spmdir
from tests.lowering.gloo_ranks import on_ranks
from tests.runtime import shard_module_cases

pytestmark = pytest.mark.gloo


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict[str, Any]]:
    """What each of four ranks returns from `shard_module_cases.run`."""
    return on_ranks(4, shard_module_cases.run, tmp_path_factory.mktemp("ranks"))


def test_losses_norms_and_state_of_updates_are_those_of_one_device(ranks):
    for found in ranks:
        torch.testing.assert_close(found["everything"]["ranks"], found["everything"]["alone"], rtol=1e-12, atol=1e-12)


def test_parameters_are_dtensors_by_their_names_with_ties_and_the_module_is_of_its_class(ranks):
    for found in (each["everything"] for each in ranks):
        assert found["is"] and found["tied"] and found["names"] and found["unused"]
        assert found["placements"]["up.weight"] == "(Shard(dim=0), Shard(dim=1))"
        assert found["placements"]["norm.weight"] == "(Replicate(), Replicate())"
        assert found["gradient"] == found["placements"]["up.weight"]


def test_calls_that_do_not_fit_say_why(ranks):
    for found in (each["everything"]["errors"] for each in ranks):
        shape, added, replaced, own_forward, whole, shards = found
        assert "'x' has shape" in shape
        assert added.startswith("'late_weight' was added after the module was sharded; expected ")
        assert replaced.startswith("'again.bias' has become no DTensor; expected [")
        assert "model.forward is an attribute of the Linear" in own_forward
        assert not whole and "call spmdir.checkpoint.save_safetensors(directory, model) on all ranks" in shards


def test_autocast_rounds_as_on_one_device_and_sgd_updates_are_equal(ranks):
    for found in (each["rounded"] for each in ranks):
        torch.testing.assert_close(found["ranks"], found["alone"], rtol=0, atol=0)
        assert found["alone"]["losses"][0] == 8 * 256 + sum(range(8))


def test_a_torch_that_lacks_what_captures_both_directions_is_an_error_with_the_versions(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo.functional_export", None)
    monkeypatch.delitem(sys.modules, "spmdir.torch_interop.joint_export", raising=False)
    with pytest.raises(spmdir.SpmdirError, match=r"expected torch 2\.11 to 2\.13"):
        importlib.import_module("spmdir.torch_interop.joint_export")


def test_a_loss_of_each_ranks_own_batch_gives_the_gradients_of_fsdp2(ranks):
    for found in ranks:
        for mine, native in found["own_batches"]["gradients"]:
            torch.testing.assert_close(mine, native, rtol=1e-12, atol=1e-12)


def test_gradients_have_memory_of_their_own_and_an_input_has_one_if_the_call_asks_for_it(ranks):
    for found in ranks:
        torch.testing.assert_close(found["written_to"]["ranks"], found["written_to"]["alone"], rtol=0, atol=0)


def test_the_gradient_of_an_output_in_shards_is_laid_out_as_the_output(ranks):
    for found in ranks:
        for mine, alone in found["shards_of_outputs"]["gradients"]:
            torch.testing.assert_close(mine, alone, rtol=1e-12, atol=1e-12)
        assert "output 0 comes back as <tp: P(sum)>" in found["shards_of_outputs"]["error"]


def test_a_module_is_traced_again_under_autocast_and_when_a_parameter_begins_to_learn(ranks):
    for found in (each["what_is_traced"] for each in ranks):
        assert found["ranks"][0].dtype == torch.bfloat16
        torch.testing.assert_close(found["ranks"], found["alone"], rtol=2**-6, atol=2**-6)


def test_updates_in_bf16_are_as_near_to_those_in_f64_as_on_one_device(ranks):
    for found in (each["half"] for each in ranks):
        for mine, alone in found.values():
            assert mine.sqrt() <= 1.5 * alone.sqrt()


def test_adapters_of_peft_are_trained_beside_sharded_layers_that_are_frozen(ranks):
    for found in (each["adapters"] for each in ranks):
        assert found["placements"] == "(Shard(dim=0),)" and not found["kept"]
        for mine in ("module", "step"):
            torch.testing.assert_close(found[mine], found["alone"], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found["module, merged"], found["alone, merged"], rtol=1e-12, atol=1e-12)


def test_the_first_rank_decides_and_keeps_the_program(ranks):
    first, *others = (found["decided_programs"] for found in ranks)
    assert len(first[0]) == 1 and first[1] == first[0] and first[0][0].startswith("Sums-")
    assert others == [[[], []]] * 3


def test_gradients_of_several_batches_are_reduced_once(ranks):
    for found in (each["accumulated"] for each in ranks):
        for mine, alone in found["pairs"]:
            torch.testing.assert_close(mine, alone, rtol=1e-12, atol=1e-12)
        assert found["unreduced"]
        every, none = found["sends"]
        assert {"all_reduce", "reduce_scatter"} & set(every)
        assert not {"all_reduce", "reduce_scatter"} & set(none)
        assert "no_such" in found["error"]


def test_a_tensor_that_is_no_buffer_is_named(ranks):
    assert all(
        "which is not a parameter or buffer; expected registered tensors only" in found["no_buffer"] for found in ranks
    )


def test_a_copy_has_parameters_of_its_own_and_a_write_before_the_backward_is_an_error(ranks):
    for found in (each["copies"] for each in ranks):
        for mine, expected in found["pairs"]:
            torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)
        assert found["error"].startswith("'2.weight' was written to between a forward and its backward")
