"""A directory of decided programs gives back what was decided, or says in which line a file is wrong."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest
import torch
from torch import nn
from torch.export import Dim
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.runtime.program_cache import CacheEntry

MESH = spmdir.Mesh({"dp": 2, "tp": 2})
PLAN = {"input": "dp: S(0)", "0.weight": "tp: S(0)", "0.bias": "tp: S(0)", "2.weight": "tp: S(1)"}
DECIDING = Pipeline(topology="cpu-gloo").through("propagate")
X = torch.ones(4, 8)


def exported(dynamic: bool = False) -> torch.export.ExportedProgram:
    """Return a perceptron as a program, its batch of any size if `dynamic`."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    return torch.export.export(model, (X,), dynamic_shapes=({0: Dim("batch", max=64)},) if dynamic else None)


PROGRAMS = {dynamic: exported(dynamic) for dynamic in (False, True)}


def imported(dynamic: bool = False, plan: dict[str, str] = PLAN) -> ModuleOp:
    return spmdir.import_fx(PROGRAMS[dynamic], MESH, plan, out_shardings=[""])  # type: ignore[arg-type]  # dicts are invariant


def entry(folder: Path, module: ModuleOp, deciding: Pipeline = DECIDING) -> CacheEntry:
    return CacheEntry.of(folder, "Sequential", module, deciding)


def written(folder: Path, dynamic: bool = False) -> tuple[CacheEntry, ModuleOp]:
    """Return the entry of a program and its decided form, which the file has."""
    module = imported(dynamic)
    found = entry(folder, module)
    found.write(run_passes(module, DECIDING))
    return found, module


MACHINE = """
intra_bandwidth = {0}
inter_bandwidth = {0}
memory_bandwidth = {0}
base_latency = 1e-6
intra_latency = 1e-6
inter_latency = 1e-6
"""

EDITS = {
    "%relu = aten.relu(%linear) : tensor<4x8xf32> <>":
        "%relu = aten.relu(%linear) : tensor<4x8xf32> <dp: S(0)> needs (<dp: S(0)>)",
    "%linear_1 = aten.linear(%relu, %2, %3) : tensor<4x8xf32> <>":
        "%linear_1 = aten.linear(%relu, %2, %3) : tensor<4x8xf32> <> needs (<>, _, _)",
}  # fmt: skip
"""Line of a decided program → what a user may make of it."""


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_read_is_what_was_decided_with_the_places_of_the_model(tmp_path: Path, dynamic: bool) -> None:
    found, decided = written(tmp_path, dynamic)
    again = imported(dynamic)
    assert entry(tmp_path, again) == found
    read = found.read(again, DECIDING)
    assert read is not None
    assert ir.print_ir(read) == ir.print_ir(decided)
    for module in (read, decided):
        assert 'loc("0")' in ir.print_ir(module, debuginfo=True)


def test_there_is_an_entry_for_each_program_plan_pipeline_machine_and_mesh(tmp_path: Path) -> None:
    paths = {entry(tmp_path, module).path for module in (imported(), imported(True), imported(plan={}))}
    pipelines = [Pipeline(topology="h100x8"), Pipeline("propagate{effort=10}", topology="cpu-gloo")]
    paths |= {entry(tmp_path, imported(), pipeline.through("propagate")).path for pipeline in pipelines}
    assert len(paths) == 5
    assert entry(tmp_path, imported()).read(imported(), DECIDING) is None


