"""Models from the meta device get the values of one device, and safetensors files are read in slices."""

# pyright: reportCallIssue=false
from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from torch import nn
from torch.utils import _pytree as pytree

import spmdir
from tests.lowering.gloo_ranks import on_ranks
from tests.runtime import materialize_cases


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ranks")
    return folder, on_ranks(4, materialize_cases.run, folder, folder)


def assert_equal(found: Any, expected: Any, limit: float = 0) -> None:
    torch.testing.assert_close(found, expected, rtol=limit, atol=limit)


@pytest.mark.gloo
def test_a_model_from_the_meta_device_has_the_values_that_one_device_gives_it(ranks):
    for result in ranks[1]:
        found, expected = result["state"]
        tied = {name: found[name] for name in expected if name in found}
        assert_equal(tied, {name: expected[name].detach() for name in tied})
        assert tied.keys() | {"head.weight"} == expected.keys()
        assert_equal(*result["drawn"])
        assert_equal(*result["forward"], 1e-12)
        assert "has no values, because it was on the meta device" in result["unset"]


@pytest.mark.gloo
def test_a_step_of_a_model_from_the_meta_device_trains_as_on_one_device(ranks):
    for result in ranks[1]:
        assert_equal(*result["step"], 1e-12)
        found, expected = (pytree.tree_flatten_with_path(state)[0] for state in result["trained"])
        assert dict(found).keys() == dict(expected).keys()
        for (_, one), (_, other) in zip(found, expected, strict=True):
            assert_equal(one, other, 1e-12)


@pytest.mark.gloo
def test_a_sharded_module_of_a_model_from_the_meta_device_trains_and_resumes_as_on_one_device(ranks):
    for result in (each["module"] for each in ranks[1]):
        assert_equal(*result["losses"], 1e-12)
        assert_equal(*result["following"], 1e-12)
        assert_equal(*result["loaded"], 1e-12)
        assert result["left"] == ["scaled.table"]
        train, evaluate = result["programs"]
        assert train.startswith("Tied-") and evaluate.startswith("Tied-")


@pytest.mark.gloo
def test_a_sharded_module_without_values_says_so_and_a_failed_load_leaves_it_so(ranks):
    for result in (each["module"] for each in ranks[1]):
        for what in ("call", "save", "save files"):
            assert "has no values, because it is on the meta device" in result[what]
        assert "has no 'nowhere'" in result["misnamed"]
        assert result["untouched"]


@pytest.mark.gloo
def test_saved_files_are_whole_and_as_the_library_and_their_index_say(ranks):
    folder, results = ranks
    files = [name for name in results[0]["files"] if name.endswith(".safetensors")]
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert len(files) > 2
    index = json.loads((folder / "files" / "model.safetensors.index.json").read_text())
    content = results[0]["content"]
    inside = {name: tensor for name, tensor in content.items() if name != "scaled.table"}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in inside.values())
    assert index["weight_map"].keys() == inside.keys()
    for name, file in index["weight_map"].items():
        with safetensors.safe_open(folder / "files" / file, framework="pt") as opened:
            assert_equal(opened.get_tensor(name), content[name])
    assert_equal(content, {name: results[0]["trained"][0][part][name] for name, part in parts(content)})


def parts(content: dict[str, torch.Tensor]) -> list[tuple[str, str]]:
    buffers = ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "scaled.table")
    return [(name, "buffers" if name in buffers else "parameters") for name in content]


@pytest.mark.gloo
def test_files_load_into_another_plan_and_what_they_lack_is_initialised(ranks):
    for result in ranks[1]:
        assert result["left"] == ["scaled.table"]
        assert_equal({name: result["loaded"][name] for name in result["content"]}, result["content"])
        assert_equal(result["loaded"]["scaled.table"], torch.arange(6.0).double())


ERRORS = {
    "missing": "has no 'upper'; expected all tensors of the state: pass its name",
    "shape": "'down.weight' has shape [6, 7] in '",
    "type": "'up.weight' is F64 in '",
    "broken": "cannot be read: ",
    "no file": "is not an index of safetensors files",
    "there": "already contains 'model.safetensors'",
    "no method": "the model itself is a Bare, which has parameters or buffers but no reset_parameters()",
    "others": "the initialisation of the model itself writes to tensors of other modules",
    "no values": "the initialisation of 'inner' leaves 'bias' without values",
}


@pytest.mark.gloo
@pytest.mark.parametrize("name", ERRORS)
def test_what_does_not_fit_is_an_error_on_all_ranks_and_nothing_is_loaded(ranks, name):
    for result in ranks[1]:
        assert ERRORS[name] in result["errors"][name]


def test_a_rank_reads_the_slices_that_it_holds_and_no_more(tmp_path, monkeypatch):
    from spmdir.core.placement.sharding import parse_sharding
    from spmdir.runtime import safetensors_slices
    from spmdir.runtime.shard_blocks import find_shard_blocks

    spmdir.checkpoint.save_safetensors(tmp_path, {"w": torch.arange(35.0).view(7, 5), "other": torch.ones(9)})
    read: Counter[str] = Counter()

    class Spied:
        def __init__(self, name: str, slices: Any):
            self.name, self.slices = name, slices

        def __getattr__(self, name: str) -> Any:
            return getattr(self.slices, name)

        def __getitem__(self, index: Any) -> torch.Tensor:
            part = self.slices[index]
            read[self.name] += part.numel()
            return part

    source = safetensors_slices._find_slices
    monkeypatch.setattr(
        safetensors_slices, "_find_slices", lambda entry, *rest: Spied(entry.state_name, source(entry, *rest))
    )
    shard = torch.zeros(3, 5)
    blocks = find_shard_blocks(parse_sharding("a: Cyclic(0, 2)"), (7, 5), spmdir.Mesh({"a": 2}), 1)
    monkeypatch.setattr(safetensors_slices, "blocks_and_shard", lambda name, tensor: (blocks, shard))
    spmdir.checkpoint.load_safetensors(tmp_path, {"w": torch.empty(7, 5)})
    assert_equal(shard, torch.arange(35.0).view(7, 5)[[2, 3, 6]])
    assert read == {"w": 15}


def test_one_process_saves_and_loads_every_element_type_and_shape(tmp_path):
    from spmdir.runtime.safetensors_slices import DTYPES

    saved = {name: torch.ones(2, 3).to(dtype) for name, dtype in DTYPES.items()}
    saved |= {"scalar": torch.tensor(3.0), "empty": torch.zeros(0, 4), "tied": saved["F32"]}
    spmdir.checkpoint.save_safetensors(tmp_path, saved)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in saved.items() if name != "tied"}
    spmdir.checkpoint.load_safetensors(tmp_path / "model.safetensors", loaded)
    for name, tensor in loaded.items():
        assert tensor.dtype == saved[name].dtype
        assert_equal(tensor.to(torch.complex64), saved[name].to(torch.complex64))
    with pytest.raises(spmdir.SpmdirError, match=r"already contains 'model\.safetensors'"):
        spmdir.checkpoint.save_safetensors(tmp_path, nn.Linear(2, 2))
