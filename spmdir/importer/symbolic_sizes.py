"""The symbolic sizes of a traced program: torch's symbols and expressions as those of the IR."""

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
"""Name of a function in sympy and torch → name of the function of numbers in the IR."""

_RELATIONS = {
    "Equality": "==", "Unequality": "!=", "GreaterThan": ">=", "StrictGreaterThan": ">",
    "LessThan": "<=", "StrictLessThan": "<",
}  # fmt: skip
_UNBOUNDED = 2**62
"""Upper bounds of torch from this number on mean that a size is unbounded."""


class SymbolTable:
    """The symbols of one graph, named s0, s1, … in the order of its placeholders.

    Args:
        graph: the graph.
        ranges: symbol of torch → range that the user gave.
    """

    def __init__(self, graph: fx.Graph, ranges: Mapping[Any, Any]):
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
                        self.number(size, f"input '{node.name}'", None)

    @property
    def hints(self) -> Mapping[str, int]:
        """Symbol name → example size."""
        return self._hints

    def number(self, value: Any, what: str, place: Location | None) -> Number:
        """Convert a number of torch to the IR.

        Args:
            what: the owner of the number, for errors.
            place: the location for errors.

        Raises:
            UnsupportedError: the number depends on data, or the IR cannot express it.
        """
        if not is_open(value):
            return value
        environment = getattr(value.node, "shape_env", None)
        if environment is None:
            raise UnsupportedError(f"{what} has the size {value} of a nested tensor; expected a dense tensor", place)
        if all(environment is not known for known in self._environments):
            self._environments.append(environment)
        return self._convert(value.node.expr, lambda: f"{what} has the size {value}", place)

    def meta(self, value: Tensor, dtype: DType, what: str, place: Location | None) -> TensorMeta:
        """Return the shape and element type of a tensor with symbolic sizes."""
        sizes: Any = tuple(self.number(size, what, place) for size in value.shape)
        return sized_meta(sizes, self._hints, dtype)

    def hint(self, value: Number) -> int | float:
        """Return the value of a number for the example sizes."""
        return evaluate(value, self._hints)

    def _convert(self, expression: Any, what: Callable[[], str], place: Location | None) -> Number:
        if expression.is_Symbol:
            return symbol(self._name(expression, what, place))
        if expression.is_Integer:
            return int(expression)
        if expression.is_Float:
            return float(expression)
        name = _FUNCTIONS.get(type(expression).__name__)
        if name is None:
            raise UnsupportedError(f"{what()}, made by {type(expression).__name__}, which the IR cannot say", place)
        arguments = [self._convert(argument, what, place) for argument in expression.args]
        if name in ("add", "mul"):
            total = arguments[0]
            for argument in arguments[1:]:
                total = apply(name, total, argument)
            return total
        return apply(name, *arguments)

    def _name(self, expression: Any, what: Callable[[], str], place: Location | None) -> str:
        if expression not in self._names:
            examples = map(_examples, self._environments)
            hint = next((known[expression] for known in examples if expression in known), None)
            if hint is None:
                raise UnsupportedError(
                    f"{what()}, which depends on data; use ops of fixed shape, such as torch.where with a mask", place
                )
            self._names[expression] = f"s{len(self._names)}"
            self._hints[self._names[expression]] = int(hint)
        return self._names[expression]

    def sizes(self) -> Sizes:
        """Return the symbols of the graph, with the ranges and conditions that the trace relies on.

        Raises:
            UnsupportedError: the IR cannot express a condition.
        """
        conditions: dict[Condition, None] = {}
        for expression in self._guards():
            for found in self._conditions(expression):
                conditions[found] = None
        for expression, name in list(self._names.items()):
            # Equalities that torch derived after the symbol was named.
            for replaced in {environment.replace(expression): None for environment in self._environments}:
                if replaced != expression:
                    relied = f"the trace relies on {expression} = {replaced}"
                    other = self._convert(replaced, lambda relied=relied: relied, None)
                    conditions[condition(symbol(name), "==", other)] = None
        ranges = {name: self._range(expression) for expression, name in self._names.items()}
        kept: list[Condition] = []
        for found in conditions:
            _narrow(ranges, found)
        for found in conditions:
            if not _implied(found, ranges):
                kept.append(found)
        symbols = tuple(Symbol(name, hint, *ranges[name]) for name, hint in self._hints.items())
        return Sizes(symbols, tuple(kept))

    def _guards(self) -> Iterator[Any]:
        """Yield the conditions on sizes that the trace relies on."""
        for environment in self._environments:
            yield from (environment.replace(guard.expr) for guard in environment.guards)
        for node in self._graph.nodes:
            if node.target is torch.ops.aten._assert_scalar.default and isinstance(node.args[0], fx.Node):
                value = node.args[0].meta.get("val")
                if isinstance(value, torch.SymBool):
                    yield value.node.expr

    def _range(self, expression: Any) -> tuple[int, int | None]:
        known = self._ranges.get(expression)
        if known is None:
            known = next(e.var_to_range[expression] for e in self._environments if expression in e.var_to_range)
        low = int(known.lower) if known.lower.is_Integer else 0
        high = int(known.upper) if known.upper.is_Integer and int(known.upper) < _UNBOUNDED else None
        return max(low, 0), high

    def _conditions(self, expression: Any) -> Iterator[Condition]:
        kind = type(expression).__name__
        if expression == True:  # noqa: E712  # sympy's true is another object
            return
        if kind == "And":
            for part in expression.args:
                yield from self._conditions(part)
            return
        if kind == "Not" and type(expression.args[0]).__name__ == "Equality":
            expression, kind = expression.args[0], "Unequality"
        if not set(expression.free_symbols) <= set(self._names):
            return  # no size of the program

        def what() -> str:
            return f"the trace relies on {expression}"

        if kind not in _RELATIONS:
            raise UnsupportedError(f"{what()}, which the IR cannot say; export it with fixed sizes")
        left, right = (self._convert(argument, what, None) for argument in expression.args)
        found = condition(left, _RELATIONS[kind], right)
        if found.relation == "==":
            found = equality(left, right)
        if found.holds({}) is None:
            yield found


