"""Rewrites of calls into simpler ops: the IR has neither aliases nor strides nor implied sizes."""

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
from spmdir.importer.fx_arguments import Bound
from spmdir.importer.locations import node_location
from spmdir.rules.language.promotion import widened
from spmdir.torch_interop.symbolic_numbers import plain


def _identity(_: Bound, __: fx.Node) -> None:
    return None


def _cast(call: Bound, node: fx.Node) -> Bound | None:
    kept = {name: call.arguments[name] for name in ("memory_format",) if name in call.arguments}
    (result,) = call.results
    if _operand(node).dtype != node.meta["val"].dtype:
        assert result is not None
        return Bound("aten._to_copy", call.operands[:1], {"dtype": result.dtype, **kept}, call.results, None)
    return Bound("aten.clone", call.operands[:1], kept, call.results, None) if kept else None


def _sized(name: str, argument: str) -> Callable[[Bound, fx.Node], Bound | None]:
    """Return the call as `name` with the sizes of its result, which may have been -1 or implied."""

    def rewrite(call: Bound, node: fx.Node) -> Bound | None:
        (result,) = call.results
        assert isinstance(result, TensorMeta)
        sizes = result.sizes if isinstance(result, SizedMeta) else result.shape
        if sizes_of(call.operands[0].type) == sizes and _operand(node).dtype == node.meta["val"].dtype:
            return None
        return Bound(name, call.operands[:1], {argument: sizes}, call.results, None)

    return rewrite


def _from_nothing(name: str) -> Callable[[Bound, fx.Node], Bound]:
    """Return the factory `name`: an operand that only says of what type and where the result is, and strides, are
    dropped.
    """

    def rewrite(call: Bound, _: fx.Node) -> Bound:
        (result,) = call.results
        assert result is not None
        kept = {key: value for key, value in call.arguments.items() if key != "stride"}
        return Bound(name, (), {**kept, "dtype": result.dtype}, call.results, None)

    return rewrite


def _typed(call: Bound, _: fx.Node) -> Bound:
    """Return a factory that names its element type, where that is torch's default type and not f32."""
    (result,) = call.results
    if result is None or "dtype" in call.arguments or not result.dtype.is_float or result.dtype == F32:
        return call
    return attrs.evolve(call, arguments={**call.arguments, "dtype": result.dtype})


def _statistics_as_computed(call: Bound, _: fx.Node) -> Bound:
    """Return the call with a second result, its statistics, of the type that the kernel computes in.

    Before torch 2.13 the shape function gave f32 for operands of any type.
    """
    values, statistics = call.results
    assert values is not None and statistics is not None
    return attrs.evolve(call, results=(values, attrs.evolve(statistics, dtype=widened(values.dtype))))


def _as_strided(call: Bound, node: fx.Node) -> Bound | None:
    source, result = _operand(node), node.meta["val"]
    offset = call.arguments.get("storage_offset") or 0
    before, after = _layout(source), _layout(result)
    if before == after and plain(source.storage_offset()) == plain(offset):
        return None
    whole = _numel(source) == _numel(result) and plain(offset) == 0 == plain(source.storage_offset())
    if whole and _is_contiguous(source) and _is_contiguous(result):
        return _sized("aten.view", "size")(call, node)
    raise UnsupportedError(
        f"'{node.name}' is as_strided with strides {list(result.stride())}, which depends on the memory layout; "
        "expected one that is a view of the whole contiguous tensor: write it with view, slice, transpose or expand",
        node_location(node),
    )


def _layout(value: Any) -> tuple[list[Any], list[Any]]:
    return list(map(plain, value.shape)), list(map(plain, value.stride()))


def _numel(value: Any) -> Any:
    return math.prod(map(plain, value.shape))


def _is_contiguous(value: Any) -> bool:
    """Return whether a tensor is so at all sizes; to ask torch would bind the sizes to what they happen to be."""
    sizes, strides = _layout(value)
    if all(type(number) is int for number in (*sizes, *strides)):
        return value.is_contiguous()
    return strides == [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]


def _as_strided_scatter(call: Bound, node: fx.Node) -> Bound:
    """Return what is scattered into all of a contiguous tensor replaces it."""
    source, written, result = _operand(node), _operand(node, 1), node.meta["val"]
    offset = call.arguments.get("storage_offset") or 0
    part = source.as_strided(call.arguments["size"], call.arguments["stride"], offset)
    whole = source.is_contiguous() and part.is_contiguous() and part.numel() == source.numel() and offset == 0
    if not whole or written.numel() != result.numel():
        raise UnsupportedError(
            f"'{node.name}' is as_strided_scatter into a part with strides {list(part.stride())}, which depends on "
            "the memory layout; expected the whole contiguous tensor: write it with slice_scatter or select_scatter",
            node_location(node),
        )
    return Bound("aten.view", call.operands[1:], {"size": tuple(result.shape)}, call.results, None)


