"""Decide a program once, on the first rank, or read it from a file; the other ranks get its text."""

from __future__ import annotations

import os

from xdsl.dialects.builtin import ModuleOp

from spmdir.core.progress import say
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.runtime.agreement import RankGroup
from spmdir.runtime.program_cache import CacheEntry


def decide_once(
    imported: ModuleOp, pipeline: Pipeline, ranks: RankGroup, cache: str | os.PathLike[str] | None, name: str
) -> ModuleOp:
    """Return the decided form of a module that all ranks have imported. The module itself is consumed.

    The first rank reads it from the directory `cache`. If there is no entry, it runs the passes through `propagate`,
    and writes an entry for the model `name`. All ranks parse the same text, so names of values are equal.

    Raises:
        SpmdirError: on all ranks: a pass rejects the module; the file is damaged, edited wrongly, or cannot be written;
            or a rank does not arrive within the timeout of the process group.
    """

    def decide_on_first() -> str:
        """Decide the module, and return it as text with locations."""
        return ir.print_ir(decide(imported, pipeline, cache, name), debuginfo=True)

    text = ranks.broadcast_text("the decision of the first rank", decide_on_first)
    return ir.read_printed(text)


def decide(imported: ModuleOp, pipeline: Pipeline, cache: str | os.PathLike[str] | None, name: str) -> ModuleOp:
    """Return the decided form of a module: from the directory `cache` if it has an entry, else decide and add one.

    Raises:
        SpmdirError: a pass rejects the module, or the file is damaged, edited wrongly, or cannot be written.
    """
    deciding = pipeline.through("propagate")
    entry = None if cache is None else CacheEntry.of(cache, name, imported, deciding)
    cached = entry.read(imported, deciding) if entry else None
    if cached is not None:
        return cached
    say("deciding shardings")
    decided = run_passes(imported, deciding)
    if entry:
        entry.write(decided)
    return decided
