"""The functions that expressions in rules may call.

The docstring of a function begins with its call in a rule. The arguments of the call are names: f of a factor or of
several, x of a tensor, xs of a list of tensors or numbers, a of a literal argument. `scope` has their values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from spmdir.core.causal_blocks import PRECEDENCE
from spmdir.core.dtype import BF16, F8E4M3FN, F16, I64, DType
from spmdir.core.errors import RuleError
from spmdir.rules.language.local_functions import (
    around,
    begin,
    beyond,
    both,
    column,
    inner,
    irregular,
    local_index,
    margins,
    parts,
    pick,
    position,
    positions,
    put,
    reaches,
    shard_end,
    since,
    size,
    tail,
    triangle,
    until,
    upto,
)
from spmdir.rules.language.promotion import is_finite, sums_exactly, widened
from spmdir.rules.language.scope import Scope


def count(scope: Scope, *references: str) -> int:
    """count(f, …): the global number of elements along these factors."""
    return math.prod(shard.extent for reference in references for shard in scope.factors(reference))


def root(scope: Scope, reference: str) -> float:
    """root(f): the square root of `count(f)`."""
    return math.sqrt(count(scope, reference))


def dims(scope: Scope, tensor: str, *references: str) -> tuple[int, ...]:
    """dims(x, f, …): the dimensions of tensor x that consist of these factors."""
    return scope.dims(tensor, references)


def others(scope: Scope, tensor: str, *references: str) -> tuple[int, ...]:
    """others(x, f, …): the dimensions of tensor x that `dims` does not return."""
    factor_dims = scope.dims(tensor, references)
    return tuple(dim for dim in range(scope.operand(tensor).rank) if dim not in factor_dims)


def along(scope: Scope, tensor: str, *references: str) -> tuple[int, ...]:
    """along(x, f, …): a shape that broadcasts against x: the sizes of x along these factors, 1 elsewhere."""
    factor_dims = scope.dims(tensor, references)
    return tuple(extent if dim in factor_dims else 1 for dim, extent in enumerate(scope.operand(tensor).shape))


def ones(scope: Scope, name: str, *argument: str) -> tuple[int, ...]:
    """ones(x), ones(x, dim): the dimensions of x with global size 1, among those that argument dim lists."""
    shape = scope.operand(name).shape
    listed_dims: Any = scope.argument(argument[0]) if argument else tuple(range(len(shape)))
    if not isinstance(listed_dims, tuple):
        listed_dims = (listed_dims,)
    return tuple(dim for dim in listed_dims if shape[dim] == 1)


def given(scope: Scope, name: str) -> bool:
    """given(x): true if the call passes tensor x."""
    return bool(scope.binding.operands(name))


def length(scope: Scope, name: str) -> int:
    """length(xs): the number of tensors or numbers in the list xs."""
    return len(_listed(scope, name))


def lengths(scope: Scope, name: str, argument: str) -> tuple[int, ...]:
    """lengths(xs, dim): the sizes of the tensors in the list xs along the dimension that argument dim names."""
    return tuple(shape[scope.argument(argument)] for shape in _listed(scope, name))


def equal(scope: Scope, name: str) -> bool:
    """equal(xs): true if all tensors in the list xs have the same shape, or if all numbers in the list are equal."""
    return len(set(_listed(scope, name))) == 1


def chunked(scope: Scope, reference: str, name: str) -> tuple[int, ...]:
    """chunked(f, a): the sizes of the at most a chunks into which torch.chunk splits f; if f is empty, a times 0."""
    extent, chunk_count = count(scope, reference), scope.argument(name)
    if not extent:
        return (0,) * chunk_count
    return split(scope, reference, -(-extent // chunk_count))


def split(scope: Scope, reference: str, argument: str | int) -> tuple[int, ...]:
    """split(f, a): the sizes of the parts into which torch.split splits f: each part has a elements, and the last part
    the remaining elements."""
    extent = count(scope, reference)
    size = scope.argument(argument) if isinstance(argument, str) else argument  # a number in calls by `chunked`
    return tuple(min(size, extent - start) for start in range(0, extent, size)) if extent else (0,)


def sections(scope: Scope, reference: str, name: str) -> tuple[int, ...]:
    """sections(f, a): the sizes of the parts into which torch.tensor_split splits f; a is the number of parts, or the
    list of indices at which f is split."""
    extent, count_or_indices = count(scope, reference), scope.argument(name)
    if isinstance(count_or_indices, int):
        number = count_or_indices
        return tuple(extent // number + (index < extent % number) for index in range(number))
    # `slice` counts negative indices from the end, and clamps indices beyond it.
    bounds = [slice(None, index).indices(extent)[1] for index in count_or_indices]
    return tuple(max(0, end - start) for start, end in zip([0, *bounds], [*bounds, extent], strict=True))


def _listed(scope: Scope, name: str) -> tuple[Any, ...]:
    """Return the numbers of argument `name`, or the shapes of the tensors in the list `name`."""
    numbers = scope.argument(name)
    if numbers is not None:
        return numbers if isinstance(numbers, tuple) else (numbers,)
    return tuple(scope.operands[index].shape for index in scope.binding.operands(name))


def rank(scope: Scope, name: str) -> int:
    """rank(x): the number of dimensions of x."""
    return scope.meta(name).rank


def shape(scope: Scope, name: str) -> tuple[int, ...]:
    """shape(x), shape(result): the sizes of the tensor."""
    meta = scope.tensor(name)
    assert meta is not None
    return meta.shape


def elements(scope: Scope, name: str) -> int:
    """elements(x): the product of the sizes of x."""
    return math.prod(scope.meta(name).shape)


def end_size(index: int) -> Callable[[Scope, str], int]:
    """first(x), last(x): the first or last size of x; 1 if x has no dimensions."""
    return lambda scope, name: scope.meta(name).shape[index] if scope.meta(name).rank else 1


def dtype(scope: Scope, name: str) -> DType:
    """dtype(x), dtype(result): the element type of the tensor."""
    meta = scope.tensor(name)
    assert meta is not None
    return meta.dtype


def of_kind(*kinds: str) -> Callable[[Scope, str], bool]:
    """floating(x), integral(x), also of `result`: true if the element type of x is of this kind; booleans count as
    integral."""

    def has_kind(scope: Scope, name: str) -> bool:
        meta = scope.tensor(name)  # None for an absent result, which has no kind
        return meta is not None and meta.dtype.kind in kinds

    return has_kind


def half(scope: Scope, name: str) -> bool:
    """half(x): true if the element type of x is f16 or bf16."""
    return scope.meta(name).dtype in (F16, BF16)


def wide(scope: Scope, name: str) -> DType:
    """wide(x): the element type for sums of x: f32 for f16 and bf16, else the type of x."""
    return widened(scope.meta(name).dtype)


def exact_cast(scope: Scope, name: str) -> bool:
    """exact_cast(x): true if casting x to the result's type before a sum does not change the sum."""
    source, result = scope.meta(name).dtype, scope.result
    return result is not None and not source.is_bool and sums_exactly(source, result.dtype)