def _examples(environment: Any) -> Mapping[Any, Any]:
    known = getattr(environment, "backed_var_to_val", None)
    return environment.var_to_val if known is None else known


Ranges = dict[str, tuple[int, "int | None"]]


def _narrow(ranges: Ranges, found: Condition) -> None:
    """Intersect the range of a symbol with a condition between this symbol and a number."""
    for name in ranges:
        if found.left == symbol(name) and isinstance(found.right, int):
            low, high = ranges[name]
            if found.relation in (">=", ">"):
                low = max(low, found.right + (found.relation == ">"))
            elif found.relation == "!=" and found.right in (0, 1) and low == found.right:
                low = found.right + 1
            ranges[name] = (low, high)
        if found.right == symbol(name) and isinstance(found.left, int) and found.relation in (">=", ">"):
            low, high = ranges[name]
            limit = found.left - (found.relation == ">")
            ranges[name] = (low, limit if high is None else min(high, limit))


def _implied(found: Condition, ranges: Ranges) -> bool:
    """Return whether the ranges of sizes imply a condition."""
    difference = apply("sub", found.left, found.right)
    if not isinstance(difference, Size):
        return False
    lowest, highest = 0.0, 0.0
    for monomial, coefficient in difference.terms:
        if not all(isinstance(atom, str) for atom in monomial):
            return False
        low = math.prod(ranges[str(atom)][0] for atom in monomial)
        high = math.prod(math.inf if (top := ranges[str(atom)][1]) is None else top for atom in monomial)
        lowest += coefficient * (low if coefficient > 0 else high)
        highest += coefficient * (high if coefficient > 0 else low)
    if found.relation == "!=":
        return lowest > 0 or highest < 0
    return found.relation in (">=", ">") and (lowest > 0 or (found.relation == ">=" and lowest >= 0))


def numbers(values: Iterable[Any]) -> bool:
    """Return whether all `values` are numbers, symbolic or not."""
    return all(is_symbolic(value) or type(value) in (int, float) for value in values)
