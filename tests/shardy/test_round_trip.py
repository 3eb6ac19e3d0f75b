"""Every golden program that `sdy` can represent is the same after it was exported and imported."""

from __future__ import annotations

from pathlib import Path

import pytest

import spmdir
from benchmarks.peers import propagate_by_shardy
from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir
from spmdir.rules.rule_set import default
from spmdir.shardy.export_sdy import RECORDS, export_sdy
from spmdir.shardy.import_sdy import import_sdy

GOLDEN = Path(__file__).parents[1] / "golden"

LEAST = {"propagate": 60, "print-rules": 2, "dialects": 7, "insert-reshard": 5}
"""Folder → the number of programs that are translated, at least: imported and, if possible, with reshards."""


def programs(folder: str) -> list[tuple[str, str]]:
    """Return (file, text of a program) of the goldens in a folder: as it is, and with reshards."""
    texts: list[tuple[str, str]] = []
    for file in sorted((GOLDEN / folder).glob("*.mlir")):
        for part in file.read_text().split("// -----"):
            try:
                module = ir.parse(part, file.name)
                texts.append((file.name, ir.print_ir(module)))
                texts.append((file.name, ir.print_ir(spmdir.run_passes(module, "propagate,insert-reshard"))))
            except SpmdirError:
                continue
    return texts


def without_records(text: str) -> str:
    """Return the text without attributes that the export omits, and without names of absent results."""
    module = ir.parse(text)
    for op in module.walk():
        for name in RECORDS:
            op.attributes.pop(name, None)
        for result in op.results:
            if str(result.type) == "none":
                result.name_hint = None
    return ir.print_ir(module)


@pytest.mark.filterwarnings("ignore:.*has no rule:spmdir.core.errors.SpmdirWarning")
@pytest.mark.parametrize("folder", LEAST)
def test_a_golden_program_is_the_same_after_export_and_import(folder: str) -> None:
    count = 0
    for file, text in programs(folder):
        try:
            exported = export_sdy(ir.parse(text, file), default())
        except SpmdirError:
            continue
        assert ir.print_ir(import_sdy(exported, file)) == without_records(text), file
        count += 1
    assert count >= LEAST[folder]


def test_shardy_propagates_through_an_exported_program() -> None:
    pytest.importorskip("jaxlib")
    text = (GOLDEN.parents[1] / "examples" / "mlp.mlir").read_text()
    propagated = ir.print_ir(import_sdy(propagate_by_shardy(export_sdy(ir.parse(text), default()))))
    assert "%0 = aten.mm(%x, %w1) : tensor<16x4096xf32> <dp: S(0), tp: S(1)>" in propagated
    assert "aten.mm(%1, %w2) : tensor<16x1024xf32> <dp: S(0)>" in propagated
