"""Check the result types in the IR against torch, without computing values."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch

from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.tensor import TensorMeta
from spmdir.torch_interop import fake_tensors
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH, TORCH_DTYPES
from spmdir.torch_interop.logs import FAKE_TENSORS, unlogged

DEVICES = ("cpu", "meta")
"""Devices whose result types are accepted. Kernels may differ in by-products, and the IR has no devices."""

_UNKNOWN = (
    NotImplementedError,
    fake_tensors.DataDependentOutputException,
    fake_tensors.DynamicOutputShapeException,
    fake_tensors.UnsupportedFakeTensorException,
    fake_tensors.UnsupportedOperatorException,
)
"""Errors of torch for ops whose result type depends on values."""

Results = tuple["TensorMeta | None", ...]
"""The type of each result of an op; None for a result whose type is unknown or is not checked."""


def check_results(target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], declared: Results) -> None:
    """Raise UnsupportedError unless torch's `target` on these arguments returns tensors of the `declared` types.

    The cheapest evidence comes first: meta tensors, then fake tensors on each of `DEVICES`. If only element types
    differ, the CPU kernel runs on at most one element. A type is accepted if any of these agrees. Nothing is checked if
    types depend on values.

    Args:
        args, kwargs: arguments for torch, with a TensorMeta for each tensor and tuples for lists.
        declared: the type of each result in the IR; None is not checked.
    """
    text = repr((args, kwargs))  # part of the keys of caches, because 1, 1.0 and True are equal in Python
    meta_results = _meta_results(target, args, kwargs, text)
    if meta_results is not None and _find_difference([meta_results], declared) is None:
        return
    torch_results: list[Results] = []
    errors: list[UnsupportedError] = []
    for device in DEVICES:
        try:
            results = _results(target, args, kwargs, device, text)
        except UnsupportedError as error:
            errors.append(error)
            continue
        if results is None:
            return
        torch_results.append(results)
        if _find_difference(torch_results, declared) is None:
            return
    if not torch_results:
        raise errors[0]
    if [meta and meta.shape for meta in torch_results[0]] == [meta and meta.shape for meta in declared]:
        computed_types = _computed_types(target, args, kwargs, torch_results[0])
        if computed_types is not None:
            torch_results.append(computed_types)
        if _find_difference(torch_results, declared) is None:
            return
    if len(torch_results[0]) != len(declared):
        raise UnsupportedError(
            f"has {len(declared)} results; expected {len(torch_results[0])}, as torch returns: declare one "
            "result for each"
        )
    index = _find_difference(torch_results, declared)
    assert index is not None
    raise UnsupportedError(
        f"result {index} has type tensor<{declared[index]}>; torch returns "
        f"tensor<{torch_results[0][index]}> on this rank; expected equal types: correct the type of the "
        "result, or the types of the operands"
    )


def _find_difference(torch_results: list[Results], declared: Results) -> int | None:
    """Return the index of the first declared type that torch never returns; None if there is none.

    A type of None is unknown, and equals each type. Another number of results counts as a difference at index 0.

    Args:
        torch_results: the types that torch computes for the op, by one or two methods; the methods may differ.
    """
    if len(torch_results[0]) != len(declared):
        return 0
    for index, meta in enumerate(declared):
        candidates = [results[index] for results in torch_results]
        if meta is not None and meta not in candidates and None not in candidates:
            return index
    return None


@lru_cache(maxsize=65536)
def _meta_results(target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], text: str) -> Results | None:
    """Return the result types of `target` on meta tensors; None if `target` does not accept them.

    Meta tensors are much faster than fake tensors. But ops without a meta kernel fail, and by-products may have other
    types than on a CPU. Fake tensors handle both. Results are cached for repeated layers and ranks with equal shapes.

    Args:
        text: the arguments as text; only a part of the key of the cache.
    """
    try:
        return _types(target(*_tensors(args, "meta"), **{name: _tensors(value, "meta") for name, value in kwargs}))
    except Exception:
        return None  # fake tensors report the error


@lru_cache(maxsize=65536)
def _results(
    target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], device: str, text: str
) -> Results | None:
    """Return the result types of `target` on fake tensors; None if they depend on values.

    Results are cached for repeated layers.

    Args:
        text: the arguments as text; only a part of the key of the cache.

    Raises:
        UnsupportedError: torch rejects the arguments.
    """
    run = fake_tensors.checked(target)
    with unlogged(FAKE_TENSORS), fake_tensors.FakeTensorMode():
        try:
            outputs = run(*_tensors(args, device), **{name: _tensors(value, device) for name, value in kwargs})
        except _UNKNOWN:
            return None
        except Exception as error:
            # torch ops may raise anything. For the user, all of it means that this call is impossible.
            reason = str(error).partition(chr(10))[0]
            raise UnsupportedError(
                f"torch rejects it: {reason}; expected a call that torch accepts: correct its operands and arguments"
            ) from None
    return _types(outputs)


def _types(outputs: Any) -> Results:
    """Return the type of each output of a torch op; None for an output that is not a tensor of a known type."""
    types: list[TensorMeta | None] = []
    for output in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
        is_known = isinstance(output, torch.Tensor) and output.dtype in DTYPES_OF_TORCH
        types.append(TensorMeta(tuple(output.shape), DTYPES_OF_TORCH[output.dtype]) if is_known else None)
    return tuple(types)


def _computed_types(
    target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], types: Results
) -> Results | None:
    """Return `types`, the types on fake tensors, with the element types that the CPU kernel returns; None if unknown.

    Fake tensors sometimes report another element type than the kernel, as for `pow` of booleans by 1. So the kernel
    runs, on tensors of at most one element. The types are unknown if the kernel rejects them or returns more elements.
    """
    small_args = tuple(map(_with_one_element, args))
    small_kwargs = tuple((name, _with_one_element(value)) for name, value in kwargs)
    try:
        results = _results(target, small_args, small_kwargs, "cpu", repr((small_args, small_kwargs)))
        if results is None or any(meta is None or math.prod(meta.shape) > 1 for meta in results):
            return None
        with torch.random.fork_rng(devices=()):
            outputs = target(
                *_tensors(small_args, "cpu"), **{name: _tensors(value, "cpu") for name, value in small_kwargs}
            )
    except Exception:
        # torch ops may raise anything, and errors on these tensors do not concern the user.
        return None
    computed_types: list[TensorMeta | None] = []
    for meta, output in zip(types, outputs if isinstance(outputs, (tuple, list)) else (outputs,), strict=True):
        if meta is not None and output.dtype in DTYPES_OF_TORCH:
            computed_types.append(TensorMeta(meta.shape, DTYPES_OF_TORCH[output.dtype]))
        else:
            computed_types.append(None)
    return tuple(computed_types)


def _with_one_element(value: Any) -> Any:
    """Return an argument with its tensor types cut to at most one element."""
    if isinstance(value, TensorMeta):
        return TensorMeta(tuple(min(size, 1) for size in value.shape), value.dtype)
    return tuple(map(_with_one_element, value)) if isinstance(value, tuple) else value


def _tensors(value: Any, device: str) -> Any:
    """Return an argument for torch: each TensorMeta becomes an uninitialised tensor on `device`, a tuple a list."""
    if isinstance(value, TensorMeta):
        return torch.empty(value.shape, dtype=TORCH_DTYPES[value.dtype], device=device)
    if isinstance(value, torch.device):
        return torch.device(device)
    return [_tensors(item, device) for item in value] if isinstance(value, tuple) else value