def ordered_cast(scope: Scope, name: str) -> bool:
    """ordered_cast(x): true if casting x to the result's type does not change a maximum: no number wraps around or
    becomes NaN."""
    result = scope.result
    if result is None:
        return False
    if scope.meta(name).dtype == result.dtype:
        return True
    # f8E4M3FN has no infinity, so torch converts larger values to NaN or to its largest number.
    return result.dtype.is_float and result.dtype != F8E4M3FN


def finite(scope: Scope, name: str) -> bool:
    """finite(a): true if a is a number, not a tensor, and is finite in the result's type."""
    value, result = scope.argument(name), scope.result
    return isinstance(value, (int, float)) and result is not None and is_finite(value, result.dtype)


def positive(scope: Scope, name: str) -> bool:
    """positive(a): true if a is a finite number above 0."""
    return finite(scope, name) and scope.argument(name) > 0


def scales(scope: Scope, name: str) -> bool:
    """scales(a): true if a is none or a finite number above 0, so that multiplication by a keeps the order of
    values."""
    return scope.argument(name) is None or positive(scope, name)


def negative(scope: Scope, name: str) -> bool:
    """negative(a): true if a is a finite number below 0."""
    return finite(scope, name) and scope.argument(name) < 0


def invertible(scope: Scope, name: str) -> bool:
    """invertible(a): true if a is a tensor, or a number whose inverse is finite in the result's type."""
    value, result = scope.argument(name), scope.result
    if value is None:  # a tensor
        return True
    return value != 0 and result is not None and is_finite(1 / value, result.dtype)


