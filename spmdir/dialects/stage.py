"""The stage of a function: its progress in a pipeline, recorded in the attribute `spmd.stage`.

    func.func @main(...) -> (...) attributes {spmd.stage = "lowered"} {

| stage | contents of the function |
|---|---|
| `imported` | values may have no sharding, or one with an open axis; calls of other functions |
| `decided` | every value has a sharding; ops may require other shardings of their operands; constraints remain |
| `resharded` | `spmd.reshard` ops convert the operands to the required shardings |
| `lowered` | collectives replace reshards |
| `local` | the types are those of one rank |
| `scheduled` | collectives are bucketed, asynchronous and in the order of a schedule |

Passes write the attribute. A program written by hand may omit it before `local`; `stage_inference.py` then infers it.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import ArrayAttr, StringAttr

STAGE = "spmd.stage"
"""The attribute of a function with its stage."""

STAGES = ("imported", "decided", "resharded", "lowered", "local", "scheduled")
"""The stages, in the order of a pipeline."""

PASSES_RUN = "spmd.passes"
"""The attribute of a function with the names of the plug-in passes that have run since it was decided.

The passes of spmdir are idempotent. A plug-in pass may not be, so a continued pipeline leaves it out."""

_LOCAL = {StringAttr(stage) for stage in STAGES[STAGES.index("local") :]}


def recorded_stage(function: Any) -> str | None:
    """Return the `spmd.stage` of `function`; None without the attribute."""
    attribute = function.attributes.get(STAGE)
    return attribute.data if isinstance(attribute, StringAttr) and attribute.data in STAGES else None


def write_stage(function: Any, stage: str) -> None:
    """Set the attribute of `function` to one of STAGES."""
    function.attributes[STAGE] = StringAttr(stage)


def recorded_passes(function: Any) -> tuple[str, ...]:
    """Return the names of the passes recorded on `function`, in the order in which they ran."""
    attribute = function.attributes.get(PASSES_RUN)
    entries = attribute.data if isinstance(attribute, ArrayAttr) else ()
    return tuple(entry.data for entry in entries if isinstance(entry, StringAttr))


def record_pass(function: Any, name: str) -> None:
    """Add the name of a pass to those recorded on `function`."""
    function.attributes[PASSES_RUN] = ArrayAttr(map(StringAttr, (*recorded_passes(function), name)))


def is_local(function: Any) -> bool:
    """Return whether the types of `function` are local, as they are after localize."""
    return function is not None and function.attributes.get(STAGE) in _LOCAL


def is_at_least(stage: str, earliest: str) -> bool:
    """Return whether `stage` is `earliest`, or a later stage of a pipeline."""
    return STAGES.index(stage) >= STAGES.index(earliest)
