"""The part of a program that is at some places, as a program of its own."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation

from spmdir.dialects import ir
from spmdir.dialects.locations import places_of
from spmdir.dialects.names import text_name
from spmdir.dialects.value_op import ValueOp
from spmdir.explanation.places import is_at, nothing_there
from spmdir.pipeline.finish import inline_layers, resolve_names
from spmdir.transforms.layers.outline import function_of
from spmdir.transforms.layers.segments import Segment


def excerpt(module: ModuleOp, at: Sequence[str]) -> ModuleOp:
    """Return the ops that are at any of some places, in a function `@only` that takes and gives what goes across.

    Args:
        at: names of values, lines, paths of modules or globs, as `is_at` takes them; the name of an argument stands
            for the ops that take it.

    Raises:
        SpmdirError: there is nothing at one of them.
    """
    whole = inline_layers(module)
    function = ir.main_function(whole)
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    named = {op: _names(op) for op in ops}
    known = {name for names in named.values() for name in names}
    at = list(resolve_names(module, at, known).values())
    for one in at:
        if not any(_is_at(op, named[op], one) for op in ops):
            raise nothing_there(one, {name: places_of(op.location) for op, names in named.items() for name in names})
    found = [op for op in ops if any(_is_at(op, named[op], one) for one in at)]
    segment = Segment(found, (), None)
    declared = [op.clone() for op in whole.body.block.ops if not isinstance(op, FuncOp)]
    return ModuleOp([*declared, function_of(segment, list(segment.outputs()), "only", function)])


def _names(op: Operation) -> list[str]:
    taken = (operand for operand in op.operands if isinstance(operand, BlockArgument))
    return [text_name(value) for value in (*op.results, *taken)]


def _is_at(op: Operation, names: Sequence[str], text: str) -> bool:
    """Return whether an op is at a place; what is below a module, as `h.3.*`, has what stands in the module too."""
    places = places_of(op.location)
    return any(is_at(places, names, one) for one in dict.fromkeys((text, text.removesuffix(".*"))))
