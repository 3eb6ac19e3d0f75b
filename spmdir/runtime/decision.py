"""The decided program: made once, on the first rank, or read from a file; the others get its text."""

from __future__ import annotations

import os

from xdsl.dialects.builtin import UNKNOWN_LOC, FileLineColLoc, ModuleOp

from spmdir.core.progress import say
from spmdir.dialects import ir
from spmdir.passes.executed import note_all
from spmdir.passes.pipeline import Pipeline, run_passes
from spmdir.passes.propagation.objective import copy_notes
from spmdir.runtime.agreement import RankGroup
from spmdir.runtime.program_cache import CacheEntry

_TEXT = "the program of the first rank"


def decided_once(
    imported: ModuleOp, pipeline: Pipeline, ranks: RankGroup, cache: str | os.PathLike[str] | None, name: str
) -> ModuleOp:
    """Return the decided form of a module that all ranks have imported alike, and which is not used any more.

    The first rank takes it from the directory `cache`, or runs the passes through `propagate` and keeps the result
    there, as the program of the model `name`. All ranks read its text, so that they name values alike.

    Raises:
        SpmdirError: on all ranks, what the first one raised: a pass rejects the module, or the file is damaged, edited
            wrongly, or cannot be written; or if a rank does not come within the timeout of the process group.
    """
    found: list[ModuleOp] = []

    def first() -> str:
        found.append(decide(imported, pipeline, cache, name))
        return ir.print_ir(found[0], debuginfo=True)

    text = ranks.from_first("the decision of the first rank", first)
    return read_decided(text, pipeline, *found)


def decide(imported: ModuleOp, pipeline: Pipeline, cache: str | os.PathLike[str] | None, name: str) -> ModuleOp:
    """Return the decided form of a module, from the directory `cache` if it is there; else it is kept there.

    Raises:
        SpmdirError: a pass rejects the module, or the file is damaged, edited wrongly, or cannot be written.
    """
    deciding = pipeline.through("propagate")
    entry = None if cache is None else CacheEntry.of(cache, name, imported, deciding)
    kept = entry.read(imported, deciding) if entry else None
    if kept is not None:
        return kept
    say("deciding shardings")
    decided = run_passes(imported, deciding)
    if entry:
        entry.write(decided)
    return decided


def read_decided(text: str, pipeline: Pipeline, *decided: ModuleOp) -> ModuleOp:
    """Return the module that the text of a decided one spells, with the passes of `pipeline` that have run noted.

    Args:
        decided: the module that was printed, on the rank that has it, which alone has notes for reports.
    """
    module = read_text(text)
    note_all(module, tuple(step.name for step in pipeline.through("propagate").steps))
    for known in decided:
        for old, new in zip(ir.functions(known), ir.functions(module), strict=True):
            copy_notes(old, new)
    return module


def read_text(text: str) -> ModuleOp:
    """Return the program of a text that was printed in this job; what has no place in the model's source has none."""
    module = ir.parse(text, _TEXT, verify_module=False)
    for op in module.walk():
        if isinstance(op.location, FileLineColLoc) and op.location.filename.data == _TEXT:
            op.location = UNKNOWN_LOC
    return module