def test_another_machine_under_the_same_name_is_another_entry(tmp_path: Path) -> None:
    machine = tmp_path / "own.toml"
    paths = set()
    for bandwidth in ("1e9", "2e9"):
        machine.write_text(MACHINE.format(bandwidth))
        paths.add(entry(tmp_path, imported(), Pipeline(topology=str(machine)).through("propagate")).path)
    assert len(paths) == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("aten.relu(", "aten.neg(", r":12:3: error: found `%relu = aten.neg.*` where the model has `.*aten.relu"),
        (
            "aten.linear(%relu, %2, %3",
            "aten.linear(%relu, %2, %1",
            r":13:3: error: 'aten.linear' takes other operands than in the model",
        ),
        ('"2.bias"', '"bias"', r":6:1: error: argument 3 differs in name or kind from the model"),
        (
            "@mesh <dp = 2, tp = 2",
            "@mesh <dp = 2, tp = 4",
            r":4:1: error: the program is for the mesh <dp = 2, tp = 4>; expected",
        ),
        (
            "  return",
            "  %x = aten.neg(%relu) : tensor<4x8xf32> <dp: S(0), tp: S(1)>\n  return",
            ":14:3: error: found `%x = aten.neg",
        ),
        ("  %relu =", "  %relu", ":12:9: error: expected '=' after"),
        ("  %relu =", "  % =", ":12:3: error: expected a name after '%'"),
        (
            "tensor<4x8xf32> <dp: S(0), tp: S(1)>",
            "tensor<4x8xf32> <dp: S(1)>",
            r":11:3: error: 'aten.linear': on axis 'dp'",
        ),
        (
            "sharding<@mesh>}) attr",
            "sharding<@mesh, dp: S(0)>}) attr",
            r"result 0 has the sharding <dp: S\(0\)>; expected",
        ),
    ],
)
def test_a_file_that_is_damaged_or_of_another_program_is_an_error_in_its_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    found, _ = written(tmp_path)
    text = found.path.read_text()
    assert old in text
    found.path.write_text(text.replace(old, new, 1))
    with pytest.raises(spmdir.SpmdirError, match=message) as raised:
        found.read(imported(), DECIDING)
    assert str(raised.value).startswith(str(found.path))
    assert raised.value.message.endswith("correct the file, or delete it to have the program decided again")


def test_a_sharding_that_nobody_gave_may_be_edited(tmp_path: Path) -> None:
    module = imported(plan={})
    found = entry(tmp_path, module)
    found.write(run_passes(module, DECIDING))
    text = found.path.read_text()
    for line, sharded in EDITS.items():
        assert line in text
        text = text.replace(line, sharded)
    found.path.write_text(text)
    read = found.read(imported(plan={}), DECIDING)
    assert read is not None and all(line in ir.print_ir(read) for line in EDITS.values())


def test_a_result_that_is_like_an_argument_is_laid_out_as_it_in_a_file_too(tmp_path: Path) -> None:
    module = spmdir.import_fx(PROGRAMS[False], MESH, {}, out_shardings=["like:input"])
    found = entry(tmp_path, module)
    found.write(run_passes(module, DECIDING))
    again = spmdir.import_fx(PROGRAMS[False], MESH, {}, out_shardings=["like:input"])
    assert found.read(again, DECIDING) is not None
    text = found.path.read_text()
    assert "dp: S(0), tp: S(0)>}) attr" in text
    found.path.write_text(text.replace("dp: S(0), tp: S(0)>}) attr", "dp: S(0)>}) attr"))
    with pytest.raises(spmdir.SpmdirError, match="result 0 and 'input' have different shardings"):
        found.read(again, DECIDING)


def test_who_reads_while_others_write_finds_a_whole_program(tmp_path: Path) -> None:
    found, decided = written(tmp_path)
    writers = [Thread(target=lambda: [found.write(decided) for _ in range(20)]) for _ in range(2)]
    whole = found.path.read_text()
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert found.path.read_text() == whole
    assert [path.name for path in tmp_path.iterdir()] == [found.path.name]


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    module = imported()
    with pytest.raises(spmdir.SpmdirError, match=r"cannot make the directory '.*file/programs'"):
        entry(tmp_path / "file" / "programs", module).write(module)


def test_a_name_that_is_too_long_for_a_directory_is_an_error(tmp_path: Path) -> None:
    module = imported()
    kept = entry(tmp_path / ("a" * 5000), module)
    assert kept.read(module, DECIDING) is None
    with pytest.raises(spmdir.SpmdirError, match="cannot make the directory"):
        kept.write(module)
