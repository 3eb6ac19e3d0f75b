"""Shapes and element types of the results of torch ops, asked of torch without computing anything."""

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
"""Kernels of CPUs and of other devices may differ in statistics and other by-products; the IR does not know devices."""

_UNKNOWN = (
    NotImplementedError,
    fake_tensors.DataDependentOutputException,
    fake_tensors.DynamicOutputShapeException,
    fake_tensors.UnsupportedFakeTensorException,
    fake_tensors.UnsupportedOperatorException,
)
"""What torch raises for an op that has no form without data."""

Results = tuple["TensorMeta | None", ...]


def check_results(target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], said: Results) -> None:
    """Raise UnsupportedError unless torch's `target` on these arguments gives tensors like `said`.

    Args:
        args, kwargs: as torch takes them, with a TensorMeta for each tensor and tuples for lists.
        said: what the IR says of each result; nothing is asked where it says None.
    """
    text = repr((args, kwargs))  # besides, since 1, 1.0 and True are equal in Python
    quick = _meta_results(target, args, kwargs, text)
    if quick is not None and _differing([quick], said) is None:
        return
    answers: list[Results] = []
    errors: list[UnsupportedError] = []
    for device in DEVICES:
        try:
            found = _results(target, args, kwargs, device, text)
        except UnsupportedError as error:
            errors.append(error)
            continue
        if found is None:
            return
        answers.append(found)
        if _differing(answers, said) is None:
            return
    if not answers:
        raise errors[0]
    if [meta and meta.shape for meta in answers[0]] == [meta and meta.shape for meta in said]:
        answers += _computed(target, args, kwargs, answers[0])
        if _differing(answers, said) is None:
            return
    if len(answers[0]) != len(said):
        raise UnsupportedError(f"has {len(said)} results where torch gives {len(answers[0])}")
    index = _differing(answers, said)
    assert index is not None
    raise UnsupportedError(
        f"torch gives tensor<{answers[0][index]}> as result {index} on this rank; the IR says tensor<{said[index]}>"
    )


def _differing(answers: list[Results], said: Results) -> int | None:
    """Return the first result that is as the IR says on no device; None if all are so on some device."""
    if len(answers[0]) != len(said):
        return 0
    for index, meta in enumerate(said):
        found = [answer[index] for answer in answers]
        if meta is not None and meta not in found and None not in found:
            return index
    return None


@lru_cache(maxsize=65536)
def _meta_results(target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], text: str) -> Results | None:
    """Return what `target` gives for tensors without data; None where it takes none.

    That is the answer of fake tensors in a fraction of their time, but for ops without a kernel for such tensors, for
    which fake tensors have a substitute, and for by-products that are others on a CPU. Ops of repeated layers, and of
    ranks that hold alike, are asked once.
    """
    try:
        return _types(target(*_tensors(args, "meta"), **{name: _tensors(value, "meta") for name, value in kwargs}))
    except Exception:
        return None  # fake tensors tell why


@lru_cache(maxsize=65536)
def _results(
    target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], device: str, text: str
) -> Results | None:
    """Return what `target` gives; None where torch cannot tell without the data.

    Ops of repeated layers are asked once.
    """
    run = fake_tensors.checked(target)
    with unlogged(FAKE_TENSORS), fake_tensors.FakeTensorMode():
        try:
            outputs = run(*_tensors(args, device), **{name: _tensors(value, device) for name, value in kwargs})
        except _UNKNOWN:
            return None
        except Exception as error:
            # torch ops raise whatever they like; for the user it is one thing: this call is impossible.
            raise UnsupportedError(f"torch rejects it: {str(error).partition(chr(10))[0]}") from None
    return _types(outputs)


def _types(outputs: Any) -> Results:
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return tuple(
        TensorMeta(tuple(output.shape), DTYPES_OF_TORCH[output.dtype])
        if isinstance(output, torch.Tensor) and output.dtype in DTYPES_OF_TORCH
        else None
        for output in outputs
    )


def _computed(target: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], known: Results) -> list[Results]:
    """`known` with the element types that a kernel gives, which may differ: pow of truth values by one is one.

    It runs on tensors of one element; there is no answer where the op does not take these, or makes more of them.
    """
    few = tuple(map(_few, args)), tuple((name, _few(value)) for name, value in kwargs)
    try:
        results = _results(target, *few, "cpu", repr(few))
        if results is None or any(meta is None or math.prod(meta.shape) > 1 for meta in results):
            return []
        with torch.random.fork_rng(devices=()):
            outputs = target(*_tensors(few[0], "cpu"), **{name: _tensors(value, "cpu") for name, value in few[1]})
    except Exception:
        # torch ops raise whatever they like, and what they say of these tensors is nothing to the user.
        return []
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return [
        tuple(
            TensorMeta(meta.shape, DTYPES_OF_TORCH[output.dtype]) if meta and output.dtype in DTYPES_OF_TORCH else None
            for meta, output in zip(known, outputs, strict=True)
        )
    ]


def _few(value: Any) -> Any:
    if isinstance(value, TensorMeta):
        return TensorMeta(tuple(min(size, 1) for size in value.shape), value.dtype)
    return tuple(map(_few, value)) if isinstance(value, tuple) else value


def _tensors(value: Any, device: str) -> Any:
    if isinstance(value, TensorMeta):
        return torch.empty(value.shape, dtype=TORCH_DTYPES[value.dtype], device=device)
    if isinstance(value, torch.device):
        return torch.device(device)
    return [_tensors(item, device) for item in value] if isinstance(value, tuple) else value
