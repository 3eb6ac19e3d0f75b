"""Print the text of a tensor op after its name: operands, arguments, types and shardings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from xdsl.ir import Attribute, SSAValue
from xdsl.printer import Printer

from spmdir.core.placement.call import Literal, Structure
from spmdir.core.placement.literals import print_arguments, print_literal
from spmdir.dialects.attributes import (
    ArgumentsAttr,
    ShapesAttr,
    ShardingsAttr,
    print_type,
)


@lru_cache(maxsize=65536)
def print_tail(
    clauses: tuple[tuple[str, str], ...],
    arguments: ArgumentsAttr | None,
    sharding: ShardingsAttr | None,
    needs: ShardingsAttr | None,
    of: ShapesAttr | None,
    types: tuple[Attribute, ...],
) -> str:
    """Return the text of an op after its operands. Memoised, because layers of a model repeat such texts.

    Args:
        clauses: (keyword, argument) pairs. These arguments are printed as clauses, and all others in braces.
        types: the types of the results.
    """
    literals = dict(arguments.data) if arguments else {}
    text = ""
    for keyword, name in clauses:
        if name in literals:
            value = literals.pop(name)
            text += f" {keyword}" if value is True else f" {keyword} {_print_clause(value)}"
    if literals:
        text += " " + print_arguments(sorted(literals.items()))
    shardings = sharding.data if sharding else (None,) * len(types)
    text += " : " + ", ".join(
        print_type(type_) + ("" if result_sharding is None else f" <{result_sharding}>")
        for type_, result_sharding in zip(types, shardings, strict=True)
    )
    if needs:
        text += f" needs ({', '.join('_' if need is None else f'<{need}>' for need in needs.data)})"
    if of:
        text += " of " + ", ".join(map(print_literal, of.data))
    return text


def _print_clause(value: Literal) -> str:
    """Return the value of a clause as text: a list of axes as `[dp, tp]`, a name without quotes."""
    if isinstance(value, tuple) and all(isinstance(entry, str) for entry in value):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, str) and value.isidentifier():
        return value
    return print_literal(value)


def print_operands(printer: Printer, values: Any, structure: Structure) -> None:
    """Print the operands as `%x, [%y, none]`.

    Args:
        values: an iterator over the operands.
    """
    for index, entry in enumerate(structure):
        if index:
            printer.print_string(", ")
        if isinstance(entry, tuple):
            printer.print_string("[")
            print_operands(printer, values, entry)
            printer.print_string("]")
        elif entry:
            printer.print_ssa_value(next(values))
        else:
            printer.print_string("none")


def print_with_sizes(printer: Printer, text: str, sizes: Sequence[SSAValue]) -> None:
    """Print `text` with the references to size operands, such as `%0`, replaced by the names of `sizes`."""
    position = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|%([0-9]+)', text):
        if match[1] is not None:
            printer.print_string(text[position : match.start()])
            printer.print_ssa_value(sizes[int(match[1])])
            position = match.end()
    printer.print_string(text[position:])
