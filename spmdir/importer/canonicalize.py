"""Rewrite calls into simpler ops. The IR has no aliases, no strides and no implied sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from string import ascii_letters
from typing import Any

import attrs
from torch import fx

from spmdir.core.dtype import F32
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.tensor import SizedMeta, TensorMeta
from spmdir.dialects.attributes import meta_of, sizes_of
from spmdir.importer.fx_arguments import BoundCall
from spmdir.importer.locations import node_location
from spmdir.rules.language.promotion import widened
from spmdir.torch_interop.symbolic_numbers import comparable_number


def _replace_by_operand(_: BoundCall, __: fx.Node) -> None:
    """Return None, which means in `REWRITES` that the operand replaces the result of the call."""
    return


def _cast(call: BoundCall, node: fx.Node) -> BoundCall | None:
    """Return a cast, such as `type_as`, as a call of `_to_copy`.

    If the element type does not change, a cast with a `memory_format` becomes a clone. Without one, the result is
    None, because the cast is its operand.
    """
    has_format = "memory_format" in call.arguments
    arguments = {"memory_format": call.arguments["memory_format"]} if has_format else {}
    (result,) = call.results
    if _operand(node).dtype != node.meta["val"].dtype:
        assert result is not None
        return BoundCall("aten._to_copy", call.operands[:1], {"dtype": result.dtype, **arguments}, call.results, None)
    return BoundCall("aten.clone", call.operands[:1], arguments, call.results, None) if has_format else None


def _with_result_sizes(name: str, argument: str) -> Callable[[BoundCall, fx.Node], BoundCall | None]:
    """Return a rewrite of a call into the op `name` with explicit sizes in `argument`, instead of -1 or implied sizes.

    The rewrite returns None if the call changes neither sizes nor element type.
    """

    def rewrite(call: BoundCall, node: fx.Node) -> BoundCall | None:
        (result,) = call.results
        assert isinstance(result, TensorMeta)
        sizes = result.sizes if isinstance(result, SizedMeta) else result.shape
        if sizes_of(call.operands[0].type) == sizes and _operand(node).dtype == node.meta["val"].dtype:
            return None
        return BoundCall(name, call.operands[:1], {argument: sizes}, call.results, None)

    return rewrite


def _as_factory(name: str) -> Callable[[BoundCall, fx.Node], BoundCall]:
    """Return a rewrite of `new_*` and `*_strided` factories into the factory `name`, with an explicit element type.

    Strides are dropped. The operand is dropped too, because it only determines the element type and the device.
    """

    def rewrite(call: BoundCall, _: fx.Node) -> BoundCall:
        (result,) = call.results
        assert result is not None
        arguments = {key: value for key, value in call.arguments.items() if key != "stride"}
        return BoundCall(name, (), {**arguments, "dtype": result.dtype}, call.results, None)

    return rewrite


def _with_dtype(call: BoundCall, _: fx.Node) -> BoundCall:
    """Return the call of a factory, with an explicit element type if it uses torch's default type and this is not f32.

    In the IR, a factory of floating-point numbers without `dtype` returns f32, whatever torch's default type is.
    """
    (result,) = call.results
    if result is None or "dtype" in call.arguments or not result.dtype.is_float or result.dtype == F32:
        return call
    return attrs.evolve(call, arguments={**call.arguments, "dtype": result.dtype})


def _with_kernel_statistics(call: BoundCall, _: fx.Node) -> BoundCall:
    """Return the call with statistics (its second result) of the element type in which the kernel computes.

    Before torch 2.13, torch's shape function returned f32 for operands of any type, unlike the kernel.
    """
    values, statistics = call.results
    assert values is not None and statistics is not None
    return attrs.evolve(call, results=(values, attrs.evolve(statistics, dtype=widened(values.dtype))))


def _as_strided(call: BoundCall, node: fx.Node) -> BoundCall | None:
    """Return an `as_strided` as a call of `view`; None if its result is its operand.

    Raises:
        UnsupportedError: the `as_strided` is not a view of all elements of a contiguous tensor.
    """
    source, result = _operand(node), node.meta["val"]
    offset = call.arguments.get("storage_offset") or 0
    source_offset, offset = comparable_number(source.storage_offset()), comparable_number(offset)
    if _shape_and_strides(source) == _shape_and_strides(result) and source_offset == offset:
        return None
    is_full_view = _numel(source) == _numel(result) and source_offset == 0 == offset
    if is_full_view and _is_contiguous(source) and _is_contiguous(result):
        return _with_result_sizes("aten.view", "size")(call, node)
    raise UnsupportedError(
        f"'{node.name}' is as_strided with strides {list(result.stride())}, which depends on the memory layout; "
        "expected a view of all elements of a contiguous tensor: write it with view, slice, transpose or expand",
        node_location(node),
    )


def _shape_and_strides(value: Any) -> tuple[list[Any], list[Any]]:
    """Return the shape and the strides of a tensor, with symbolic sizes as expressions."""
    return list(map(comparable_number, value.shape)), list(map(comparable_number, value.stride()))


def _numel(value: Any) -> Any:
    """Return the number of elements of a tensor, an expression if a size is symbolic."""
    return math.prod(map(comparable_number, value.shape))


def _is_contiguous(value: Any) -> bool:
    """Return whether a tensor is contiguous for all sizes. `value.is_contiguous()` would specialise symbolic sizes."""
    sizes, strides = _shape_and_strides(value)
    if all(type(number) is int for number in (*sizes, *strides)):
        return value.is_contiguous()
    return strides == [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]


def _as_strided_scatter(call: BoundCall, node: fx.Node) -> BoundCall:
    """Return an `as_strided_scatter` as a view of its second operand, whose elements replace all those of the first.

    Raises:
        UnsupportedError: the scatter replaces only some elements, or the tensor is not contiguous.
    """
    source, update, result = _operand(node), _operand(node, 1), node.meta["val"]
    offset = call.arguments.get("storage_offset") or 0
    view = source.as_strided(call.arguments["size"], call.arguments["stride"], offset)
    is_full_view = source.is_contiguous() and view.is_contiguous() and view.numel() == source.numel() and offset == 0
    if not is_full_view or update.numel() != result.numel():
        raise UnsupportedError(
            f"'{node.name}' is as_strided_scatter with strides {list(view.stride())}, which depends on the memory "
            "layout; expected all elements of a contiguous tensor: write it with slice_scatter or select_scatter",
            node_location(node),
        )
    return BoundCall("aten.view", call.operands[1:], {"size": tuple(result.shape)}, call.results, None)


def _dropout(call: BoundCall, _: fx.Node) -> BoundCall | None:
    """Return the call if the dropout may drop elements; None, for its operand, in evaluation or with p = 0."""
    return call if call.arguments.get("train") and call.arguments.get("p") != 0 else None


def _contiguous(call: BoundCall, _: fx.Node) -> BoundCall:
    """Return a call of `contiguous` as a clone."""
    return attrs.evolve(call, name="aten.clone", arguments={"memory_format": "contiguous_format", **call.arguments})


def _einsum(call: BoundCall, _: fx.Node) -> BoundCall:
    """Return the call with an explicit output term, and with letters instead of ellipses.

    For operands of ranks 3 and 3, `...ij,...jk` becomes `aij,ajk->aik`.
    """
    equation = str(call.arguments["equation"]).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    ranks = [len(meta_of(operand.type).shape) for operand in call.operands]  # type: ignore[union-attr]
    # For each operand, the number of dimensions that its `...` stands for; the named dimensions are single letters.
    ellipsis_ranks = [
        rank - len(term) + len("...") if "..." in term else 0
        for term, rank in zip(terms.split(","), ranks, strict=True)
    ]
    letters = "".join(letter for letter in ascii_letters if letter not in equation)[: max(ellipsis_ranks)]
    if not arrow:
        output_letters = sorted(letter for letter in set(terms) if letter.isalpha() and terms.count(letter) == 1)
        result = "".join(["..." if max(ellipsis_ranks) else "", *output_letters])
    # Dimensions of ellipses are aligned at the end, as in broadcasting, so a shorter one gets the last letters.
    expanded_terms = (
        term.replace("...", letters[len(letters) - count :])
        for term, count in zip(terms.split(","), ellipsis_ranks, strict=True)
    )
    equation = f"{','.join(expanded_terms)}->{result.replace('...', letters)}"
    return attrs.evolve(call, arguments={**call.arguments, "equation": equation})


def _reject(reason: str) -> Callable[[BoundCall, fx.Node], BoundCall]:
    """Return a rewrite that raises UnsupportedError; `reason` is a clause such as "which depends on the memory"."""

    def rewrite(call: BoundCall, node: fx.Node) -> BoundCall:
        raise UnsupportedError(f"'{node.name}' calls {call.name}, {reason}", node_location(node))

    return rewrite


def _operand(node: fx.Node, index: int = 0) -> Any:
    """Return the example value of operand `index` of a node. Without positional arguments, this is its `self`."""
    source = node.args[index] if node.args else node.kwargs["self"]
    assert isinstance(source, fx.Node)
    return source.meta["val"]


REWRITES: dict[str, Callable[[BoundCall, fx.Node], BoundCall | None]] = {
    # Values have no aliases and no autograd history.
    **dict.fromkeys(
        [
            "aten.alias",
            "aten.alias_copy",
            "aten.detach",
            "aten.detach_copy",
            "aten.lift",
            "aten.lift_fresh",
            "aten.lift_fresh_copy",
        ],
        _replace_by_operand,
    ),
    "aten.dropout": _dropout,
    # `_to_copy` is the only cast. Devices are chosen by each rank.
    **dict.fromkeys(
        ["aten._to_copy", "aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten.to.other", "aten.type_as"],
        _cast,
    ),
    # Sizes are explicit.
    "aten.view": _with_result_sizes("aten.view", "size"),
    "aten.view_copy": _with_result_sizes("aten.view", "size"),
    "aten._unsafe_view": _with_result_sizes("aten._unsafe_view", "size"),
    "aten._reshape_alias": _with_result_sizes("aten.view", "size"),
    "aten.reshape": _with_result_sizes("aten.reshape", "shape"),
    "aten.view_as": _with_result_sizes("aten.view", "size"),
    "aten.reshape_as": _with_result_sizes("aten.reshape", "shape"),
    "aten.flatten.using_ints": _with_result_sizes("aten.reshape", "shape"),
    "aten.unflatten.int": _with_result_sizes("aten.reshape", "shape"),
    "aten.expand": _with_result_sizes("aten.expand", "size"),
    "aten.expand_as": _with_result_sizes("aten.expand", "size"),
    "aten.expand_copy": _with_result_sizes("aten.expand", "size"),
    "aten.broadcast_to": _with_result_sizes("aten.expand", "size"),
    "aten.einsum": _einsum,
    # Values have no strides.
    "aten.contiguous": _contiguous,
    "aten.as_strided": _as_strided,
    "aten.as_strided_scatter": _as_strided_scatter,
    # Results do not depend on torch's default element type.
    **dict.fromkeys(
        [
            "aten.arange",
            "aten.arange.start",
            "aten.arange.start_step",
            "aten.empty.memory_format",
            "aten.eye",
            "aten.eye.m",
            "aten.full",
            "aten.linspace",
            "aten.ones",
            "aten.rand",
            "aten.randn",
            "aten.zeros",
        ],
        _with_dtype,
    ),
    "aten.empty_strided": _as_factory("aten.empty.memory_format"),
    "aten.new_empty_strided": _as_factory("aten.empty.memory_format"),
    "aten.new_empty": _as_factory("aten.empty.memory_format"),
    "aten.new_zeros": _as_factory("aten.zeros"),
    "aten.new_ones": _as_factory("aten.ones"),
    "aten.new_full": _as_factory("aten.full"),
    "aten.as_strided_copy": _reject("which depends on the memory layout"),
    "aten._scaled_dot_product_flash_attention_for_cpu": _with_kernel_statistics,
    # torch does not trace the creation of the tensor of target lengths, so the graph would read uninitialised memory.
    "aten._ctc_loss": _reject(
        "with lengths as lists, whose mean torch traces wrongly; expected tensors: pass input_lengths and "
        "target_lengths as tensors"
    ),
}
"""Op name → (call, its node) → the call to import; None if the result is the first operand."""
