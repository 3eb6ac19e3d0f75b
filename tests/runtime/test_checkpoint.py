"""Checkpoints: complete or not there, loaded whatever the layout, and never in part."""

# pyright: reportAttributeAccessIssue=false, reportPrivateImportUsage=false
from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as dcp

import spmdir
from tests.lowering.gloo_ranks import on_ranks
from tests.runtime import checkpoint_cases


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    """Where four ranks saved, and what each returns."""
    folder = tmp_path_factory.mktemp("four")
    return folder, on_ranks(4, checkpoint_cases.save_on_four, folder, folder)


@pytest.fixture(scope="module")
def loaded(saved, tmp_path_factory) -> list[dict[str, Any]]:
    """What each of two ranks returns that loads what four saved."""
    return on_ranks(2, checkpoint_cases.load_on_two, tmp_path_factory.mktemp("two"), saved[0])


def assert_equal(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.gloo
def test_a_resumed_step_is_bit_equal_with_its_moments_and_its_random_numbers(saved):
    for result in saved[1]:
        assert_equal(result["again"], result["after"])
        assert_equal(*result["states"])
        assert result["counts"] == {"seen": 4, "names": ["a"]}
        assert result["place"] == "step-00000000"
        assert {result["kinds"][f"{moment}.up.weight"] for moment in ("parameters", "exp_avg")} == {"BlockShard"}


@pytest.mark.gloo
def test_a_step_of_four_ranks_continues_on_two_with_another_plan(saved, loaded):
    for result in loaded:
        assert_equal(result["state"], saved[1][0]["saved"])


@pytest.mark.gloo
def test_a_loop_of_a_module_an_optimizer_and_a_scheduler_continues_on_two_ranks(saved, loaded):
    for result in loaded:
        assert result["epoch"] == 2
        assert result["rate"] == 0.1 / 3
        torch.testing.assert_close(result["norms"], saved[1][0]["norms"], rtol=1e-12, atol=0)


@pytest.mark.gloo
def test_every_layout_is_saved_and_loads_into_every_other(loaded):
    for result in loaded:
        assert not result["wrong"]


@pytest.mark.gloo
def test_dtensors_that_torch_would_save_wrongly_are_saved_rightly(saved):
    for result in saved[1]:
        for whole in result["foreign"]:
            assert_equal(whole, checkpoint_cases.WHOLE)


@pytest.mark.gloo
def test_what_cannot_be_saved_or_loaded_is_an_error_on_all_ranks(saved):
    for rank, result in enumerate(saved[1]):
        assert "'w' has the sharding <dp: P(sum)>: local tensors with P(sum) on axis 'dp' do not" in result["partial"]
        assert "and the local shape [" in result["odd"]
        assert "ranks 0 and 1 save different values of 'w', but a checkpoint stores only one" in result["differs"]
        assert "ranks 0 and 1 pass step=0 and step=1; pass the same value on all ranks" in result["step"]
        assert "ranks 0 and 1 pass keep=1 and keep=2" in result["keep"]
        assert "ranks 0 and 1 pass the directories" in result["directory"]
        assert "is damaged: '__3_0.distcp' differs from the saved bytes" in result["damaged"]
        assert result["one rank"].startswith("" if rank == 2 else "rank 2: ")
        assert "does not fit: it contains 'w', but not 'v'; expected" in result["one rank"]
        assert "no place for a state" in result["restored"]
        assert "'bare' is 3, which cannot be loaded in place" in result["bare"]
        assert "on tensors with different shardings" in result["mixed"]
        assert "on a shard other than those of torch.chunk" in result["gathered"]
        assert result["written"] == 0
        assert not result["left"]


def parts(seed: int = 0, width: int = 3) -> dict[str, Any]:
    """A module and an optimizer that has taken a step, on one device."""
    torch.manual_seed(seed)
    model = nn.Linear(4, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "progress": {"epoch": seed}}


def leaves(state: dict[str, Any]) -> Any:
    return [
        state["model"].state_dict(),
        state["optimizer"].state_dict(),
        dict(state["progress"]),
        torch.get_rng_state(),
    ]


def copied(value: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, value)


@pytest.fixture
def run(tmp_path) -> Path:
    """A directory with the checkpoints of steps 1 and 2."""
    for step in (1, 2):
        spmdir.checkpoint.save(tmp_path / "run", parts(step), step=step)
    return tmp_path / "run"


def test_one_process_resumes_the_last_checkpoint_or_the_one_asked_for(run):
    for step, chosen in ((2, None), (1, 1)):
        found = parts(9)
        assert spmdir.checkpoint.load(run, found, step=chosen).name == f"step-{step:08d}"
        assert_equal(leaves(found)[:3], leaves(parts(step))[:3])


def test_a_fresh_optimizer_gets_its_moments(run):
    found = parts(9)
    found["optimizer"] = torch.optim.AdamW(found["model"].parameters(), lr=0.5)
    found["model"].zero_grad()
    spmdir.checkpoint.load(run, found)
    assert_equal(leaves(found)[:2], leaves(parts(2))[:2])


DAMAGES = {
    "a missing file": (lambda place: (place / "__0_0.distcp").unlink(), r"'__0_0.distcp' is missing; load .* step=1"),
    "a short file": (lambda place: os.truncate(place / "__0_0.distcp", 99), r"has 99 bytes; expected \d+"),
    "another byte": (lambda place: flip(place / "__0_0.distcp"), "differs from the saved bytes"),
    "missing metadata": (lambda place: (place / ".metadata").unlink(), "'.metadata' is missing"),
    "other metadata": (lambda place: flip(place / ".metadata"), "'.metadata' differs from the saved bytes"),
    "missing digests": (lambda place: (place / "digests.json").unlink(), "'digests.json' is missing"),
    "digests of nothing": (
        lambda place: (place / "digests.json").write_text("[1]"),
        "'digests.json' does not contain the lengths",
    ),
    "digests of files elsewhere": (
        lambda place: (place / "digests.json").write_text('{"../x": {"bytes": 1, "sha256": ""}}'),
        "'digests.json' does not contain the lengths",
    ),
    "digests that are cut": (lambda place: os.truncate(place / "digests.json", 9), "'digests.json' is not valid JSON"),
}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_an_error_and_nothing_is_loaded(run, name):
    damage, message = DAMAGES[name]
    damage(run / "step-00000002")
    assert_refused(run, parts(9), message)


MISFITS = {
    "another shape": (
        lambda state: parts(9, width=2),
        r"'model.weight' is \[3, 4\] .* in the checkpoint and \[2, 4\] .* here",
    ),
    "another type": (
        lambda state: {"model": state["model"].double()},
        "torch.float32 in the checkpoint and .* torch.float64 here",
    ),
    "a missing key": (lambda state: {"model": nn.Linear(4, 3, bias=False)}, "'model.bias' is only in the checkpoint"),
    "a further key": (lambda state: {"model": state["model"], "ema": torch.ones(2)}, "'ema' is not in the checkpoint"),
    "another key": (
        lambda state: {"ema": torch.ones(2)},
        "it contains 'model', 'optimizer', 'progress', but not 'ema'",
    ),
    "a tensor for a value": (lambda state: {"progress": {"epoch": torch.ones(2)}}, "'progress.epoch' is a plain value"),
    "no names": (lambda state: [state["model"]], "state is .* expected a dict from names to values"),
    "one name twice": (lambda state: {"a.b": torch.ones(2), "a": {"b": torch.ones(2)}}, "two values .* have one name"),
    "a reserved name": (lambda state: {"generators": torch.ones(2)}, "expected another name: rename this value"),
    "an optimizer alone": (lambda state: {"optimizer": state["optimizer"]}, "expected this module: give it too"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_checkpoint_that_does_not_fit_is_an_error_and_nothing_is_loaded(run, name):
    change, message = MISFITS[name]
    assert_refused(run, change(parts(9)), message)


def assert_refused(run: Path, state: Any, message: str) -> None:
    values = state.values() if isinstance(state, dict) else state
    held = [value.state_dict() if hasattr(value, "state_dict") else value for value in values]
    before = copied([held, torch.get_rng_state()])
    with pytest.raises(spmdir.SpmdirError, match=message):
        spmdir.checkpoint.load(run, state)
    assert_equal([held, torch.get_rng_state()], before)


def test_a_fresh_optimizer_stays_fresh_where_it_is_refused(run):
    model = nn.Linear(4, 2)
    fresh = torch.optim.AdamW(model.parameters())
    with pytest.raises(spmdir.SpmdirError, match="does not fit"):
        spmdir.checkpoint.load(run, {"model": model, "optimizer": fresh})
    with pytest.raises(spmdir.SpmdirError, match="'optimizer' has taken no step"):
        spmdir.checkpoint.save(run, {"model": model, "optimizer": fresh})
    assert not fresh.state


def test_a_directory_without_a_checkpoint_says_which_there_are(run, tmp_path):
    with pytest.raises(spmdir.SpmdirError, match=r"no complete checkpoint of step 7; the directory has steps 1, 2"):
        spmdir.checkpoint.load(run, parts(), step=7)
    with pytest.raises(spmdir.SpmdirError, match="no complete checkpoint; save one first"):
        spmdir.checkpoint.load(tmp_path, parts())
    with pytest.raises(spmdir.SpmdirError, match=r"the checkpoint .* exists; expected a step without a checkpoint"):
        spmdir.checkpoint.save(run, parts(), step=2)


def test_what_torch_saved_is_loaded_and_its_files_are_long_enough(tmp_path):
    dcp.save({"w": torch.ones(3)}, checkpoint_id=str(tmp_path), no_dist=True)
    found = {"w": torch.zeros(3)}
    spmdir.checkpoint.load(tmp_path, found)
    assert_equal(found["w"], torch.ones(3))
    os.truncate(tmp_path / "__0_0.distcp", 99)
    with pytest.raises(spmdir.SpmdirError, match=r"'__0_0.distcp' has 99 bytes; expected at least"):
        spmdir.checkpoint.load(tmp_path, found)


def test_only_the_newest_stay_where_asked(run):
    spmdir.checkpoint.save(run, parts(3), keep=2)
    assert sorted(path.name for path in run.iterdir()) == ["step-00000002", "step-00000003"]


def test_a_save_after_an_older_checkpoint_was_loaded_stays(run):
    assert spmdir.checkpoint.save(run, parts(0), step=0, keep=1).exists()
    assert [path.name for path in run.iterdir()] == ["step-00000000"]


@pytest.mark.parametrize("given", [{"keep": 0}, {"keep": -1}, {"keep": True}, {"step": -1}, {"step": "1"}])
def test_a_wrong_number_is_an_error_and_no_checkpoint_is_lost(run, given):
    before = sorted(run.iterdir())
    with pytest.raises(spmdir.SpmdirError, match="expected"):
        spmdir.checkpoint.save(run, parts(3), **given)
    assert sorted(run.iterdir()) == before


def test_values_under_numbers_are_loaded(tmp_path):
    spmdir.checkpoint.save(tmp_path, {"progress": {"seen": {0: 5, 1: 6}}})
    found = {"progress": {"seen": {0: 0, 1: 0}}}
    spmdir.checkpoint.load(tmp_path, found)
    assert found == {"progress": {"seen": {0: 5, 1: 6}}}


def test_what_is_in_the_way_of_a_checkpoint_is_an_error_or_removed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".unfinished-step-0").symlink_to(tmp_path / "elsewhere")
    spmdir.checkpoint.save(tmp_path / "run", parts())
    assert (tmp_path / "elsewhere").exists()
    (tmp_path / "file").touch()
    with pytest.raises(spmdir.SpmdirError, match="cannot make the directory"):
        spmdir.checkpoint.save(tmp_path / "file", parts())


CALLS = ("fsync", "rename", "mkdir")
"""What a save asks the system for, in whose midst it may be killed."""


def test_a_process_killed_anywhere_in_a_save_leaves_a_complete_checkpoint(run):
    state, found = parts(3), []
    before, after = (copied(leaves(parts(step))[:3]) for step in (2, 3))
    for at in range(40):
        shutil.rmtree(run / "step-00000003", ignore_errors=True)
        killed = killed_in_save(run, state, at)
        loaded = parts(9)
        found.append(spmdir.checkpoint.load(run, loaded).name)
        assert_equal(leaves(loaded)[:3], after if found[-1] == "step-00000003" else before)
        if not killed:
            break
    assert found.count("step-00000002") > 4
    assert found[-1] == "step-00000003"


def killed_in_save(run: Path, state: dict[str, Any], at: int) -> bool:
    """Save in a process of its own that is killed before its call number `at` of the system; whether it was."""

    def save() -> None:
        die_at(at)
        spmdir.checkpoint.save(run, state, step=3)

    (status,) = statuses([save])
    assert status in (0, signal.SIGKILL)
    return status != 0


def statuses(works: Sequence[Callable[[], Any]]) -> list[int]:
    """Run each of `works` in a process of its own, at once; how they end, 0 where nothing is raised.

    Soon after one ends otherwise, the others are killed, as torchrun does.
    """
    processes, ended = [], {}
    for work in works:
        process = os.fork()
        if not process:
            try:
                work()
                os._exit(0)
            finally:
                os._exit(1)
        processes.append(process)
    for process in itertools.cycle(processes):
        if process not in ended and (found := os.waitpid(process, os.WNOHANG))[0]:
            ended[process] = found[1]
            if found[1] and len(ended) < len(processes):
                time.sleep(0.2)
                for other in set(processes) - ended.keys():
                    os.kill(other, signal.SIGKILL)
        if len(ended) == len(processes):
            break
        time.sleep(0.001)
    return [ended[process] for process in processes]


def die_at(at: int) -> None:
    """Let this process be killed before its call number `at` of the system."""
    calls = itertools.count()

    def counted(call: Any) -> Any:
        def run_or_die(*args: Any, **options: Any) -> Any:
            if next(calls) >= at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return run_or_die

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


EVERY = (0, 1, 2, 3)


@pytest.mark.gloo
def test_ranks_killed_in_a_save_leave_a_checkpoint_that_other_ranks_load(tmp_path):
    kills = [((), 0), ((1,), 0), ((0,), 5), (EVERY, 2), (EVERY, 6)]
    newest = []
    for turn, (killed, at) in enumerate(kills):
        work = partial(checkpoint_cases.save_as_rank, folder=tmp_path, turn=turn)
        ended = statuses(
            [partial(work, rank, before=partial(die_at, at) if rank in killed else None) for rank in EVERY]
        )
        assert any(ended) == bool(killed)
        assert statuses([partial(checkpoint_cases.load_as_rank, rank, tmp_path, turn) for rank in (0, 1)]) == [0, 0]
        newest.append(max(path.name for path in (tmp_path / "run").glob("step-*")))
    assert newest == ["step-00000000"] * len(kills)


def test_empty_containers_stay_and_what_a_name_begins_with_is_no_owner(tmp_path):
    saved = {"a": torch.ones(2), "a.q": torch.ones(3), "a.r": {"empty": {}, "none": [], "nested": [{}], "seen": 4}}
    spmdir.checkpoint.save(tmp_path, saved)
    found = {"a.r": {"empty": {}, "none": [], "nested": [{}], "seen": 0}}
    spmdir.checkpoint.load(tmp_path, found)
    assert found["a.r"] == saved["a.r"]
    own = {"a": torch.zeros(2)}
    spmdir.checkpoint.load(tmp_path, own)
    assert_equal(own["a"], saved["a"])
    with pytest.raises(spmdir.SpmdirError, match="expected the path of a file"):
        spmdir.checkpoint.load("", own)
