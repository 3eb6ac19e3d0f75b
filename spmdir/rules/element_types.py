"""Element types that torch allows for the operands of ops, and those of the results.

`element_types.txt` contains a line for each op that has a rule. If it contains several lines with guards for an op, the
first that fits is used. `make op-table` derives the lines by running the ops on every element type:

    aten.mm [same self mat2] -> self
    aten.gather [index: i64 i32] -> self
    aten.sum -> dtype or sum(self)
    aten.div.Tensor_mode {rounding_mode = none} -> float(self, other)
    aten.native_layer_norm -> input, input | wide(input), input | wide(input)

The constraints on operands are in brackets. The type of a result is that of an operand, `(a, b)` for the promoted type
of operands and numbers, a map of it, an element type, or `?` if it is not checked. `dtype or …` means
the argument `dtype`, if the call has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from spmdir.core import dtype as dt
from spmdir.core.dtype import DTYPES, DType
from spmdir.core.errors import RuleError
from spmdir.core.placement.call import Local
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.type_promotion import COMPLEX_F16, result_type

TABLE = Path(__file__).with_suffix(".txt")

KINDS = {kind: tuple(dtype for dtype in DTYPES.values() if dtype.kind == kind) for kind in ("float", "complex", "int")}
"""Word in the table → all element types of this kind."""


def _of_integers(integer_result: DType) -> Callable[[DType], DType]:
    """Return a map from integers and booleans to `integer_result`, and from other types to themselves."""
    return lambda dtype: dtype if dtype.is_inexact else integer_result


def _real(dtype: DType) -> DType:
    """Return the element type of the real part; `dtype` itself if it is not complex."""
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
"""Name of a map in the table → function from the promoted element type to that of the result."""

_NUMBERS = (int, float, complex, Local)

Named = Mapping[str, tuple[TensorMeta, ...]]
"""Tensor parameter → the operands that fill it."""


@attrs.frozen
class TypeSource:
    """The origin of the element type of a result: `map(names)`, or a fixed element type.

    Attributes:
        names: the operands and numbers that are promoted.
        map: a key of MAPS, applied to the promoted type.
        fixed: the element type, if it does not depend on operands.
        argument: the argument whose element type is used instead, if the call has it.
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
        """Return whether the element type is fixed, or the call has an operand or argument that it comes from."""
        names = (*self.names, self.argument or "")
        return self.fixed is not None or any(operands.get(name) or arguments.get(name) is not None for name in names)

    def evaluate(self, operands: Named, arguments: Mapping[str, Any]) -> DType | None:
        """Return the element type for a call; None if torch does not promote the operands.

        It is that of `argument` if the call has it, else `fixed`, else the map of the promoted type.
        """
        dtype = arguments.get(self.argument) if self.argument else None
        if isinstance(dtype, DType):
            return dtype
        if self.fixed is not None:
            return self.fixed
        tensors = [(meta.dtype, meta.rank) for name in self.names for meta in operands.get(name, ())]
        values = [arguments.get(name) for name in self.names]
        # The type depends only on the kinds of numbers, and a Local is an integer.
        numbers = [0 if isinstance(value, Local) else value for value in values if isinstance(value, _NUMBERS)]
        promoted = result_type(tensors, numbers)
        return None if promoted is None else MAPS[self.map](promoted)


@attrs.frozen
class AllowedTypes:
    """The element types that operand `name` may have.

    Attributes:
        name: the tensor parameter.
        types: the allowed element types.
        unless: an argument; calls that have it allow all element types.
    """

    name: str
    types: tuple[DType, ...]
    unless: str | None = None

    def __str__(self) -> str:
        kinds = [kind for kind, types in KINDS.items() if {*types} <= {*self.types}]
        single_types = [str(type_) for type_ in self.types if type_.kind not in kinds]
        return f"{self.name}: {' '.join([*kinds, *single_types])}{f' unless {self.unless}' if self.unless else ''}"


