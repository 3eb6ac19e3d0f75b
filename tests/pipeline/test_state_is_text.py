"""A program at any stage is its text: read back, cloned or pickled, it goes on to the same program as the original."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.errors import SpmdirError
from spmdir.core.input_parts import parts_of
from spmdir.dialects import ir
from spmdir.dialects.size_ops import open_sizes
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.pipeline.remaining_passes import bind_sizes
from spmdir.tools.golden import read_golden

GOLDEN = Path(__file__).parents[1] / "golden"

PIPELINE = Pipeline(
    "inline,propagate{memory=none},expand,insert-reshard,lower-reshard,fuse-collectives,localize,bucket,split-async,reorder"
)

COPIES: dict[str, Callable[[ModuleOp], ModuleOp]] = {
    "read": lambda module: ir.parse(ir.print_ir(module)),
    "cloned": lambda module: module.clone(),
    "pickled": lambda module: pickle.loads(pickle.dumps(module)),
}


def programs(folder: str) -> list[str]:
    """Return the programs of the golden files in a folder that need no plug-in."""
    sources = []
    for path in sorted((GOLDEN / folder).glob("*.mlir")):
        text = path.read_text()
        if not re.search(r"^// RUN:.*(not |plugin|--costs|--verify-diagnostics)", text, re.MULTILINE):
            sources += [part for source in read_golden(text, str(path)).sources for _, part in parts_of(source)]
    return sources


def texts_of_stages(module: ModuleOp) -> list[str]:
    """Run PIPELINE on a module, and return its text after each pass that accepts it."""
    texts = []
    for number, step in enumerate(PIPELINE.steps):
        try:
            run_passes(module, PIPELINE.with_steps((step,)))
        except SpmdirError:
            break
        texts.append(f"{number}: {ir.print_ir(module)}")
    return texts


@pytest.mark.filterwarnings("ignore::spmdir.core.errors.SpmdirWarning")
@pytest.mark.parametrize("folder", ["propagate", "expand", "insert-reshard", "placements"])
def test_a_copy_of_a_program_at_any_stage_goes_on_as_the_program_does(folder: str) -> None:
    passes_run = 0
    for source in programs(folder)[::2]:
        module = ir.parse(source)
        if sizes := open_sizes(module).hints:
            module = bind_sizes(module, sizes, PIPELINE)
        expected = texts_of_stages(module.clone())
        passes_run += len(expected)
        for name, copied in COPIES.items():
            other = copied(module)
            for number, step in enumerate(PIPELINE.steps[: len(expected)]):
                run_passes(other, PIPELINE.with_steps((step,)))
                other = copied(other)
                assert f"{number}: {ir.print_ir(other)}" == expected[number], name
    assert passes_run >= 10


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("expand", "propagate{memory=none}"),
        ("fuse-collectives", "propagate{memory=none},insert-reshard,lower-reshard"),
        ("split-matmul", "propagate{memory=none},insert-reshard,lower-reshard,fuse-collectives"),
        ("fit-memory", "propagate{memory=none},insert-reshard,lower-reshard,localize"),
    ],
)
@pytest.mark.filterwarnings("ignore::spmdir.core.errors.SpmdirWarning")
def test_a_shipped_pass_that_keeps_the_stage_changes_nothing_when_it_runs_again(name: str, before: str) -> None:
    for source in [*programs("propagate")[::2], *programs(name if (GOLDEN / name).is_dir() else "expand")]:
        try:
            module = run_passes(ir.parse(source), f"{before},{name}")
        except SpmdirError:
            continue
        once = ir.print_ir(module)
        assert ir.print_ir(run_passes(module, name)) == once
