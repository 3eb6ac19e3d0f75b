"""Parse symbolic sizes, and conditions between them."""

from __future__ import annotations

import ast
import re
import warnings

from spmdir.core.errors import SpmdirError
from spmdir.core.limits import OPERATORS
from spmdir.core.symbolic.conditions import Condition, condition
from spmdir.core.symbolic.expressions import Number, apply, symbol

_OPERATOR = re.compile(r"[-+*/%(]")
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.Div: "truediv",
    ast.Pow: "pow",
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.LtE: "<=", ast.Lt: "<", ast.GtE: ">=", ast.Gt: ">"
}  # fmt: skip


def parse_number(text: str) -> Number:
    """Parse a number, such as `2*s0 + 1`.

    Raises:
        SpmdirError: the text is malformed.
    """
    return _read(_tree(text), text)


def _tree(text: str) -> ast.expr:
    """Parse `text` as an expression of Python; raise SpmdirError if it is none, or has too many operators."""
    OPERATORS.check(len(_OPERATOR.findall(text)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # `8or` is reported as an error below
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpmdirError(f"'{text.strip()}' is not a size; expected an expression such as 2*s0 + 1") from None


def _read(tree: ast.expr, text: str) -> Number:
    """Convert an expression of Python to a number or size.

    It may contain numbers, names, `-`, binary operators, and calls of the functions of sizes.

    Args:
        text: the whole expression, for errors.

    Raises:
        SpmdirError: it contains something else.
    """
    if isinstance(tree, ast.Constant) and type(tree.value) in (int, float):
        return tree.value  # type: ignore
    if isinstance(tree, ast.Name):
        return symbol(tree.id)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return apply("neg", _read(tree.operand, text))
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        return apply(_OPERATORS[type(tree.op)], _read(tree.left, text), _read(tree.right, text))
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords:
        return apply(tree.func.id, *(_read(argument, text) for argument in tree.args))
    raise SpmdirError(f"'{text.strip()}' is not a size; expected an expression such as 2*s0 + 1")


def parse_condition(text: str) -> Condition:
    """Parse a condition, such as `s0 % 4 == 0`.

    Raises:
        SpmdirError: the text is malformed.
    """
    tree = _tree(text)
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1 or type(tree.ops[0]) not in _COMPARISONS:
        raise SpmdirError(f"'{text.strip()}' is not a condition on sizes; expected a comparison, as in s0 % 4 == 0")
    relation = _COMPARISONS[type(tree.ops[0])]
    return condition(_read(tree.left, text), relation, _read(tree.comparators[0], text))
