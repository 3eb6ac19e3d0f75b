"""`parallelize` on real ranks is the single-device program, with sharded state."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import spmdir
from spmdir.core.mesh import Mesh
from spmdir.pipeline.pipeline import SCHEDULED
from tests.lowering.gloo_ranks import LIMIT, on_ranks
from tests.runtime import parallelize_cases

ROOT = Path(__file__).parents[2]
TWO = Mesh({"dp": 1, "tp": 2})
FOUR = Mesh({"dp": 2, "tp": 2})
CASES = {
    TWO: ("forward", "sgd", "rejected", "own_pass", "own_collective", "compiled", "by_backend"),
    FOUR: ("forward", "sharded", "adamw", "effects", "exported"),
}
"""Mesh → what its ranks do."""


@pytest.fixture(scope="module")
def ranks_of(tmp_path_factory) -> Callable[[Mesh], list[dict[str, Any]]]:
    """Mesh → what each of its ranks returns from `parallelize_cases.run`, which runs once for all tests."""

    @functools.cache
    def run(mesh: Mesh) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("ranks")
        return on_ranks(mesh.world_size, parallelize_cases.run, folder, mesh, CASES[mesh])

    return run


@pytest.fixture
def ranks(request, ranks_of) -> tuple[Mesh, list[dict[str, Any]]]:
    """The mesh, and what each of its ranks returns."""
    # A fixture of the module with parameters would be made anew whenever the order of tests goes to another mesh.
    return request.param, ranks_of(request.param)


def on(*meshes: Mesh):
    """The test is about the results of real ranks of `meshes`."""
    parametrized = pytest.mark.parametrize("ranks", meshes, ids=str, indirect=True)
    return lambda test: pytest.mark.gloo(parametrized(test))


def assert_same(found: Any, expected: Any) -> None:
    leaves, spec = pytree.tree_flatten(expected)
    found_leaves, found_spec = pytree.tree_flatten(found)
    assert found_spec == spec
    for leaf, wanted in zip(found_leaves, leaves, strict=True):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(leaf, wanted, rtol=1e-9, atol=1e-9)
        else:
            assert leaf == wanted


def assert_same_state(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert_same(dict(sorted(found.items())), dict(sorted(expected.items())))


@on(TWO, FOUR)
def test_a_forward_gives_every_rank_the_full_output(ranks):
    for result in ranks[1]:
        assert_same(result["forward"]["outputs"], result["forward"]["expected"])


@on(TWO, FOUR)
def test_ranks_run_a_schedule_for_the_machine_of_their_device_unless_told_otherwise(ranks):
    for result in ranks[1]:
        assert result["forward"]["pipeline"] == str(spmdir.Pipeline(SCHEDULED, topology="cpu-gloo"))
        assert 'spmd.decided_by = "propagate{topology=cpu-gloo overlap=messages}"' in result["forward"]["module"]


@on(TWO)
def test_what_was_parallelized_is_explained_as_it_was_decided(ranks):
    seconds, decided = ranks[1][0]["forward"]["told"]
    assert seconds == pytest.approx(decided, rel=1e-8)


@on(TWO, FOUR)
def test_ranks_keep_only_their_shards_of_the_parameters(ranks):
    mesh, results = ranks
    for result in results:
        found = result["forward"]
        assert found["parameters"]
        full = {name: tensor.numel() for name, tensor in found["model_state"].items()}
        for name in ("head.weight", "block.out.weight", "block.up.weight", "block.down.weight"):
            assert found["local"][name] * mesh.world_size == full[name]
        assert found["storage"] == sum(found["local"].values()) * 8, (
            "a shard keeps the storage of the full tensor alive"
        )
        assert sum(found["local"].values()) < sum(full.values()) - full["embed.weight"], "tied weights are held once"


@on(TWO, FOUR)
def test_the_gathered_state_is_that_of_the_model_tied_names_included(ranks):
    for result in ranks[1]:
        assert_same_state(result["forward"]["state"], result["forward"]["model_state"])


@on(FOUR)
def test_inputs_and_outputs_may_be_local_pieces(ranks):
    for result in ranks[1]:
        assert_same(result["sharded"]["outputs"], result["sharded"]["expected"])


@on(FOUR)
def test_three_updates_of_adamw_have_the_losses_and_the_final_state_of_one_device(ranks):
    for result in ranks[1]:
        assert_trained(result["adamw"])


@on(TWO)
def test_three_updates_of_sgd_have_the_losses_and_the_final_state_of_one_device(ranks):
    for result in ranks[1]:
        assert_trained(result["sgd"])


def assert_trained(found: dict[str, Any]) -> None:
    assert_same(found["losses"], found["expected"])
    assert_same(found["state"], found["expected_state"])
    assert found["losses"][0] != found["losses"][2]
    assert found["in_place"]
    assert found["share"] < 0.75


@on(FOUR)
def test_mutations_and_random_numbers_are_those_of_one_device(ranks):
    for result in ranks[1]:
        found = result["effects"]
        assert_same(found["outputs"], found["expected"])
        assert_same_state(found["state"], found["expected_state"])
        assert found["seen"].tolist() == [2, 2, 2]


@on(FOUR)
def test_arguments_that_do_not_fit_are_rejected(ranks):
    found = ranks[1][0]["effects"]
    assert "2.0; expected 0.5, with which the program was traced" in found["number"]
    assert "are (_, _); expected ({'value': _, 'seen': _}, _), as in the example arguments" in found["structure"]
    assert "shape [5, 8]; expected the global shape [4, 8]" in found["shape"]
    assert "which the program writes to, shares memory with" in found["memory"]


@on(FOUR)
def test_an_exported_program_runs_in_each_group_along_its_axis(ranks):
    mesh, results = ranks
    size = mesh.sizes["tp"]
    for result in results:
        found = result["exported"]
        assert_same(found["outputs"], [found["expected"]] * 2)
        assert found["local"]["block.up.weight"] == (4 * parallelize_cases.WIDTH // size, parallelize_cases.WIDTH)
        assert "of the device mesh" in found["rank"]


@on(TWO)
def test_ranks_that_disagree_are_rejected(ranks):
    mesh, results = ranks
    for result in results:
        assert f"has {mesh.world_size} ranks; " in result["rejected"]["size"]
        assert f"expected {3 * mesh.world_size}, as in mesh" in result["rejected"]["size"]
        assert "would run different programs" in result["rejected"]["programs"]


@on(TWO)
def test_a_pass_of_a_plugin_runs_on_ranks_wherever_it_stands_in_the_pipeline(ranks):
    for result in ranks[1]:
        assert_same(result["own_pass"]["outputs"], result["own_pass"]["expected"])


@on(TWO)
def test_a_rewrite_of_a_plugin_puts_its_collective_into_what_ranks_run(ranks):
    for result in ranks[1]:
        found = result["own_collective"]
        assert_same(found["outputs"], found["expected"])
        assert "spmd.star_reduce" in found["text"] and "spmd.all_reduce" not in found["text"]
        code = found["code"]
        assert "gathers_all_gather_into_tensor" in code and "functional.all_gather" not in code
        assert "all_reduce" not in code


@on(TWO)
def test_a_program_that_inductor_compiles_gives_the_same_numbers_random_ones_too(ranks):
    for result in ranks[1]:
        found = result["compiled"]
        outputs, states = found["outputs"], found["states"]
        torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(states[0], states[1], rtol=1e-12, atol=1e-12)
        assert not torch.equal(*outputs[0])
        assert "compile is 'inductor' of type str; expected True, False or a dict" in found["flag"]
        assert "no_such" in found["option"] and "list_options" in found["option"]


@on(TWO)
def test_the_program_of_a_rank_can_be_printed(ranks):
    for result in ranks[1]:
        text = result["compiled"]["rank_module"]
        assert 'spmd.stage = "scheduled"' in text and "spmd.all_gather_start" in text


@on(TWO)
def test_the_backend_of_torch_compile_gives_the_outputs_and_buffers_of_one_device(ranks):
    for result in ranks[1]:
        found = result["by_backend"]
        torch.testing.assert_close(found["outputs"], found["expected"], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found["state"], found["expected_state"], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found["options"], found["of one"], rtol=1e-12, atol=1e-12)


@on(TWO)
def test_the_backend_says_what_it_cannot_do(ranks):
    for result in ranks[1]:
        found = result["by_backend"]
        assert found["gradients"].startswith(
            "the inputs require gradients, which the backend does not compute; expected a call without gradients"
        )
        assert "spmdir.shard_module" in found["gradients"]
        assert "unknown option 'mash'; expected mesh, plan" in found["unknown"]
        assert "sharding is given for 'up', which is not an input, parameter or buffer" in found["plan"]


@on(TWO)
def test_ranks_that_differ_in_pipeline_or_plugins_are_rejected(ranks):
    for result in ranks[1]:
        assert "with different plug-ins or topologies" in result["own_pass"]["plug-ins"]
        assert "pass the pipelines propagate,expand," in result["own_pass"]["pipelines"]


@pytest.mark.gloo
def test_the_training_example_agrees_with_one_device_under_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    script = str(ROOT / "examples" / "train_torchrun.py")
    done = subprocess.run([*command, script], env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert "mesh <dp = 1, tp = 2> on cpu" in done.stdout


def test_a_process_without_a_group_is_told_how_to_make_one():
    model, ids, _ = parallelize_cases.transformer()
    with pytest.raises(spmdir.SpmdirError, match="init_process_group"):
        spmdir.parallelize(model, Mesh({"dp": 2}), None, (ids,))


def test_a_function_without_state_is_an_error(alone):
    with pytest.raises(spmdir.SpmdirError, match="pass state="):
        spmdir.parallelize(lambda state, x: (x, state), Mesh({"dp": 1}), None, (torch.zeros(2),))


@pytest.mark.parametrize(("dropout", "shares"), [(0.0, 0), (0.5, 1)])
def test_ranks_share_a_generator_only_for_programs_that_draw(alone, monkeypatch, dropout: float, shares: int):
    shared: list[torch.Tensor] = []
    monkeypatch.setattr("spmdir.runtime.rank_calls.broadcast_first", lambda values, *_: shared.append(values))

    def attend(state: Any, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=dropout), state

    x = torch.randn(1, 1, 4, 4)
    parallel = spmdir.parallelize(attend, Mesh({"dp": 1}), None, (x,), state={"scale": torch.ones(())})
    parallel(x)
    assert len(shared) == shares
