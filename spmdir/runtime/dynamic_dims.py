"""The dynamic dimensions of calls: those that `dynamic_shapes` declares, with their names in errors.

torch traces a dynamic dimension as if its size were neither 0 nor 1: the trace has no branch for these sizes and no
broadcasting. So if a dynamic dimension has size 0 or 1 in a call, this call gets a separate program. It is traced with
the size as a number:

    dynamic_shapes={"x": {0: Dim("batch"), 1: Dim("length")}}
    call with x of 4×1   →   traced with {"x": {0: Dim("batch")}}, where the length is 1
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
from torch import Tensor

from spmdir.core.errors import ShardingError, did_you_mean, shown

SPECIAL = (0, 1)
"""The sizes that need a separate trace."""

Fixed = tuple[tuple[str, int, int], ...]
"""(argument, dimension, size) of the dynamic dimensions that are numbers in a program."""


@attrs.frozen
class DynamicDim:
    """A dynamic dimension in one call.

    Attributes:
        argument: the name of the tensor: the argument of the forward, and the keys inside it.
        dim: the dimension of the tensor.
        size: its size in the call.
        spec: its entry in `dynamic_shapes`: a Dim, an expression such as `2*batch`, or a hint such as Dim.AUTO.
    """

    argument: str
    dim: int
    size: int
    spec: Any

    def __str__(self) -> str:
        name = getattr(self.spec, "__name__", None)
        return f"dimension {self.dim} of argument '{self.argument}'" + (f" (Dim '{name}')" if name else "")

    @property
    def symbol(self) -> object:
        """A key that is equal for dimensions of one Dim: its name, or (argument, dimension) if the spec has no Dim.

        The `root` of an expression such as `2*batch` is the Dim `batch`.
        """
        return getattr(getattr(self.spec, "root", self.spec), "__name__", (self.argument, self.dim))

    @property
    def value(self) -> int:
        """The size of the Dim: for `2*batch`, the size of batch.

        Raises:
            ShardingError: no integer value of the Dim results in this size.
        """
        function = getattr(self.spec, "fn", None)
        if function is None:
            return self.size
        # The function is linear: for `2*batch + 1`, function(0) is 1 and the slope is 2.
        constant = function(0)
        slope = function(1) - constant
        value, remainder = divmod(self.size - constant, slope)
        if remainder:
            raise ShardingError(f"{self} is {self.size}; expected a size of the form in dynamic_shapes")
        return value

    def check_range(self) -> None:
        """Raise ShardingError if the size is not in the range of the Dim."""
        low, high = getattr(self.spec, "min", None), getattr(self.spec, "max", None)
        if (low is not None and self.size < low) or (high is not None and self.size > high):
            limits = f"at least {low}" if high is None or not isinstance(high, int) else f"{low or 0} to {high}"
            raise ShardingError(f"{self} is {self.size}; expected {limits}, the range in dynamic_shapes")


def is_dynamic(spec: Any) -> bool:
    """Return whether a dimension with `spec` may have other sizes."""
    return spec is not None and type(spec) is not int and getattr(getattr(spec, "type", None), "name", "") != "STATIC"


def sizes_by_argument(dynamic_shapes: Any, arguments: Iterable[str]) -> Mapping[str, Any]:
    """Return argument name → its entry in `dynamic_shapes`."""
    if dynamic_shapes is None or isinstance(dynamic_shapes, Mapping):
        return dynamic_shapes or {}
    return dict(zip(arguments, dynamic_shapes, strict=False))


def check_dims(dynamic_shapes: Any, arguments: Mapping[str, Any]) -> None:
    """Raise ShardingError if `dynamic_shapes` names an argument or a dimension that the example inputs do not have."""
    sizes = sizes_by_argument(dynamic_shapes, arguments)
    # The forward may collect keyword arguments in a dict: `dynamic_shapes` may name them directly.
    keyword_names = {key for value in arguments.values() if isinstance(value, Mapping) for key in value}
    for name in sizes:
        if name not in arguments and name not in keyword_names:
            raise ShardingError(
                f"dynamic_shapes names the argument {shown(name)}; expected one of {', '.join(arguments)}"
                f"{did_you_mean(str(name), arguments)}"
            )
    is_flat = not any(isinstance(value, (list, tuple)) for value in arguments.values())  # no *args
    if is_flat and not isinstance(dynamic_shapes, Mapping) and len(dynamic_shapes or ()) > len(arguments):
        raise ShardingError(
            f"dynamic_shapes has {len(dynamic_shapes)} entries; expected one for each of {', '.join(arguments)}"
        )
    for name, value in arguments.items():
        _check_dims(sizes.get(name), value, name)


def _check_dims(sizes: Any, value: Any, name: str) -> None:
    """Check the entry `sizes` of `dynamic_shapes` for one argument: for a container, each of its items."""
    if not isinstance(value, Tensor):
        for key, (item_sizes, item) in _items(sizes, value).items():
            _check_dims(item_sizes, item, f"{name}_{key}")
        return
    if sizes is not None and not isinstance(sizes, (Mapping, list, tuple)):
        raise ShardingError(
            f"dynamic_shapes has {shown(sizes)} for argument '{name}'; expected its dimensions, as in {{0: Dim.AUTO}}"
        )
    for dim in _by_dimension(sizes):
        if type(dim) is not int or not 0 <= dim < value.dim():
            dims = f"0 to {value.dim() - 1}" if value.dim() else "none"
            raise ShardingError(
                f"dynamic_shapes names dimension {shown(dim)} of argument '{name}', which has {value.dim()} "
                f"dimensions; expected {dims}"
            )


def find_dynamic_dims(sizes: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[DynamicDim]:
    """Return the dynamic dimensions of the tensors of a call.

    Args:
        sizes: `dynamic_shapes` by argument.
    """
    return [dim for name, value in arguments.items() for dim in _iterate_dynamic_dims(sizes.get(name), value, name)]


def _iterate_dynamic_dims(sizes: Any, value: Any, name: str) -> Iterator[DynamicDim]:
    """Yield the dynamic dimensions of one argument; in a container, those of its tensors."""
    if isinstance(value, Tensor):
        for dim, spec in _by_dimension(sizes).items():
            if is_dynamic(spec) and isinstance(dim, int) and dim < value.dim():
                yield DynamicDim(name, dim, int(value.shape[dim]), spec)
    else:
        for key, (item_sizes, item) in _items(sizes, value).items():
            yield from _iterate_dynamic_dims(item_sizes, item, f"{name}_{key}")


def fixed_dims(dims: Iterable[DynamicDim]) -> Fixed:
    """Return the dynamic dimensions that are numbers in the program of a call: all of a Dim whose size is 0 or 1.

    For `2*batch` with the size 2, batch is 1. So all dimensions with `batch` in their spec are numbers.

    Raises:
        ShardingError: a size is out of its range, or dimensions of one Dim have different sizes, one of them 0 or 1.
    """
    all_dims = list(dims)
    fixed_dim_of_symbol: dict[object, DynamicDim] = {}
    for dim in all_dims:
        dim.check_range()
        if dim.value in SPECIAL or dim.size in SPECIAL:
            fixed_dim_of_symbol.setdefault(dim.symbol, dim)
    for dim in all_dims:
        reference = fixed_dim_of_symbol.get(dim.symbol, dim)
        if dim.value != reference.value:
            raise ShardingError(
                f"{dim} is {dim.size} where {reference} is {reference.size}; expected one size for one Dim"
            )
    return tuple((dim.argument, dim.dim, dim.size) for dim in all_dims if dim.symbol in fixed_dim_of_symbol)


def drop_fixed_dims(sizes: Mapping[str, Any], arguments: Mapping[str, Any], fixed: Fixed) -> dict[str, Any] | None:
    """Return `dynamic_shapes` by argument, without the dimensions in `fixed`; None if no dimension is left open.

    Args:
        sizes: `dynamic_shapes` by argument.
        arguments: the arguments of a call. Their structure may differ from that in `sizes`.
        fixed: the dimensions to leave out.
    """
    fixed_keys = {(argument, dim) for argument, dim, _ in fixed}
    keys = {(dynamic_dim.argument, dynamic_dim.dim) for dynamic_dim in find_dynamic_dims(sizes, arguments)}
    if keys <= fixed_keys:
        return None
    return {name: _drop_fixed(sizes.get(name), value, name, fixed_keys) for name, value in arguments.items()}


def _drop_fixed(sizes: Any, value: Any, name: str, fixed_keys: set[tuple[str, int]]) -> Any:
    """Return the entry of one argument in `dynamic_shapes` without fixed dimensions, in the structure of `value`.

    Args:
        fixed_keys: (argument, dimension) of the dimensions to leave out.
    """
    if isinstance(value, Tensor):
        if sizes is None:
            return None
        return {dim: spec for dim, spec in _by_dimension(sizes).items() if (name, dim) not in fixed_keys}
    entries = {}
    for key, (item_sizes, item) in _items(sizes, value).items():
        entries[key] = _drop_fixed(item_sizes, item, f"{name}_{key}", fixed_keys)
    if isinstance(value, Mapping):
        return entries
    construct: Any = getattr(type(value), "_make", type(value))  # `_make` of a named tuple
    return construct(entries.values()) if isinstance(value, (list, tuple)) else None


def _by_dimension(sizes: Any) -> dict[Any, Any]:
    """Return dimension → its entry, from the dict or list that `dynamic_shapes` has for a tensor."""
    return dict(sizes) if isinstance(sizes, Mapping) else dict(enumerate(sizes or ()))


def _items(sizes: Any, value: Any) -> dict[Any, tuple[Any, Any]]:
    """Return key → (entry of `sizes`, item) of a container; the entry is None if the structures differ.

    The sizes [{0: batch}, None] of the value [x, y] give {0: ({0: batch}, x), 1: (None, y)}.
    """
    if isinstance(value, Mapping):
        sizes_by_key = sizes if isinstance(sizes, Mapping) else {}
        return {key: (sizes_by_key.get(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        is_same_length = isinstance(sizes, (list, tuple)) and len(sizes) == len(value)
        return {index: (sizes[index] if is_same_length else None, item) for index, item in enumerate(value)}
    return {}
