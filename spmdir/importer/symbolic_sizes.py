"""Convert the symbolic sizes of a traced program: sympy expressions → expressions of the IR."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from spmdir.core.dtype import DType
from spmdir.core.errors import Location, UnsupportedError
from spmdir.core.placement.tensor import TensorMeta, sized_meta
from spmdir.core.symbolic.conditions import Condition, condition, equality
from spmdir.core.symbolic.expressions import Number, Size, apply, evaluate, is_symbolic, symbol
from spmdir.core.symbolic.symbols import Sizes, Symbol
from spmdir.torch_interop.symbolic_numbers import is_open

_FUNCTIONS = {
    "Add": "add", "Mul": "mul", "Pow": "pow", "PowByNatural": "pow", "FloatPow": "pow",
    "FloorDiv": "floordiv", "CleanDiv": "floordiv", "Mod": "mod", "PythonMod": "mod",
    "Max": "max", "Min": "min", "IntTrueDiv": "truediv", "FloatTrueDiv": "truediv", "ToFloat": "float",
    "OpaqueUnaryFn_sqrt": "sqrt", "TruncToInt": "trunc", "CeilToInt": "ceil", "FloorToInt": "floor",
    "RoundToInt": "round",
}  # fmt: skip
"""Name of a sympy or torch function → name of the function on numbers in the IR."""

_RELATIONS = {
    "Equality": "==", "Unequality": "!=", "GreaterThan": ">=", "StrictGreaterThan": ">",
    "LessThan": "<=", "StrictLessThan": "<",
}  # fmt: skip
_UNBOUNDED = 2**62
"""An upper bound of torch of at least this number means that a size is unbounded."""


class SymbolTable:
    """The symbols of one graph, named s0, s1, … in the order of its placeholders.

    Args:
        graph: a traced graph, whose nodes have `meta["val"]`.
        ranges: torch symbol → range that the user declared.
    """

    def __init__(self, graph: fx.Graph, ranges: Mapping[Any, Any]):
        """Name the symbols in the sizes of the placeholders of `graph`, in order.

        `_names` is torch symbol → name, `_hints` is name → example size, and `_environments` are the different
        ShapeEnvs of the sizes that were converted.
        """
        self._ranges = ranges
        self._names: dict[Any, str] = {}
        self._hints: dict[str, int] = {}
        self._environments: list[Any] = []
        self._graph = graph
        for node in graph.nodes:
            if node.op == "placeholder":
                value = node.meta.get("val")
                for size in value.shape if isinstance(value, Tensor) else (value,):
                    if is_open(size):
                        self.convert(size, f"input '{node.name}'", None)

    @property
    def hints(self) -> Mapping[str, int]:
        """Symbol name → example size."""
        return self._hints

    def convert(self, value: Any, owner: str, location: Location | None) -> Number:
        """Convert a number of torch to the IR. A number that is not symbolic is returned unchanged.

        Args:
            owner: the node or input that has the number, for errors.
            location: the location of errors.

        Raises:
            UnsupportedError: the number depends on data, or the IR cannot express it.
        """
        if not is_open(value):
            return value
        environment = getattr(value.node, "shape_env", None)
        if environment is None:
            raise UnsupportedError(
                f"{owner} has the size {value} of a nested tensor; expected a dense tensor: pad it with "
                "torch.nested.to_padded_tensor",
                location,
            )
        if all(environment is not earlier for earlier in self._environments):
            self._environments.append(environment)
        return self._convert_expression(value.node.expr, lambda: f"{owner} has the size {value}", location)

    def tensor_meta(self, value: Tensor, dtype: DType, owner: str, location: Location | None) -> TensorMeta:
        """Return the shape and element type of a tensor with symbolic sizes."""
        sizes: Any = tuple(self.convert(size, owner, location) for size in value.shape)
        return sized_meta(sizes, self._hints, dtype)

    def evaluate_hint(self, value: Number) -> int | float:
        """Return the value of a number for the example sizes."""
        return evaluate(value, self._hints)

    def _convert_expression(self, expression: Any, describe: Callable[[], str], location: Location | None) -> Number:
        """Convert a sympy expression, and name its symbols.

        Args:
            describe: returns the start of errors. It is a function because the text of an expression takes long.
        """
        if expression.is_Symbol:
            return symbol(self._name_symbol(expression, describe, location))
        if expression.is_Integer:
            return int(expression)
        if expression.is_Float:
            return float(expression)
        name = _FUNCTIONS.get(type(expression).__name__)
        if name is None:
            raise UnsupportedError(
                f"{describe()}, which uses the function {type(expression).__name__}; expected sums, products, "
                "powers, quotients, minima and maxima of sizes: export the program with fixed sizes",
                location,
            )
        arguments = [self._convert_expression(argument, describe, location) for argument in expression.args]
        if name in ("add", "mul"):
            total = arguments[0]
            for argument in arguments[1:]:
                total = apply(name, total, argument)
            return total
        return apply(name, *arguments)

    def _name_symbol(self, expression: Any, describe: Callable[[], str], location: Location | None) -> str:
        """Return the name of a torch symbol in the IR. A symbol without an example size depends on data: an error."""
        if expression in self._names:
            return self._names[expression]
        all_hints = map(_hints_by_symbol, self._environments)
        hint = next((hints[expression] for hints in all_hints if expression in hints), None)
        if hint is None:
            raise UnsupportedError(
                f"{describe()}, which depends on data; expected sizes that depend only on the sizes of inputs: "
                "use ops of fixed shape, such as torch.where with a mask",
                location,
            )
        name = f"s{len(self._names)}"
        self._names[expression] = name
        self._hints[name] = int(hint)
        return name

    def collect_sizes(self) -> Sizes:
        """Return the symbols of the graph, with the ranges and conditions that the trace assumes.

        Raises:
            UnsupportedError: the IR cannot express a condition.
        """
        expressions = self._guard_expressions()
        guards = dict.fromkeys(guard for expression in expressions for guard in self._to_conditions(expression))
        for expression, name in list(self._names.items()):
            # Equalities that torch derived after the symbol was named.
            for replacement in {environment.replace(expression): None for environment in self._environments}:
                if replacement != expression:
                    description = f"the trace assumes that {expression} = {replacement}"
                    equal_size = self._convert_expression(replacement, lambda text=description: text, None)
                    guards[condition(symbol(name), "==", equal_size)] = None
        ranges = {name: self._symbol_range(expression) for expression, name in self._names.items()}
        for guard in guards:
            _narrow_ranges(ranges, guard)
        symbols = tuple(Symbol(name, hint, *ranges[name]) for name, hint in self._hints.items())
        return Sizes(symbols, tuple(guard for guard in guards if not _is_implied(guard, ranges)))

    def _guard_expressions(self) -> Iterator[Any]:
        """Yield the conditions on sizes that the trace assumes, as sympy expressions."""
        for environment in self._environments:
            yield from (environment.replace(guard.expr) for guard in environment.guards)
        for node in self._graph.nodes:
            if node.target is torch.ops.aten._assert_scalar.default and isinstance(node.args[0], fx.Node):
                value = node.args[0].meta.get("val")
                if isinstance(value, torch.SymBool):
                    yield value.node.expr

    def _symbol_range(self, expression: Any) -> tuple[int, int | None]:
        """Return (smallest size, largest size) of a torch symbol; the second is None if it is unbounded.

        The user's range has priority over that of the trace. Sizes are never negative.
        """
        bounds = self._ranges.get(expression)
        if bounds is None:
            traced_ranges = (environment.var_to_range for environment in self._environments)
            bounds = next(ranges[expression] for ranges in traced_ranges if expression in ranges)
        low = int(bounds.lower) if bounds.lower.is_Integer else 0
        high = int(bounds.upper) if bounds.upper.is_Integer and int(bounds.upper) < _UNBOUNDED else None
        return max(low, 0), high

    def _to_conditions(self, expression: Any) -> Iterator[Condition]:
        """Yield the conditions of a sympy expression, except those that always hold and those on unused symbols.

        Raises:
            UnsupportedError: the IR cannot express a condition.
        """
        kind = type(expression).__name__
        if expression == True:  # noqa: E712  # sympy's true is another object
            return
        if kind == "And":
            for part in expression.args:
                yield from self._to_conditions(part)
            return
        if kind == "Not" and type(expression.args[0]).__name__ == "Equality":
            expression, kind = expression.args[0], "Unequality"
        if not set(expression.free_symbols) <= set(self._names):
            return  # the condition is on a symbol that the program does not use

        def describe() -> str:
            return f"the trace assumes that {expression}"

        if kind not in _RELATIONS:
            raise UnsupportedError(
                f"{describe()}; expected comparisons of sizes joined by 'and': export the program with fixed sizes"
            )
        left, right = (self._convert_expression(argument, describe, None) for argument in expression.args)
        guard = condition(left, _RELATIONS[kind], right)
        if guard.relation == "==":
            guard = equality(left, right)
        if guard.holds({}) is None:
            yield guard


def _hints_by_symbol(environment: Any) -> Mapping[Any, Any]:
    """Return torch symbol → example size. PyTorch renamed the attribute."""
    hints = getattr(environment, "backed_var_to_val", None)
    return environment.var_to_val if hints is None else hints


Ranges = dict[str, tuple[int, "int | None"]]


def _narrow_ranges(ranges: Ranges, guard: Condition) -> None:
    """Intersect the range of a symbol with a condition between this symbol and a number, in place.

    Conditions of another form change nothing. For `s0 != 0`, a lower bound of 0 becomes 1, and likewise for 1.
    """
    for name in ranges:
        if guard.left == symbol(name) and isinstance(guard.right, int):
            low, high = ranges[name]
            if guard.relation in (">=", ">"):
                low = max(low, guard.right + (guard.relation == ">"))
            elif guard.relation == "!=" and guard.right in (0, 1) and low == guard.right:
                low = guard.right + 1
            ranges[name] = (low, high)
        if guard.right == symbol(name) and isinstance(guard.left, int) and guard.relation in (">=", ">"):
            low, high = ranges[name]
            limit = guard.left - (guard.relation == ">")
            ranges[name] = (low, limit if high is None else min(high, limit))


def _is_implied(guard: Condition, ranges: Ranges) -> bool:
    """Return whether the ranges of sizes imply a condition.

    The bounds of `left - right` are sums of the bounds of its terms. For `s0 >= 2` and `s1 >= 3`, `2 * s0 + s1 - 4` is
    at least 3, so `2 * s0 + s1 >= 4` is implied.
    """
    difference = apply("sub", guard.left, guard.right)
    if not isinstance(difference, Size):
        return False
    lowest, highest = 0.0, 0.0
    for monomial, coefficient in difference.terms:
        low: float = 1
        high: float = 1
        for atom in monomial:
            if not isinstance(atom, str):
                return False  # such as s0 // 2, whose range is not known here
            atom_low, atom_high = ranges[atom]
            low *= atom_low
            high *= math.inf if atom_high is None else atom_high
        lowest += coefficient * (low if coefficient > 0 else high)
        highest += coefficient * (high if coefficient > 0 else low)
    # Conditions have only the relations >=, >, == and !=.
    if guard.relation == "!=":
        return lowest > 0 or highest < 0
    return guard.relation in (">=", ">") and (lowest > 0 or (guard.relation == ">=" and lowest >= 0))


def are_numbers(values: Iterable[Any]) -> bool:
    """Return whether all `values` are numbers, symbolic or not."""
    return all(is_symbolic(value) or type(value) in (int, float) for value in values)
