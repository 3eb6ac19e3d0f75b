"""Element types of the operands and results of torch's ops, as torch checks and gives them.

`element_types.txt` holds a line for each op that has a rule, or several with guards, of which the first that fits
counts. `make op-table` derives the lines from what the ops do with every element type:

    aten.mm [same self mat2] -> self
    aten.gather [index: i64 i32] -> self
    aten.sum -> dtype or sum(self)
    aten.div.Tensor_mode {rounding_mode = none} -> float(self, other)
    aten.native_layer_norm -> input, input | wide(input), input | wide(input)

In brackets are the constraints on operands. A result is an operand, `(a, b)` for what operands and numbers promote to,
a map of that, an element type, the argument `dtype` where it is given, or `?` if it is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from spmdir.core import dtype as dt
from spmdir.core.common_types import COMPLEX_F16, result_type
from spmdir.core.dtype import DTYPES, DType
from spmdir.core.errors import RuleError
from spmdir.core.placement.call import Local
from spmdir.core.placement.tensor import TensorMeta

TABLE = Path(__file__).with_suffix(".txt")

KINDS = {kind: tuple(dtype for dtype in DTYPES.values() if dtype.kind == kind) for kind in ("float", "complex", "int")}
"""What the table spells for all element types of a kind."""


def _of_integers(other: DType) -> Callable[[DType], DType]:
    return lambda dtype: dtype if dtype.is_inexact else other


def _real(dtype: DType) -> DType:
    return dt.F16 if dtype == COMPLEX_F16 else dtype.real


MAPS: Mapping[str, Callable[[DType], DType]] = {
    "": lambda dtype: dtype,
    "float": _of_integers(dt.F32),
    "sum": _of_integers(dt.I64),
    "number": lambda dtype: dt.I64 if dtype.is_bool else dtype,
    "real": _real,
    "complex": lambda dtype: dtype.complex,
    "wide": lambda dtype: dt.F32 if dtype in (dt.BF16, dt.F16) else dtype,
    "truth": lambda dtype: dt.UI8 if dtype == dt.UI8 else dt.I1,
    "double": lambda dtype: dt.COMPLEX_F64 if dtype.is_complex else dt.F64,
    "real_float": lambda dtype: _real(_of_integers(dt.F32)(dtype)),
}
"""What an op makes of the element type that operands promote to."""

_NUMBERS = (int, float, complex, Local)

Named = Mapping[str, tuple[TensorMeta, ...]]
"""Tensor parameter → the operands that fill it."""


@attrs.frozen
class TypeSource:
    """Where the element type of a result comes from: `map(names)`, or an element type of its own.

    Attributes:
        names: operands and numbers that are promoted.
        fixed: the element type, if it does not depend on operands.
        argument: the argument whose element type goes before, if it is given.
    """

    names: tuple[str, ...] = ()
    map: str = ""
    fixed: DType | None = None
    argument: str | None = None

    def __str__(self) -> str:
        inside = ", ".join(self.names)
        is_bare = not self.map and len(self.names) == 1 and inside not in DTYPES
        text = inside if is_bare else f"{self.map}({inside})"
        return (f"{self.argument} or " if self.argument else "") + (str(self.fixed) if self.fixed else text)

    def is_known(self, operands: Named, arguments: Mapping[str, Any]) -> bool:
        """Return whether a call has an operand or argument that the element type comes from."""
        names = (*self.names, self.argument or "")
        return self.fixed is not None or any(operands.get(n) or arguments.get(n) is not None for n in names)

    def evaluate(self, operands: Named, arguments: Mapping[str, Any]) -> DType | None:
        """Return the element type for a call; None if torch does not promote the operands."""
        dtype = arguments.get(self.argument) if self.argument else None
        if isinstance(dtype, DType):
            return dtype
        if self.fixed is not None:
            return self.fixed
        tensors = [(meta.dtype, meta.rank) for name in self.names for meta in operands.get(name, ())]
        given = [arguments.get(name) for name in self.names]
        numbers = [0 if isinstance(value, Local) else value for value in given if isinstance(value, _NUMBERS)]
        found = result_type(tensors, numbers)
        return None if found is None else MAPS[self.map](found)


@attrs.frozen
class AllowedTypes:
    """The element types that an operand may have; any, where the argument `unless` is given."""

    name: str
    types: tuple[DType, ...]
    unless: str | None = None

    def __str__(self) -> str:
        whole = [kind for kind, types in KINDS.items() if {*types} <= {*self.types}]
        others = [str(type_) for type_ in self.types if type_.kind not in whole]
        return f"{self.name}: {' '.join([*whole, *others])}{f' unless {self.unless}' if self.unless else ''}"


@attrs.frozen
class TypeSignature:
    """The element types of one op.

    Attributes:
        guard: (argument, its value as text) where the line is about some calls.
        allowed: the operands that may not have every element type.
        same: operands of one element type.
        results: for each result the places that its type may come from; none if it is not checked.
    """

    op: str
    results: tuple[tuple[TypeSource, ...], ...]
    guard: tuple[str, str] | None = None
    allowed: tuple[AllowedTypes, ...] = ()
    same: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        guard = f" {{{self.guard[0]} = {self.guard[1]}}}" if self.guard else ""
        listed = [f"same {' '.join(names)}" for names in self.same]
        listed += map(str, self.allowed)
        constraints = f" [{'; '.join(listed)}]" if listed else ""
        results = ", ".join(" | ".join(map(str, sources)) or "?" for sources in self.results)
        return f"{self.op}{guard}{constraints} -> {results}"

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the line is about calls with these arguments."""
        return self.guard is None or argument_text(arguments.get(self.guard[0])) == self.guard[1]

    def check(self, operands: Named, arguments: Mapping[str, Any], results: Sequence[DType | None]) -> None:
        """Raise RuleError if torch rejects the element types of operands, or gives results of others.

        Args:
            results: the element type of each result; None for an absent one.
        """
        self.check_operands(operands, arguments)
        self.check_results(operands, arguments, results)

    def check_operands(self, operands: Named, arguments: Mapping[str, Any]) -> None:
        """Raise RuleError if operands have element types that torch rejects."""
        for allowed in self.allowed:
            is_free = allowed.unless is not None and arguments.get(allowed.unless) is not None
            for meta in () if is_free else operands.get(allowed.name, ()):
                if meta.numel and meta.dtype not in allowed.types:  # torch looks at no type of what has no elements
                    expected = _either(allowed.types) + (f", or argument '{allowed.unless}'" if allowed.unless else "")
                    raise RuleError(f"operand '{allowed.name}' has element type {meta.dtype}; expected {expected}")
        for names in self.same:
            found = dict.fromkeys((name, meta.dtype) for name in names for meta in operands.get(name, ()))
            if len({dtype for _, dtype in found}) > 1:
                types = ", ".join(f"'{name}' has {dtype}" for name, dtype in found)
                raise RuleError(
                    f"operands differ in element type: {types}; expected one type, convert with aten._to_copy"
                )

    def expected(self, index: int, operands: Named, arguments: Mapping[str, Any]) -> tuple[DType, ...]:
        """Return the element types that result `index` may have; none if it is not checked.

        Raises:
            RuleError: torch does not promote the operands.
        """
        sources = self.results[min(index, len(self.results) - 1)]
        if not all(source.is_known(operands, arguments) for source in sources):
            return ()  # an optional operand is left out
        types = [source.evaluate(operands, arguments) for source in sources]
        if None in types:
            given = ", ".join(str(meta.dtype) for name in sources[0].names for meta in operands.get(name, ()))
            raise RuleError(f"torch does not promote the element types {given}; convert an operand")
        return tuple(type_ for type_ in types if type_ is not None)

    def check_results(self, operands: Named, arguments: Mapping[str, Any], results: Sequence[DType | None]) -> None:
        """Raise RuleError if a result has an element type that the op does not give."""
        for index, found in enumerate(results):
            expected = self.expected(index, operands, arguments)
            if found is not None and expected and found not in expected:
                raise RuleError(f"result {index} has the element type {found}; expected {_either(expected)}")


