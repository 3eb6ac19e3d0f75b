"""The options of propagate, kept with a program of symbolic sizes: bind-sizes may have to decide again by them."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from spmdir.core.errors import ParseError
from spmdir.dialects.syntax.context import location_of
from spmdir.passes.options import changed_options
from spmdir.passes.pipeline import Pipeline, Step, parse_steps

NOTE = "spmd.decided_by"
"""The attribute of a function that holds the step of the pipeline that decided it, if that had options."""


def note_options(function: FuncOp, decided_by: ModulePass) -> None:
    """Note on `function` the pass that decided it, as text; nothing if all of its options have their defaults."""
    function.attributes.pop(NOTE, None)
    if options := changed_options(decided_by):
        function.attributes[NOTE] = StringAttr(str(Step(decided_by.name, options)))


def taken_note(function: FuncOp, pipeline: Pipeline) -> ModulePass:
    """Return the pass that decided `function`, as noted, else propagate with its defaults; the note is removed.

    Args:
        pipeline: whose passes and topologies the note speaks of.

    Raises:
        ParseError: the note is not the text of a step of propagate; located.
    """
    note = function.attributes.pop(NOTE, StringAttr("propagate"))
    try:
        steps = pipeline.with_steps(parse_steps(note.data)).made() if isinstance(note, StringAttr) else []
    except ParseError as error:
        raise ParseError(f"{NOTE}: {error.message}", location_of(function)) from None
    if [step.name for step in steps] != ["propagate"]:
        raise ParseError(f"{NOTE} is {note}; expected the text of propagate and its options", location_of(function))
    return steps[0]
