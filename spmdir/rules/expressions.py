"""Values of the small expressions in rules: conditions, extents, and the arguments of rewrites."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from spmdir.call import DTYPE_BYTES, DType, Local, TensorMeta
from spmdir.errors import RuleError
from spmdir.rules.binding import Binding
from spmdir.rules.dtypes import LARGEST, sums_exactly
from spmdir.rules.syntax import Binary, Condition, Constant, Expression, Function, Name, Sequence

ELEMENT_TYPES = frozenset(DTYPE_BYTES)


@attrs.frozen
class Scope:
    """What an expression may look at.

    Attributes:
        binding, operands, results: of the call.
        factors: reference → (size, the axes that divide it, major first) of the factors it means.
        dims: (tensor, references) → the dimensions of the tensor that these factors make up.
        inner: the padding that a local form leaves to the op, where borders are fetched; None where none are.
        names, meta_of: values that statements before it named, and the types of these.
    """

    binding: Binding
    operands: tuple[TensorMeta, ...]
    results: tuple[TensorMeta | None, ...]
    factors: Callable[[str], tuple[tuple[int, tuple[str, ...]], ...]]
    dims: Callable[[str, tuple[str, ...]], tuple[int, ...]]
    inner: Callable[[], tuple[int, ...] | None] = lambda: None
    names: Mapping[str, Any] = {}
    meta_of: Callable[[Any], TensorMeta] | None = None

    def meta(self, name: str) -> TensorMeta:
        if name in self.names and self.meta_of:
            return self.meta_of(self.names[name])
        return self.operands[self.binding.operands(name)[0]]


def _count(scope: Scope, *references: str) -> int:
    return math.prod(size for reference in references for size, _ in scope.factors(reference))


def _root(scope: Scope, reference: str) -> float:
    return math.sqrt(_count(scope, reference))


def _piece(kind: str) -> Callable[[Scope, str], int | Local]:
    def value(scope: Scope, reference: str) -> int | Local:
        found = scope.factors(reference)
        if len(found) != 1:
            raise RuleError(f"{kind}({reference}) needs one factor, found {len(found)}")
        ((size, axes),) = found
        return Local(kind, size, axes) if axes else (0 if kind == "offset" else size)

    return value


def _size(scope: Scope, *references: str) -> int | Local:
    """The length of a rank's piece of a dimension that is the product of these factors, major first."""
    found = [_piece("size")(scope, reference) for reference in references]
    extent = math.prod(piece.extent if isinstance(piece, Local) else piece for piece in found)
    axes = tuple(axis for piece in found if isinstance(piece, Local) for axis in piece.axes)
    return Local("size", extent, axes) if axes else extent


def _dims(scope: Scope, tensor: str, *references: str) -> tuple[int, ...]:
    return scope.dims(tensor, references)


def _others(scope: Scope, tensor: str, *references: str) -> tuple[int, ...]:
    chosen, shape = scope.dims(tensor, references), scope.operands[scope.binding.operands(tensor)[0]].shape
    return tuple(d for d in range(len(shape)) if d not in chosen)


def _along(scope: Scope, tensor: str, *references: str) -> tuple[int, ...]:
    """A shape that broadcasts against the tensor: its own along these factors, 1 elsewhere."""
    chosen, shape = scope.dims(tensor, references), scope.operands[scope.binding.operands(tensor)[0]].shape
    return tuple(size if d in chosen else 1 for d, size in enumerate(shape))


def _column(scope: Scope, tensor: str, reference: str) -> tuple[int, ...]:
    """The sizes that lay a vector along this dimension of the tensor, for a view."""
    chosen = scope.dims(tensor, (reference,))
    return tuple(-1 if d in chosen else 1 for d in range(scope.meta(tensor).rank))


def _position(scope: Scope, tensor: str, reference: str) -> int:
    found = scope.dims(tensor, (reference,))
    if len(found) != 1:
        raise RuleError(f"position({tensor}, {reference}) needs one dimension, found {len(found)}")
    return found[0]


def _entry(scope: Scope, tensors: str, reference: str) -> int:
    """Which of the tensors in a list, one for each of its dimensions, belongs to the divided dimension."""
    return _position(scope, "self", reference)


def _pick(scope: Scope, tensors: str, reference: str) -> Any:
    return scope.names[tensors][_entry(scope, tensors, reference)]


def _put(scope: Scope, tensors: str, reference: str, new: str) -> tuple[Any, ...]:
    values = list(scope.names[tensors])
    values[_entry(scope, tensors, reference)] = scope.names[new]
    return tuple(values)


def _tail(scope: Scope, tensor: str, indices: str) -> tuple[int, ...]:
    """The sizes into which the last dimension of an index unfolds, to lie in the indexed tensor as the index does."""
    at = [d for d, index in enumerate(scope.names[indices]) if index is not None]
    adjacent = at[-1] - at[0] == len(at) - 1
    return (-1, *(1,) * (scope.meta(tensor).rank - (at[-1] + 1 if adjacent else len(at))))


def _begin(scope: Scope, name: str, reference: str) -> int:
    return _cut(scope, name, reference, 0)


