"""Extract selected ops of a program into a smaller program."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation

from spmdir.dialects import ir
from spmdir.dialects.locations import places_of
from spmdir.dialects.names import text_name
from spmdir.dialects.value_op import ValueOp
from spmdir.explanation.selectors import matches, no_match_error
from spmdir.pipeline.remaining_passes import inline_layers, resolve_names
from spmdir.transforms.layers.outline import function_of
from spmdir.transforms.layers.segments import Segment


def excerpt(module: ModuleOp, selectors: Sequence[str]) -> ModuleOp:
    """Return a module whose function `@only` contains the selected ops.

    The arguments of `@only` are the values that these ops read from other ops. Its results are the values of these ops
    that other ops read.

    Args:
        selectors: names of values, lines, module paths or globs; see `matches`. The name of an argument selects the
            ops that use it.

    Raises:
        SpmdirError: no op matches one of the selectors.
    """
    whole = inline_layers(module)
    function = ir.main_function(whole)
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    names_of = {op: _names(op) for op in ops}
    all_names = {name for names in names_of.values() for name in names}
    selectors = list(resolve_names(module, selectors, all_names).values())
    for selector in selectors:
        if not any(_matches_op(op, names_of[op], selector) for op in ops):
            places = {name: places_of(op.location) for op, names in names_of.items() for name in names}
            raise no_match_error(selector, places)
    selected = [op for op in ops if any(_matches_op(op, names_of[op], selector) for selector in selectors)]
    segment = Segment(selected, (), None)  # only its ops are used, not its form and layer
    declared = [op.clone() for op in whole.body.block.ops if not isinstance(op, FuncOp)]
    return ModuleOp([*declared, function_of(segment, list(segment.outputs()), "only", function)])


def _names(op: Operation) -> list[str]:
    """Return the names of the results of an op and of the arguments of the function that it uses."""
    arguments = (operand for operand in op.operands if isinstance(operand, BlockArgument))
    return [text_name(value) for value in (*op.results, *arguments)]


def _matches_op(op: Operation, names: Sequence[str], selector: str) -> bool:
    """Return whether a selector matches an op. `h.3.*` selects the ops of `h.3` itself too."""
    places = places_of(op.location)
    return matches(places, names, selector) or matches(places, names, selector.removesuffix(".*"))