def _dropout(call: Bound, _: fx.Node) -> Bound | None:
    return call if call.arguments.get("train") and call.arguments.get("p") != 0 else None


def _contiguous(call: Bound, _: fx.Node) -> Bound:
    return attrs.evolve(call, name="aten.clone", arguments={"memory_format": "contiguous_format", **call.arguments})


def _einsum(call: Bound, _: fx.Node) -> Bound:
    """Return the equation with its result, and with letters for what stands behind an ellipsis."""
    equation = str(call.arguments["equation"]).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    ranks = [len(meta_of(operand.type).shape) for operand in call.operands]  # type: ignore[union-attr]
    behind = [
        rank - len(term) + len("...") if "..." in term else 0
        for term, rank in zip(terms.split(","), ranks, strict=True)
    ]
    letters = "".join(letter for letter in ascii_letters if letter not in equation)[: max(behind)]
    if not arrow:
        once = sorted(letter for letter in set(terms) if letter.isalpha() and terms.count(letter) == 1)
        result = "".join(["..." if max(behind) else "", *once])
    spelled = (
        term.replace("...", letters[len(letters) - count :])
        for term, count in zip(terms.split(","), behind, strict=True)
    )
    equation = f"{','.join(spelled)}->{result.replace('...', letters)}"
    return attrs.evolve(call, arguments={**call.arguments, "equation": equation})


def _rejected(why: str) -> Callable[[Bound, fx.Node], Bound]:
    def rewrite(call: Bound, node: fx.Node) -> Bound:
        raise UnsupportedError(f"'{node.name}' calls {call.name}, {why}", node_location(node))

    return rewrite


def _operand(node: fx.Node, position: int = 0) -> Any:
    source = node.args[position] if node.args else node.kwargs["self"]
    assert isinstance(source, fx.Node)
    return source.meta["val"]


REWRITES: dict[str, Callable[[Bound, fx.Node], Bound | None]] = {
    # Values have no aliases and no autograd history.
    **dict.fromkeys(
        ["aten.alias", "aten.alias_copy", "aten.detach", "aten.detach_copy", "aten.lift", "aten.lift_fresh"], _identity
    ),
    "aten.lift_fresh_copy": _identity,
    "aten.dropout": _dropout,
    # One op casts; devices are each rank's own.
    **dict.fromkeys(
        ["aten._to_copy", "aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten.to.other", "aten.type_as"],
        _cast,
    ),
    # Sizes are spelled out.
    "aten.view": _sized("aten.view", "size"),
    "aten.view_copy": _sized("aten.view", "size"),
    "aten._unsafe_view": _sized("aten._unsafe_view", "size"),
    "aten._reshape_alias": _sized("aten.view", "size"),
    "aten.reshape": _sized("aten.reshape", "shape"),
    "aten.view_as": _sized("aten.view", "size"),
    "aten.reshape_as": _sized("aten.reshape", "shape"),
    "aten.flatten.using_ints": _sized("aten.reshape", "shape"),
    "aten.unflatten.int": _sized("aten.reshape", "shape"),
    "aten.expand": _sized("aten.expand", "size"),
    "aten.expand_as": _sized("aten.expand", "size"),
    "aten.expand_copy": _sized("aten.expand", "size"),
    "aten.broadcast_to": _sized("aten.expand", "size"),
    "aten.einsum": _einsum,
    # Strides matter to no value.
    "aten.contiguous": _contiguous,
    "aten.as_strided": _as_strided,
    "aten.as_strided_scatter": _as_strided_scatter,
    # What a program gives does not depend on torch's default element type.
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
        _typed,
    ),
    "aten.empty_strided": _from_nothing("aten.empty.memory_format"),
    "aten.new_empty_strided": _from_nothing("aten.empty.memory_format"),
    "aten.new_empty": _from_nothing("aten.empty.memory_format"),
    "aten.new_zeros": _from_nothing("aten.zeros"),
    "aten.new_ones": _from_nothing("aten.ones"),
    "aten.new_full": _from_nothing("aten.full"),
    "aten.as_strided_copy": _rejected("which depends on the memory layout"),
    "aten._scaled_dot_product_flash_attention_for_cpu": _statistics_as_computed,
    # torch makes a tensor of the target lengths behind the tracer's back, so that the graph reads unfilled memory.
    "aten._ctc_loss": _rejected(
        "with lengths as lists, of which torch traces the mean wrongly; "
        "give input_lengths and target_lengths as tensors"
    ),
}
"""Op name → (call, its node) → the call in the IR's words; None if its result is its first operand."""