def argument_text(value: Any) -> str:
    """Return the value of an argument as a guard spells it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _either(types: Sequence[Any]) -> str:
    *others, last = dict.fromkeys(map(str, types))
    return f"{', '.join(others)} or {last}" if others else last


def parse(line: str) -> TypeSignature:
    """Return what a line of the table spells."""
    head, _, tail = line.partition(" -> ")
    head, _, constraints = head.removesuffix("]").partition(" [")
    op, _, guard = head.removesuffix("}").partition(" {")
    listed = [text.partition(": ") for text in constraints.split("; ") if text]
    name, _, value = guard.partition(" = ")
    return TypeSignature(
        op,
        tuple(tuple(map(_source, text.split(" | "))) if text != "?" else () for text in _split(tail)),
        (name, value) if guard else None,
        tuple(_allowed(name, types) for name, colon, types in listed if colon),
        tuple(tuple(text.split(" ")[1:]) for text, colon, _ in listed if not colon),
    )


def _allowed(name: str, text: str) -> AllowedTypes:
    types, _, unless = text.partition(" unless ")
    listed = {type_ for word in types.split(" ") for type_ in KINDS.get(word) or (DTYPES[word],)}
    return AllowedTypes(name, tuple(type_ for type_ in DTYPES.values() if type_ in listed), unless or None)


def _split(text: str) -> list[str]:
    """Return the parts between commas outside parentheses."""
    parts, depth = [""], 0
    for part in text.split(", "):
        parts[-1] += ", " * (depth > 0) + part
        depth += part.count("(") - part.count(")")
        parts += [""] * (depth == 0)
    return parts[:-1]


def _source(text: str) -> TypeSource:
    argument, is_given, rest = text.rpartition(" or ")
    before = argument if is_given else None
    if rest in DTYPES:
        return TypeSource(fixed=DTYPES[rest], argument=before)
    name, parenthesis, inside = rest.removesuffix(")").partition("(")
    names = tuple(inside.split(", ") if inside else ()) if parenthesis else (rest,)
    return TypeSource(names, name if parenthesis else "", None, before)


@cache
def signatures(op: str) -> tuple[TypeSignature, ...]:
    """Return the lines about an op; none if the table does not list it."""
    return tuple(map(parse, _lines().get(op, ())))


def signature(op: str, arguments: Mapping[str, Any]) -> TypeSignature | None:
    """Return the line about a call with these arguments, or None."""
    return next((one for one in signatures(op) if one.fits(arguments)), None)


@cache
def _lines() -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}
    for line in TABLE.read_text().splitlines() if TABLE.exists() else ():
        lines.setdefault(line.partition(" ")[0], []).append(line)
    return lines