@attrs.frozen
class TypeSignature:
    """The element types of one op.

    Attributes:
        op: the name of the op.
        results: for each result, the allowed origins of its type; () if it is not checked.
        guard: (argument, its value as text), if the line is for such calls only.
        allowed: the operands that may have only some element types.
        same: groups of operands with equal element types.
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
        """Return whether the line is for calls with these arguments."""
        return self.guard is None or argument_text(arguments.get(self.guard[0])) == self.guard[1]

    def check(self, operands: Named, arguments: Mapping[str, Any], results: Sequence[DType | None]) -> None:
        """Raise RuleError if torch rejects the element types of operands, or if results have other element types.

        Args:
            results: the element type of each result; None for an absent one.
        """
        self.check_operands(operands, arguments)
        self.check_results(operands, arguments, results)

    def check_operands(self, operands: Named, arguments: Mapping[str, Any]) -> None:
        """Raise RuleError if an operand has a type that is not allowed, or operands that must be equal differ."""
        for allowed in self.allowed:
            if allowed.unless is not None and arguments.get(allowed.unless) is not None:
                continue
            for meta in operands.get(allowed.name, ()):
                if meta.numel and meta.dtype not in allowed.types:  # torch does not check empty tensors
                    expected = _either(allowed.types) + (f", or argument '{allowed.unless}'" if allowed.unless else "")
                    raise RuleError(f"operand '{allowed.name}' has element type {meta.dtype}; expected {expected}")
        for names in self.same:
            dtypes = dict.fromkeys((name, meta.dtype) for name in names for meta in operands.get(name, ()))
            if len({dtype for _, dtype in dtypes}) > 1:
                types = ", ".join(f"'{name}' has {dtype}" for name, dtype in dtypes)
                raise RuleError(
                    f"operands differ in element type: {types}; expected one type: convert with aten._to_copy"
                )

    def expected(self, index: int, operands: Named, arguments: Mapping[str, Any]) -> tuple[DType, ...]:
        """Return the element types that result `index` may have; () if it is not checked.

        Raises:
            RuleError: torch does not promote the operands.
        """
        sources = self.results[min(index, len(self.results) - 1)]  # a list has one entry for all its tensors
        if not all(source.is_known(operands, arguments) for source in sources):
            return ()  # an optional operand is absent
        types = [source.evaluate(operands, arguments) for source in sources]
        if None in types:
            operand_dtypes = ", ".join(str(meta.dtype) for name in sources[0].names for meta in operands.get(name, ()))
            raise RuleError(
                f"torch cannot promote the element types {operand_dtypes}; expected types that torch promotes: "
                "convert an operand with aten._to_copy"
            )
        return tuple(type_ for type_ in types if type_ is not None)

    def check_results(self, operands: Named, arguments: Mapping[str, Any], results: Sequence[DType | None]) -> None:
        """Raise RuleError if a result has an element type that the op does not return."""
        for index, dtype in enumerate(results):
            expected = self.expected(index, operands, arguments)
            if dtype is not None and expected and dtype not in expected:
                raise RuleError(f"result {index} has the element type {dtype}; expected {_either(expected)}")


def argument_text(value: Any) -> str:
    """Return the value of an argument as text, as in a guard: `none`, `true`, `false`, or its `str`."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _either(types: Sequence[Any]) -> str:
    """Return the distinct types as text, as in `i32, i64 or f32`."""
    *leading, last = dict.fromkeys(map(str, types))
    return f"{', '.join(leading)} or {last}" if leading else last


def parse(line: str) -> TypeSignature:
    """Parse a line of the table: `OP {GUARD} [CONSTRAINT; …] -> RESULT, …`.

    For example, `aten.softmax {dtype = none} [self: float; same self out] -> self` means:

    - `{dtype = none}`: the guard, an argument and its value.
    - `self: float`: the types that are allowed for operand self.
    - `same self out`: two operands of equal types.
    - `-> self`: the operand whose type the result has. `?` is a result that is not checked.
    """
    head, _, results = line.partition(" -> ")
    head, _, constraints = head.removesuffix("]").partition(" [")
    op, _, guard = head.removesuffix("}").partition(" {")
    argument, _, value = guard.partition(" = ")
    allowed: list[AllowedTypes] = []
    same: list[tuple[str, ...]] = []
    for constraint in constraints.split("; ") if constraints else ():
        name, colon, types = constraint.partition(": ")
        if colon:  # `index: i64 i32`
            allowed.append(_parse_allowed(name, types))
        else:  # `same self mat2`
            same.append(tuple(constraint.split(" ")[1:]))
    result_texts = _split_at_commas(results)
    sources = [tuple(map(_parse_source, result.split(" | "))) if result != "?" else () for result in result_texts]
    return TypeSignature(op, tuple(sources), (argument, value) if guard else None, tuple(allowed), tuple(same))


def _parse_allowed(name: str, text: str) -> AllowedTypes:
    """Parse the constraint on one operand: kinds and element types, then `unless ARGUMENT` if there is an exception."""
    types, _, unless = text.partition(" unless ")
    listed = {type_ for word in types.split(" ") for type_ in KINDS.get(word) or (DTYPES[word],)}
    return AllowedTypes(name, tuple(type_ for type_ in DTYPES.values() if type_ in listed), unless or None)


def _split_at_commas(text: str) -> list[str]:
    """Split a text at `, ` outside of parentheses: `a, (b, c)` has two parts."""
    parts: list[str] = []
    depth = 0
    for piece in text.split(", "):
        if depth:
            parts[-1] += f", {piece}"
        else:
            parts.append(piece)
        depth += piece.count("(") - piece.count(")")
    return parts


def _parse_source(text: str) -> TypeSource:
    """Parse the origin of one result type; the inverse of `str`.

    `f32` is a fixed type. `self` is the type of operand self, and `(self, other)` the promoted type of two operands.
    `dtype or sum(self)` is the argument dtype if the call has it, else the map `sum` of the type of self.
    """
    argument, is_given, source = text.rpartition(" or ")
    override = argument if is_given else None
    if source in DTYPES:
        return TypeSource(fixed=DTYPES[source], argument=override)
    name, parenthesis, inside = source.removesuffix(")").partition("(")
    if not parenthesis:
        return TypeSource((source,), argument=override)
    return TypeSource(tuple(inside.split(", ")) if inside else (), name, argument=override)


@cache
def signatures(op: str) -> tuple[TypeSignature, ...]:
    """Return the lines for an op; () if the table has none."""
    return tuple(map(parse, _lines().get(op, ())))


def signature(op: str, arguments: Mapping[str, Any]) -> TypeSignature | None:
    """Return the line for a call with these arguments; None if there is none."""
    return next((line for line in signatures(op) if line.fits(arguments)), None)


@cache
def _lines() -> dict[str, list[str]]:
    """Return op → its lines of the table; empty until `make op-table` has written the table."""
    lines_of_op: dict[str, list[str]] = {}
    lines = TABLE.read_text().splitlines() if TABLE.exists() else []
    for line in lines:
        lines_of_op.setdefault(line.partition(" ")[0], []).append(line)
    return lines_of_op
