"""Check that each string in the JSON of an exported program has a harmless form, before torch reads it.

torch evaluates some of these strings with `eval` (expressions of sizes), looks some up in its modules (targets),
imports some (trees of inputs), and writes some into Python that it executes (names). A string must therefore be a name,
unless `_CHECKS` has another form for its key.
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
_UNCHECKED_KEYS = frozenset(
    {"as_string", "as_strings", "stack_trace", "nn_module_stack", "torch_fn", "custom", "from_node", "guards_code"}
)
"""Keys of strings that torch quotes or parses as JSON, and never executes. Guards are dropped after loading."""
_OBJECT_KEYS = frozenset({"as_custom_obj", "custom_obj_values", "custom_obj"})
"""Keys of objects that code of their class creates."""

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
"""Functions that a node may call in addition to ops: those on numbers and modes in programs of torch.export."""

_OP = re.compile(r"torch\.ops\.(\w+\.\w+\.\w+)", re.ASCII)

_POWER_TARGETS = ("_operator.pow", "_operator.lshift")
_MAX_EXPONENT, _MAX_EXPONENT_PRODUCT = 64, 1 << 16
"""The largest exponent of a node, and the largest product of all exponents. They bound the digits of numbers."""

_SYMPY_FUNCTIONS = re.compile(
    "Symbol|Integer|Rational|Float|Add|Mul|Pow|Mod|Max|Min|Abs|Not|And|Or|Eq|Ne|Lt|Le|Gt|Ge|Equality|Unequality"
    "|StrictLessThan|LessThan|StrictGreaterThan|GreaterThan|Piecewise|ExprCondPair|floor|ceiling|sqrt|FloorDiv"
    "|ModularIndexing|Where|PythonMod|CleanDiv|CeilToInt|FloorToInt|CeilDiv|LShift|RShift|PowByNatural|FloatPow"
    "|FloatTrueDiv|IntTrueDiv|IsNonOverlappingAndDenseIndicator|TruncToFloat|TruncToInt|RoundToInt|RoundDecimal"
    "|ToFloat|Identity"
)
"""Functions of sympy and of torch that an expression of sizes may call."""
_POWER_FUNCTIONS = frozenset({"Pow", "LShift", "PowByNatural", "FloatPow"})
_ARITHMETIC = re.compile(r"[\w .,()+*/%<>=!&|~'-]*", re.ASCII)
_SYMBOL = re.compile(r"[a-z]\w{0,30}")


def check_program(program: Any, source: str, advice: str) -> None:
    """Check a program, a JSON value.

    Args:
        source: the file and member, for errors.
        advice: the remedy in errors.

    Raises:
        SpmdirError: a string does not have the form that its key requires, or a number is too large.
    """
    worklist: list[tuple[str, Any]] = [("", program)]
    exponent_product = 1
    while worklist:
        key, value = worklist.pop()
        if isinstance(value, dict):
            if key == "range_constraints":
                worklist += [("symbol", name) for name in value]
            if value.get("target") in _POWER_TARGETS:
                exponent_product *= _read_exponent(value)
                if exponent_product > _MAX_EXPONENT_PRODUCT:
                    raise SpmdirError(
                        f"{source}: found a {value['target']} to a large or unknown power; expected literal exponents "
                        f"up to {_MAX_EXPONENT}, with a product up to {_MAX_EXPONENT_PRODUCT}; {advice}"
                    )
            worklist += value.items()
        elif isinstance(value, list):
            worklist += [(key, entry) for entry in value]
        if isinstance(value, str):
            fits, expected = _CHECKS.get(key, _NAME_CHECK)
            if key not in _UNCHECKED_KEYS and not fits(value):
                raise SpmdirError(f"{source}: found {key} {value[:80]!r}; expected {expected}; {advice}")
        elif type(value) is int and not -(1 << 63) <= value < 1 << 63:
            raise SpmdirError(f"{source}: found a {key} of {value.bit_length()} bits; expected at most 64; {advice}")
        elif value and key in _OBJECT_KEYS:
            raise SpmdirError(
                f"{source}: found a {key}, which can be loaded only by running code of its class; expected plain data; "
                f"{advice}"
            )


def _read_exponent(node: dict[str, Any]) -> int:
    """Return the exponent of a node, in the JSON of a program, that computes a power or a shift of integers.

    The result is at least 1, because it is a factor of the product of all exponents. A float exponent counts as 1,
    because floats have a fixed number of digits. If the exponent is not a literal, the result exceeds all limits.
    """
    try:
        argument = node["inputs"][1]["arg"]
        (kind, value), *_ = argument.get("as_sym_int", argument).items()
    except (LookupError, TypeError, AttributeError, ValueError):
        return _MAX_EXPONENT_PRODUCT + 1
    if kind == "as_float":
        return 1
    is_valid = kind == "as_int" and isinstance(value, int) and abs(value) <= _MAX_EXPONENT
    return max(abs(value), 1) if is_valid else _MAX_EXPONENT_PRODUCT + 1


def _is_target(text: str) -> bool:
    """Return whether a node may call `text`. Ops are looked up in the dispatcher, not as attributes of modules."""
    op = _OP.fullmatch(text)
    return resolve(op[1]) is not None if op else _TARGET.fullmatch(text) is not None


def _is_expression(text: str) -> bool:
    """Return whether `text` is arithmetic on symbols and numbers, and small."""
    if len(text) > 5000 or _nesting_depth(text) > NESTING.most or not _ARITHMETIC.fullmatch(text):
        return False
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    if not all(map(_is_arithmetic, nodes)):
        return False
    powers = [
        node
        for node in nodes
        if isinstance(node, (ast.Pow, ast.LShift)) or (isinstance(node, ast.Name) and node.id in _POWER_FUNCTIONS)
    ]
    return not powers or (len(powers) <= 4 and all(map(_is_small, nodes)))


_SYNTAX = (
    ast.Expression, ast.Load, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Tuple, ast.operator, ast.unaryop,
    ast.boolop, ast.cmpop,
)  # fmt: skip


def _is_arithmetic(node: ast.AST) -> bool:
    """Return whether a syntax node, without its children, may occur in an expression of sizes.

    Attributes and subscripts may not, so an expression reaches nothing but the listed functions.
    """
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and _SYMPY_FUNCTIONS.fullmatch(node.func.id) is not None
    if isinstance(node, ast.keyword):
        return isinstance(node.value, ast.Constant) and type(node.value.value) in (bool, int)
    if isinstance(node, ast.Name):
        return bool(_SYMPY_FUNCTIONS.fullmatch(node.id) or _SYMBOL.fullmatch(node.id))
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, str):
            return bool(_SYMBOL.fullmatch(value) or re.fullmatch(r"-?[0-9.]{1,40}(e[+-]?[0-9]{1,3})?", value))
        return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**64)
    return isinstance(node, _SYNTAX)


def _is_small(node: ast.AST) -> bool:
    """Return whether a syntax node is anything but an integer above 64.

    Expressions with powers may have no larger integers. With at most four powers, this bounds the digits of results.
    """
    return not (isinstance(node, ast.Constant) and isinstance(node.value, int)) or abs(node.value) <= 64


def _nesting_depth(text: str) -> int:
    """Return the largest number of open brackets: 2 for `f(a[0]) + (b)`."""
    depth = deepest = 0
    for bracket in re.findall(r"[()\[\]{}]", text):
        depth += 1 if bracket in "([{" else -1
        deepest = max(deepest, depth)
    return deepest


def _is_tree(text: str) -> bool:
    """Return whether a tree of inputs consists of Python's built-in containers with plain keys.

    The names of keyword arguments must be identifiers.
    """
    if _nesting_depth(text) > NESTING.most * 2:
        return False
    try:
        _, root = json.loads(text)
        # The root of the inputs is (positional arguments, keyword arguments).
        arguments = root["children_spec"][1:] if root["children_spec"] else []
        worklist = [(root, False)]
        while worklist:
            spec, is_arguments = worklist.pop()
            context = json.loads(spec["context"]) if isinstance(spec["context"], str) else spec["context"]
            keys = context if isinstance(context, list) else [context]
            if spec["type"] not in PLAIN_TREES or any(isinstance(key, (dict, list)) for key in keys):
                return False
            # torch writes the keys of the tree of keyword arguments into the signature of a function.
            if is_arguments and not all(isinstance(key, str) and key.isidentifier() for key in keys if key is not None):
                return False
            for child in spec["children_spec"]:
                worklist.append((child, any(child is argument for argument in arguments)))
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return True


def _matches(pattern: str | re.Pattern[str]) -> Callable[[str], bool]:
    """Return a check of whether a whole string matches `pattern`."""
    return lambda text: re.fullmatch(pattern, text) is not None


_NAME_CHECK = (lambda text: _NAME.fullmatch(text) is not None, "a name of letters, digits and ._+-/:")
_IDENTIFIER_CHECK = (_matches(r"\w{0,1000}"), "a name of letters, digits and _")
_CHECKS: dict[str, tuple[Callable[[str], bool], str]] = {
    "name": _IDENTIFIER_CHECK,
    "as_name": _IDENTIFIER_CHECK,
    "forward_arg_names": _IDENTIFIER_CHECK,
    "symbol": (_matches(r"(?!.*[0-9]{6})\w{1,40}"), "the name of a size, such as s0"),
    "target": (_is_target, "an op, as torch.ops.aten.mm.default, or a function of numbers"),
    "as_operator": (_is_target, "an op, as torch.ops.aten.mm.default, or a function of numbers"),
    "source_fn_stack": (_matches(r"[\w.,;:<> -]*"), "names of functions"),
    "expr_str": (_is_expression, "arithmetic on symbols and numbers"),
    "in_spec": (_is_tree, "a tree of tuples, lists and dictionaries"),
    "out_spec": (_is_tree, "a tree of tuples, lists and dictionaries"),
}
"""Key → (check of its strings, their expected form for errors)."""