def truncated(scope: Scope, name: str) -> int:
    """truncated(a): the integer part of the number a."""
    return math.trunc(scope.argument(name))


def volume(scope: Scope, name: str) -> int:
    """volume(a): the product of the numbers in argument a."""
    listed = scope.argument(name)
    return math.prod(listed) if isinstance(listed, tuple) else listed


def steps(scope: Scope, *names: str) -> int:
    """steps(end), steps(start, end), steps(start, end, step): the number of elements of torch.arange."""
    values: list[Any] = [scope.argument(name) for name in names]
    # Without `start`, the range begins at 0; without `step`, the step is 1.
    start, end, step = (0, values[0], 1) if len(values) == 1 else [*values, 1][:3]
    are_finite = all(isinstance(value, (int, float)) and math.isfinite(value) for value in (start, end, step))
    if not are_finite or not step:
        raise RuleError(
            f"there is no range from {start} to {end} in steps of {step}; "
            "expected finite numbers, and a step that is not 0"
        )
    if scope.argument("dtype") == I64:  # only for i64, torch truncates the arguments before it counts
        # `or 1` avoids a division by zero if the step is a fraction.
        start, end, step = int(start), int(end), int(step) or 1
    return max(0, math.ceil((end - start) / step))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    # Factors and dimensions, over all ranks.
    "count": count,
    "root": root,
    "dims": dims,
    "others": others,
    "along": along,
    "ones": ones,
    # Tensors.
    "given": given,
    "length": length,
    "lengths": lengths,
    "equal": equal,
    "rank": rank,
    "shape": shape,
    "elements": elements,
    "first": end_size(0),
    "last": end_size(-1),
    # Element types.
    "dtype": dtype,
    "floating": of_kind("float"),
    "integral": of_kind("int", "bool"),
    "half": half,
    "wide": wide,
    "exact_cast": exact_cast,
    "ordered_cast": ordered_cast,
    # Numbers.
    "finite": finite,
    "positive": positive,
    "scales": scales,
    "negative": negative,
    "invertible": invertible,
    "truncated": truncated,
    "volume": volume,
    "steps": steps,
    "chunked": chunked,
    "split": split,
    "sections": sections,
    # In a local form, for one rank.
    "size": size,
    "offset": shard_end("offset"),
    "end": shard_end("end"),
    "positions": positions,
    "local_index": local_index,
    "both": both,
    "since": since,
    "upto": upto,
    "beyond": beyond,
    "reaches": reaches,
    "triangle": triangle,
    "irregular": irregular,
    "parts": parts,
    "position": position,
    "column": column,
    "pick": pick,
    "put": put,
    "tail": tail,
    "begin": begin,
    "until": until,
    "margins": margins,
    "around": around,
    "inner": inner,
}
"""Name in a rule → function from (scope, names) to a value. The docstring shows how a rule calls it."""

SINGLE = (
    "size",
    "offset",
    "end",
    "positions",
    "local_index",
    *PRECEDENCE,
    "position",
    "column",
    "pick",
    "put",
    "around",
)
"""The functions of one sharded dimension. If their argument names several, only one of these may be sharded."""

OF_ONE_RANGE = ("offset", "end", "margins")
"""The functions that require a shard of one range of positions."""