def _until(scope: Scope, name: str, reference: str) -> int:
    return _cut(scope, name, reference, _count(scope, reference))


def _cut(scope: Scope, name: str, reference: str, none: int) -> int:
    """Where argument `name` cuts a dimension, counted from 0, as Python's slices do."""
    value, size = scope.binding.arguments.get(name), _count(scope, reference)
    if value is None:
        return none
    assert isinstance(value, int)
    return min(max(value + size if value < 0 else value, 0), size)


def _margins(scope: Scope, name: str, tensor: str, reference: str) -> tuple[int | Local, ...]:
    """The padding `name`, pairs from the last dimension on, around this rank's piece of the tensor."""
    pad: list[Any] = list(scope.binding.arguments[name])  # type: ignore[arg-type]
    last = scope.meta(tensor).rank - 1
    for dim, (size, axes) in zip(scope.dims(tensor, (reference,)), scope.factors(reference), strict=True):
        if axes:
            low = 2 * (last - dim)
            pad[low] = Local("offset", size, axes, 1, pad[low])
            pad[low + 1] = Local("end", size, axes, -1, size + pad[low + 1])
    return tuple(pad)


def _volume(scope: Scope, name: str) -> int:
    listed: Any = scope.binding.arguments.get(name)
    return math.prod(listed) if isinstance(listed, tuple) else listed


def _inner(scope: Scope, name: str) -> Any:
    found = scope.inner()
    return scope.binding.arguments.get(name) if found is None else found


def _around(scope: Scope, tensor: str, reference: str, low: str, high: str) -> tuple[int | Local, ...]:
    rank, at = scope.meta(tensor).rank, _position(scope, tensor, reference)
    return (*(0,) * (2 * (rank - 1 - at)), scope.names[low], scope.names[high])


def _given(scope: Scope, name: str) -> bool:
    return bool(scope.binding.operands(name))


def _half(scope: Scope, name: str) -> bool:
    return scope.meta(name).dtype in ("f16", "bf16")


def _dtype(scope: Scope, name: str) -> DType:
    meta = scope.results[0] if name == "result" else scope.meta(name)
    assert meta is not None
    return DType(meta.dtype)


def _floating(scope: Scope, name: str) -> bool:
    meta = scope.results[0] if name == "result" else scope.meta(name)
    return meta is not None and meta.dtype[0] in "fb"


def _exact_cast(scope: Scope, name: str) -> bool:
    """No sum comes out otherwise for being cast before it is taken."""
    source, result = scope.meta(name).dtype, scope.results[0]
    return result is not None and source != "i1" and sums_exactly(source, result.dtype)


def _ordered_cast(scope: Scope, name: str) -> bool:
    """No maximum comes out otherwise for being cast before it is taken: nothing wraps, and nothing becomes NaN."""
    result = scope.results[0]
    if result is None or scope.meta(name).dtype == result.dtype:
        return result is not None
    # It has no infinity, so that what is too large becomes its largest number or NaN, as torch's version has it.
    return result.dtype[0] in "fb" and result.dtype != "f8E4M3FN"


def _finite(scope: Scope, name: str) -> bool:
    value, result = scope.binding.arguments.get(name), scope.results[0]
    return isinstance(value, (int, float)) and result is not None and abs(value) < LARGEST.get(result.dtype, math.inf)


def _positive(scope: Scope, name: str) -> bool:
    value: Any = scope.binding.arguments.get(name)
    return _finite(scope, name) and value > 0


def _negative(scope: Scope, name: str) -> bool:
    value: Any = scope.binding.arguments.get(name)
    return _finite(scope, name) and value < 0


def _rank(scope: Scope, name: str) -> int:
    return scope.meta(name).rank


def _shape(scope: Scope, name: str) -> tuple[int, ...]:
    meta = scope.results[0] if name == "result" else scope.meta(name)
    assert meta is not None
    return meta.shape


def _elements(scope: Scope, name: str) -> int:
    return math.prod(scope.meta(name).shape)


def _end_size(position: int) -> Callable[[Scope, str], int]:
    return lambda scope, name: scope.meta(name).shape[position] if scope.meta(name).rank else 1


def _integral(scope: Scope, name: str) -> bool:
    meta = scope.results[0] if name == "result" else scope.meta(name)
    return meta is not None and meta.dtype[0] in "iu"


def _steps(scope: Scope, *names: str) -> int:
    """The elements of a range: `steps(end)`, `steps(start, end)` or `steps(start, end, step)`."""
    values: list[Any] = [scope.binding.arguments.get(name) for name in names]
    start, end, step = (0, values[0], 1) if len(values) == 1 else [*values, 1][:3]
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in (start, end, step)) or not step:
        raise RuleError(f"there is no range from {start} to {end} in steps of {step}")
    return max(0, math.ceil((end - start) / step))


