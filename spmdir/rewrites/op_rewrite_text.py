"""Rewrites of torch ops in a program on one device, as text: the pattern and the replacement are statements of ops.

    gather-rows:
        order, counts, arrivals = experts.route(ids, experts=experts)
        rows = aten.index.Tensor(x, [aten.floor_divide(order, other=k)])
      becomes
        rows = experts.sort_rows(aten.expand(aten.unsqueeze(x, dim=1), size=[first(x), k, last(x)]), order)
      when k == last(ids)

The last statement of a pattern is its root. The others are ops that the root uses, or the first ops of the block with
the values that the root and its operands have bound. A name stands for a value or a literal, the same one wherever it
occurs. Values that both sides assign are replaced. The ops of the pattern remain if they have other users.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from spmdir.core.dtype import DTYPES
from spmdir.core.errors import Location, ParseError, did_you_mean
from spmdir.core.parse_cache import ParsedTexts
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.parser import parse_condition, parse_statements
from spmdir.rules.language.syntax_tree import (
    Binary,
    Constant,
    Expression,
    Function,
    Name,
    OpCall,
    Sequence,
    Statement,
)

_HEAD = re.compile(r"([a-z][a-z0-9-]*):\s*$")
_BECOMES = "becomes"
_WHEN = "when "

FUNCTIONS: dict[str, Callable[[TensorMeta, int], Any]] = {
    "rank": lambda meta, users: meta.rank,
    "first": lambda meta, users: meta.shape[0] if meta.shape else 1,
    "last": lambda meta, users: meta.shape[-1] if meta.shape else 1,
    "elements": lambda meta, users: meta.numel,
    "dtype": lambda meta, users: meta.dtype,
    "itemsize": lambda meta, users: meta.dtype.itemsize,
    "integral": lambda meta, users: not meta.dtype.is_inexact,
    "users": lambda meta, users: users,
}
"""Function of a tensor in a condition or an argument → its value from the type and the number of users of the tensor.
"""


@attrs.frozen
class OpRewrite:
    """One rewrite.

    Attributes:
        name: its name.
        pattern: the statements that must match; the last one is the root.
        replacement: the statements that replace them.
        conditions: expressions that must hold.
        location: the line of its name.
    """

    name: str
    pattern: tuple[Statement, ...]
    replacement: tuple[Statement, ...]
    conditions: tuple[Expression, ...]
    location: Location

    @property
    def root(self) -> OpCall:
        """Return the call of the last statement of the pattern."""
        return call_of(self.pattern[-1])

    @property
    def replaced(self) -> tuple[str, ...]:
        """Return the names of the replaced values: those that both sides assign."""
        assigned = {target for statement in self.pattern for target in statement.targets}
        return tuple(t for statement in self.replacement for t in statement.targets if t in assigned)


def call_of(statement: Statement) -> OpCall:
    """Return the call whose results a statement of a rewrite assigns."""
    (value,) = statement.values
    assert isinstance(value, OpCall)  # `_parse_rewrite` has checked it
    return value


def parse_op_rewrites(text: str, file: str) -> tuple[OpRewrite, ...]:
    """Parse a file of rewrites of ops.

    Raises:
        ParseError: the text is malformed; located.
    """
    heads: list[tuple[int, str]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if match := _HEAD.match(line):
            heads.append((number, match[1]))
        elif not heads and line.strip() and not line.startswith("#"):
            raise ParseError(f"found '{line.strip()}', expected the name of a rewrite, such as `gather-rows:`",
                             Location(file, number, 1))  # fmt: skip
    ends = [number for number, _ in heads[1:]] + [len(lines) + 1]
    return tuple(
        _parse_rewrite(name, lines[number : end - 1], Location(file, number, 1))
        for (number, name), end in zip(heads, ends, strict=True)
    )


def _parse_rewrite(name: str, lines: list[str], location: Location) -> OpRewrite:
    """Parse one rewrite: the statements of its pattern, `becomes`, those of its replacement, then `when` lines.

    Args:
        lines: the lines after that of the name, which is at `location`.

    Raises:
        ParseError: the text is malformed; located.
    """
    words = [line.strip() for line in lines]
    if words.count(_BECOMES) != 1:
        raise ParseError(f"rewrite '{name}' has {words.count(_BECOMES)} lines `becomes`; expected one", location)
    middle = words.index(_BECOMES)
    first_condition = next((line_index for line_index, word in enumerate(words) if word.startswith(_WHEN)), len(words))
    file, first_line = location.file, location.line + 1
    pattern = parse_statements("\n".join(lines[:middle]) + "\n", file, first_line)
    replacement = parse_statements("\n".join(lines[middle + 1 : first_condition]) + "\n", file, first_line + middle + 1)
    conditions = [
        parse_condition(word.removeprefix(_WHEN), file, first_line + number, lines[number].find(word) + len(_WHEN))
        for number, word in enumerate(words)
        if number >= first_condition and word and not word.startswith("#")
    ]
    for statement in (*pattern, *replacement):
        if len(statement.values) != 1 or not isinstance(statement.values[0], OpCall) or not statement.targets:
            raise ParseError(
                f"rewrite '{name}': expected a call of an op, as in `y = aten.relu(x)`", statement.location
            )
    rewrite = OpRewrite(name, pattern, replacement, tuple(conditions), location)
    _check_names(rewrite)
    return rewrite


def _check_names(rewrite: OpRewrite) -> None:
    """Raise a located ParseError if a condition or the replacement uses a name or a function that does not exist."""
    names = {name for statement in rewrite.pattern for name in (*statement.targets, *_names_in(call_of(statement)))}
    for condition in rewrite.conditions:
        _check_expression(condition, rewrite, names)
    for statement in rewrite.replacement:
        _check_expression(call_of(statement), rewrite, names)
        names.update(statement.targets)


def _check_expression(expression: Expression, rewrite: OpRewrite, names: set[str]) -> None:
    """Raise a located ParseError if an expression contains an unknown name, or calls an unknown function.

    Args:
        names: the names of the pattern of `rewrite`.
    """
    location = getattr(expression, "location", None) or rewrite.location
    for name in _names_in(expression):
        if name not in names and name not in DTYPES:
            raise ParseError(
                f"rewrite '{rewrite.name}' uses the name '{name}'; expected one of its pattern: "
                f"{', '.join(sorted(names))}{did_you_mean(name, names)}",
                location,
            )
    for function in _functions_in(expression):
        if function.name not in FUNCTIONS or len(function.arguments) != 1:
            raise ParseError(
                f"rewrite '{rewrite.name}' calls {function.name}({', '.join(function.arguments)}); expected one of "
                f"{', '.join(FUNCTIONS)}, of one tensor{did_you_mean(function.name, FUNCTIONS)}",
                location,
            )


def _parts(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all expressions inside it."""
    yield expression
    inside: Iterable[Expression] = ()
    if isinstance(expression, OpCall):
        inside = [argument for _, argument in expression.arguments]
    elif isinstance(expression, Sequence):
        inside = expression.items
    elif isinstance(expression, Binary):
        inside = (expression.left, expression.right)
    for part in inside:
        yield from _parts(part)


def _functions_in(expression: Expression) -> Iterator[Function]:
    return (part for part in _parts(expression) if isinstance(part, Function))


def _names_in(expression: Expression) -> Iterator[str]:
    """Yield the names of values and literals in an expression."""
    for part in _parts(expression):
        if isinstance(part, Name):
            yield part.name
        elif isinstance(part, Function):
            yield from part.arguments


EXPERTS = Path(__file__).with_name("experts.op_rewrites")
"""The shipped rewrites of a mixture of experts."""

PARSED = ParsedTexts(
    EXPERTS.with_suffix(".parsed"), (OpRewrite, Statement, OpCall, Name, Constant, Function, Binary, Sequence)
)
"""The parsed form of the shipped rewrites; `make parsed-texts` writes it."""


def load_op_rewrites(path: Path) -> tuple[OpRewrite, ...]:
    """Return the rewrites in the file at `path`."""
    text = path.read_text(encoding="utf-8")
    parsed = PARSED.find(text, path.name)
    return parse_op_rewrites(text, path.name) if parsed is None else parsed
