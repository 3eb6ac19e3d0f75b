"""Propagation again of what was propagated decides nothing anew."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from spmdir.core.errors import SpmdirWarning
from spmdir.dialects import ir
from spmdir.passes.pipeline import run_passes
from spmdir.tools.golden import read_golden

GOLDEN = Path(__file__).parents[1] / "golden" / "propagate"
PROGRAMS = [
    pytest.param(part, id=f"{path.stem}-{number}")
    for path in sorted(GOLDEN.glob("*.mlir"))
    if "--verify-diagnostics" not in path.read_text()
    for number, part in enumerate(read_golden(path.read_text(), str(path)).sources)
]


@pytest.mark.parametrize("text", PROGRAMS)
def test_propagating_twice_gives_the_text_of_propagating_once(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpmdirWarning)
        once = ir.print_ir(run_passes(ir.parse(text), "propagate"))
        assert ir.print_ir(run_passes(ir.parse(once), "propagate")) == once


@pytest.mark.parametrize("text", PROGRAMS)
def test_what_propagate_needs_is_what_insert_reshard_gives(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpmdirWarning)
        module = run_passes(
            ir.parse(text), "propagate,bind-sizes{examples},verify-spmd{before-reshard},insert-reshard,verify-spmd"
        )
    assert " needs (" not in ir.print_ir(module)