def _ones(scope: Scope, name: str, *argument: str) -> tuple[int, ...]:
    """The dimensions of size 1 over all ranks, among those that a literal argument lists if one is named."""
    shape = scope.operands[scope.binding.operands(name)[0]].shape
    given: Any = scope.binding.arguments.get(argument[0]) if argument else tuple(range(len(shape)))
    return tuple(d for d in (given if isinstance(given, tuple) else (given,)) if shape[d] == 1)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "count": _count,
    "root": _root,
    "size": _size,
    "offset": _piece("offset"),
    "end": _piece("end"),
    "dims": _dims,
    "others": _others,
    "column": _column,
    "position": _position,
    "pick": _pick,
    "put": _put,
    "tail": _tail,
    "begin": _begin,
    "until": _until,
    "margins": _margins,
    "around": _around,
    "along": _along,
    "given": _given,
    "inner": _inner,
    "volume": _volume,
    "half": _half,
    "dtype": _dtype,
    "floating": _floating,
    "exact_cast": _exact_cast,
    "ordered_cast": _ordered_cast,
    "finite": _finite,
    "positive": _positive,
    "negative": _negative,
    "integral": _integral,
    "ones": _ones,
    "rank": _rank,
    "elements": _elements,
    "first": _end_size(0),
    "last": _end_size(-1),
    "shape": _shape,
    "steps": _steps,
}
"""Function in a rule → (scope, names) → value.

count(f, …): elements along f … over all ranks. dims(x, f, …): the dimensions of tensor x that f … make up; others(x,
f, …): the rest. along(x, f, …): sizes of x in these dimensions, 1 in the rest. size(f, …), offset(f): of this rank's
piece. inner(padding): what of it is left where a halo has the rest. volume(sizes): their product. given(x): tensor x
is present. half(x): x is f16 or bf16. dtype(x), floating(x), integral(x): element type of x or of `result`. rank(x),
shape(x), elements(x); first(x), last(x): its first and last size. exact_cast(x), ordered_cast(x): a sum, or a
maximum, of x may be taken after the cast to the result. finite(x), positive(x), negative(x): x is a number, not a
tensor, and finite in the result's type. ones(x), ones(x, dim): dimensions of size 1 over all ranks. steps(end),
steps(start, end), steps(start, end, step): elements of a range. root(f): the square root of count(f).
In a local form, names of several dimensions mean those that are divided: end(f): the offset behind this rank's piece.
position(x, f): the dimension of tensor x; column(x, f): sizes that lay a vector along it. begin(a, f), until(a, f):
where argument a cuts it. pick(xs, f): the tensor for this dimension of self in list xs; put(xs, f, y): with y in its
stead. tail(x, xs): sizes into which an index among xs unfolds to lie along x[xs]. margins(pad, x, f): the padding
around this rank's piece of x; around(x, f, a, b): padding by a and b along f alone.
"""

SINGLE = ("size", "offset", "end", "position", "column", "pick", "put", "around")
"""The functions that speak of one divided dimension: a local form with them divides one of several at a time."""


def _ratio(left: Any, right: Any) -> float:
    return left / right if right else math.inf


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _ratio, "==": operator.eq,
    "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
    "and": lambda a, b: a and b,
}  # fmt: skip


def _local_arithmetic(symbol: str, left: Any, right: Any) -> Local:
    if symbol == "*" and isinstance(left, int):
        left, right = right, left
    if symbol in "+-" and isinstance(left, int) and isinstance(right, Local):
        sign = 1 if symbol == "+" else -1
        return attrs.evolve(right, times=sign * right.times, plus=left + sign * right.plus)
    if isinstance(left, Local) and isinstance(right, int):
        if symbol == "*":
            return attrs.evolve(left, times=left.times * right, plus=left.plus * right)
        if symbol in "+-":
            return attrs.evolve(left, plus=left.plus + (right if symbol == "+" else -right))
    raise RuleError(f"a rank's own integers cannot be combined as {left} {symbol} {right}")


def evaluate(expression: Expression, scope: Scope) -> Any:
    """The value of `expression`, which calls no op.

    Raises:
        RuleError: it combines the integers of ranks in a way that no Local can hold.
    """
    if isinstance(expression, Constant):
        return expression.value
    if isinstance(expression, Sequence):
        return tuple(evaluate(item, scope) for item in expression.items)
    if isinstance(expression, Function):
        return FUNCTIONS[expression.name](scope, *expression.arguments)
    if isinstance(expression, Name):
        if expression.name in scope.names:
            return scope.names[expression.name]
        default = DType(expression.name) if expression.name in ELEMENT_TYPES else None
        return scope.binding.arguments.get(expression.name, default)
    assert isinstance(expression, Binary)
    left = evaluate(expression.left, scope)
    if expression.operator == "and" and not left:
        return left
    right = evaluate(expression.right, scope)
    if isinstance(left, Local) or isinstance(right, Local):
        return _local_arithmetic(expression.operator, left, right)
    try:
        return OPERATORS[expression.operator](left, right)
    except TypeError:
        raise RuleError(f"no value for {left!r} {expression.operator} {right!r}", expression.location) from None


def holds(condition: Condition | None, scope: Scope) -> bool:
    """Whether `condition` is true; none is."""
    return condition is None or bool(evaluate(condition.expression, scope)) != condition.negated
