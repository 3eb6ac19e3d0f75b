"""The text of an exported program, JSON, before torch reads it: every string in it is of a known, harmless form.

torch hands some of these strings to `eval` (expressions of sizes), looks some up in its modules (targets), imports
some (trees of inputs) and writes some into Python that it executes (names). So a string is a name unless its key says
otherwise, and each key that does has its grammar here.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from spmdir.core.errors import SpmdirError
from spmdir.core.limits import NESTING
from spmdir.importer.pt2_trees import PLAIN_TREES
from spmdir.torch_interop.schemas import resolve

_NAME = re.compile(r"[\w.+/:-]{0,1000}")
_FREE = frozenset(
    {"as_string", "as_strings", "stack_trace", "nn_module_stack", "torch_fn", "custom", "from_node", "guards_code"}
)
"""Keys of text that stays text: torch writes it with quotes or reads JSON from it. Guards are dropped after loading."""
_CODE = frozenset({"as_custom_obj", "custom_obj_values", "custom_obj"})
"""Keys of objects that are made by code of their class."""

_TARGET = re.compile(
    r"torch\.ops\.higher_order\.(wrap_with_set_grad_enabled|wrap_with_autocast|tag_activation_checkpoint|with_effects"
    r"|cond|while_loop|scan|map_impl|associative_scan|invoke_subgraph|flex_attention)"
    r"|_operator\.(eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|pow|truediv|and_|or_|lshift|rshift|getitem)"
    r"|math\.(trunc|ceil|floor|sqrt)"
    r"|torch\.sym_(not|int|float|ite|max|min|sqrt|sum)"
    r"|torch\._functorch\.predispatch\.(_add_batch_dim|_remove_batch_dim|_vmap_increment_nesting"
    r"|_vmap_decrement_nesting|lazy_load_decompositions)"
    r"|torch\.amp\.autocast_mode\._(enter|exit)_autocast|torch\._C\._set_grad_enabled"
)
"""What a node may call besides ops: functions of numbers and of modes that export writes."""

_OP = re.compile(r"torch\.ops\.(\w+\.\w+\.\w+)", re.ASCII)

_GROWING = ("_operator.pow", "_operator.lshift")
_EXPONENT, _EXPONENTS = 64, 1 << 16
"""The largest exponent of a node, and the largest product of all: numbers may have some thousands of digits."""

_CALLS = re.compile(
    "Symbol|Integer|Rational|Float|Add|Mul|Pow|Mod|Max|Min|Abs|Not|And|Or|Eq|Ne|Lt|Le|Gt|Ge|Equality|Unequality"
    "|StrictLessThan|LessThan|StrictGreaterThan|GreaterThan|Piecewise|ExprCondPair|floor|ceiling|sqrt|FloorDiv"
    "|ModularIndexing|Where|PythonMod|CleanDiv|CeilToInt|FloorToInt|CeilDiv|LShift|RShift|PowByNatural|FloatPow"
    "|FloatTrueDiv|IntTrueDiv|IsNonOverlappingAndDenseIndicator|TruncToFloat|TruncToInt|RoundToInt|RoundDecimal"
    "|ToFloat|Identity"
)
"""Functions of sympy and of torch that an expression of sizes may call."""
_POWERS = frozenset({"Pow", "LShift", "PowByNatural", "FloatPow"})
_ARITHMETIC = re.compile(r"[\w .,()+*/%<>=!&|~'-]*", re.ASCII)
_SYMBOL = re.compile(r"[a-z]\w{0,30}")


def check_program(program: Any, where: str, advice: str) -> None:
    """Raise SpmdirError unless every string of `program`, a value of JSON, is of the form that its key asks for."""
    todo: list[tuple[str, Any]] = [("", program)]
    exponents = 1
    while todo:
        key, value = todo.pop()
        if isinstance(value, dict):
            if key == "range_constraints":
                todo += [("symbol", name) for name in value]
            if value.get("target") in _GROWING:
                exponents *= _exponent(value)
                if exponents > _EXPONENTS:
                    raise SpmdirError(
                        f"{where}: found a {value['target']} to a large or unknown power, expected literal exponents "
                        f"up to {_EXPONENT}, all together up to {_EXPONENTS}; {advice}"
                    )
            todo += value.items()
        elif isinstance(value, list):
            todo += [(key, entry) for entry in value]
        if isinstance(value, str):
            fits, expected = _FORMS.get(key, _PLAIN)
            if key not in _FREE and not fits(value):
                raise SpmdirError(f"{where}: found {key} {value[:80]!r}, expected {expected}; {advice}")
        elif type(value) is int and not -(1 << 63) <= value < 1 << 63:
            raise SpmdirError(f"{where}: found a {key} of {value.bit_length()} bits, expected one of 64; {advice}")
        elif value and key in _CODE:
            raise SpmdirError(f"{where}: found a {key}, which code of its class makes; {advice}")


def _exponent(node: dict[str, Any]) -> int:
    """Return the exponent of a node that takes powers, at least 1; more than all may have if it is not literal."""
    try:
        argument = node["inputs"][1]["arg"]
        (kind, value), *_ = argument.get("as_sym_int", argument).items()
    except (LookupError, TypeError, AttributeError, ValueError):
        return _EXPONENTS + 1
    if kind == "as_float":
        return 1
    known = kind == "as_int" and isinstance(value, int) and abs(value) <= _EXPONENT
    return max(abs(value), 1) if known else _EXPONENTS + 1


def _is_target(text: str) -> bool:
    """Return whether a node may call `text`; ops are those that the dispatcher knows, not what attributes lead to."""
    op = _OP.fullmatch(text)
    return resolve(op[1]) is not None if op else _TARGET.fullmatch(text) is not None


def _is_expression(text: str) -> bool:
    """Return whether `text` is arithmetic on symbols and numbers, and small."""
    if len(text) > 5000 or _depth(text) > NESTING.most or not _ARITHMETIC.fullmatch(text):
        return False
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    powers = sum(isinstance(n, (ast.Pow, ast.LShift)) or (isinstance(n, ast.Name) and n.id in _POWERS) for n in nodes)
    return all(map(_is_arithmetic, nodes)) and (not powers or (powers <= 4 and all(map(_is_small, nodes))))


_SYNTAX = (
    ast.Expression, ast.Load, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Tuple, ast.operator, ast.unaryop,
    ast.boolop, ast.cmpop,
)  # fmt: skip


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and _CALLS.fullmatch(node.func.id) is not None
    if isinstance(node, ast.keyword):
        return isinstance(node.value, ast.Constant) and type(node.value.value) in (bool, int)
    if isinstance(node, ast.Name):
        return bool(_CALLS.fullmatch(node.id) or _SYMBOL.fullmatch(node.id))
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, str):
            return bool(_SYMBOL.fullmatch(value) or re.fullmatch(r"-?[0-9.]{1,40}(e[+-]?[0-9]{1,3})?", value))
        return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**64)
    return isinstance(node, _SYNTAX)


def _is_small(node: ast.AST) -> bool:
    """Return whether a number may stand in an expression with powers, of which four may be stacked."""
    return not (isinstance(node, ast.Constant) and isinstance(node.value, int)) or abs(node.value) <= 64


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[()\[\]{}]", text):
        depth += 1 if bracket in "([{" else -1
        deepest = max(deepest, depth)
    return deepest


def _is_tree(text: str) -> bool:
    """Return whether a tree of inputs consists of Python's own containers with plain keys.

    Names of arguments are names.
    """
    if _depth(text) > NESTING.most * 2:
        return False
    try:
        _, root = json.loads(text)
        todo, arguments = [(root, False)], root["children_spec"][1:] if root["children_spec"] else []
        while todo:
            spec, named = todo.pop()
            context = json.loads(spec["context"]) if isinstance(spec["context"], str) else spec["context"]
            keys = context if isinstance(context, list) else [context]
            if spec["type"] not in PLAIN_TREES or any(isinstance(key, (dict, list)) for key in keys):
                return False
            if named and not all(isinstance(key, str) and key.isidentifier() for key in keys if key is not None):
                return False
            todo += [(child, any(child is a for a in arguments)) for child in spec["children_spec"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return True


def _matches(pattern: str | re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


_PLAIN = (lambda text: _NAME.fullmatch(text) is not None, "a name of letters, digits and ._+-/:")
_IDENTIFIER = (_matches(r"\w{0,1000}"), "a name of letters, digits and _")
_FORMS: dict[str, tuple[Callable[[str], bool], str]] = {
    "name": _IDENTIFIER,
    "as_name": _IDENTIFIER,
    "forward_arg_names": _IDENTIFIER,
    "symbol": (_matches(r"(?!.*[0-9]{6})\w{1,40}"), "the name of a size, such as s0"),
    "target": (_is_target, "an op, as torch.ops.aten.mm.default, or a function of numbers"),
    "as_operator": (_is_target, "an op, as torch.ops.aten.mm.default, or a function of numbers"),
    "source_fn_stack": (_matches(r"[\w.,;:<> -]*"), "names of functions"),
    "expr_str": (_is_expression, "arithmetic on symbols and numbers"),
    "in_spec": (_is_tree, "a tree of tuples, lists and dictionaries"),
    "out_spec": (_is_tree, "a tree of tuples, lists and dictionaries"),
}
"""Key → whether a string may stand there, and what it should be."""
