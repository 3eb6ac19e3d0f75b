"""What torch does with each combination of element types: the calls of the samples, run with other types.

A call is run on meta tensors, as an importer does, and on the CPU, which checks more. A combination is rejected if
the error of the CPU is about element types. Where the CPU has no kernel the meta tensors decide, but for kernels that
it has for no float or no integer: then such operands are rejected.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from torch import Tensor

from spmdir.checking.rules.samples.sample import Sample
from spmdir.checking.rules.soundness import bind_arguments, call_of, cpu_implementation
from spmdir.core import dtype as dt
from spmdir.core.dtype import RANKING, DType
from spmdir.core.placement.call import Call
from spmdir.core.placement.tensor import TensorMeta
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH, TORCH_DTYPES
from spmdir.torch_interop.ops import schema_of
from spmdir.torch_interop.schemas import torch_op

BASES = (dt.F32, dt.I64)
"""Element types of the other operands while one varies."""

FEW = (dt.I1, dt.UI8, dt.I64, dt.BF16, dt.F32, dt.F64, dt.COMPLEX_F32)
"""Element types of calls with other arguments or ranks than the sample has."""

SAMPLES = 4
"""Samples of an op that are tried."""

NUMBERS = (True, 3, 2.5, 2 + 1j)

STATISTICS = frozenset({"logsumexp", "mean", "rstd", "save_mean", "save_var", "running_mean", "running_var"})
"""Operands that kernels keep in f32 beside values of bf16 and f16, on some devices: they are tried so, and need not
have the type of the values."""

LACKING = re.compile(r"not implemented for|not implemented on|[Oo]n CPU|on cpu")
ABOUT_TYPES = re.compile(
    r"dtype|scalar.?type|data ?type|same type|[Ff]loat8|\b(Int|Long|Float|Double|Half|Bool|Byte|Char|Short|BFloat16"
    r"|Complex\w+|int|long|bool|boolean|floats?|floating.point|integers?|integral|complex)\b"
)


@attrs.frozen
class TypeTrial:
    """A call with element types of its own.

    Attributes:
        operands: parameter → its operands.
        given: (meta or cpu, element types of the results) for each on which the op ran.
        is_rejected: whether torch rejects the types.
        lacks: whether the CPU has no kernel for them.
    """

    operands: Mapping[str, tuple[TensorMeta, ...]]
    arguments: Mapping[str, Any]
    given: tuple[tuple[str, tuple[DType | None, ...]], ...]
    is_rejected: bool
    lacks: bool

    @property
    def is_accepted(self) -> bool:
        """Return whether the op ran on the CPU."""
        return not self.is_rejected and any(device == "cpu" for device, _ in self.given)

    @property
    def types(self) -> tuple[DType, ...]:
        """Return the element types of all operands."""
        return tuple(meta.dtype for metas in self.operands.values() for meta in metas)


DEVICES = ("meta", "cpu")


def dtype_argument(op: str) -> str | None:
    """Return the argument of an op that is an element type; None if it has none."""
    names = (a.name for a in schema_of(torch_op(op)).arguments if "ScalarType" in str(a.real_type))
    return next(names, None)


def trials(samples: Sequence[Sample], devices: Sequence[str] = DEVICES) -> list[TypeTrial]:
    """Return the trials of some samples of one op on some devices."""
    found: dict[str, TypeTrial] = {}
    is_trusted = True
    for sample in samples[:SAMPLES]:
        call, tensors, _ = call_of(sample)
        is_trusted = is_trusted and not _trial(call, tensors, call.argument, devices).is_rejected
        for number, (operands, arguments) in enumerate(_variants(call, tensors, devices)):
            listed = _types(operands, FEW if number and len(operands) > 1 else RANKING)
            for types in _with_statistics(listed, _statistics(call, arguments)):
                changed = [_cast(t, type_) for t, type_ in zip(operands, types, strict=True)]
                key = f"{types} {[t.dim() for t in operands]} {call.structure} {arguments}"
                if key not in found:
                    found[key] = _trial(call, changed, arguments, devices)
    if not is_trusted:  # the error of the sample, with types that work, says nothing of types
        return [attrs.evolve(trial, is_rejected=False) for trial in found.values()]
    return _lacking(list(found.values()))


def _variants(
    call: Call, tensors: list[Tensor], devices: Sequence[str]
) -> Iterator[tuple[list[Tensor], dict[str, Any]]]:
    """Yield operands and arguments: those of the call, with an operand of rank 0, and with other arguments."""
    yield tensors, call.argument
    dtype = dtype_argument(call.name)
    if call.argument.get(dtype or "") is not None:
        call = attrs.evolve(call, arguments=tuple((name, v) for name, v in call.arguments if name != dtype))
        yield tensors, call.argument
    for index in range(len(tensors)):
        if len(tensors) > 1 and tensors[index].numel():
            single = [t.flatten()[0] if i == index else t for i, t in enumerate(tensors)]
            if single[index].dim() != tensors[index].dim() and _trial(call, single, call.argument, devices).given:
                yield single, call.argument
    for argument in schema_of(torch_op(call.name)).arguments:
        kind, given = str(argument.type), call.argument
        values: Sequence[Any] = ()
        if "number" in kind or (argument.name in given and "Tensor" in kind):
            values = NUMBERS
        elif "bool" in kind:
            values = (True, False)
        elif argument.name == dtype:
            values = (*RANKING, None)
        for value in values if "List" not in kind else ():
            yield tensors, {**given, argument.name: value}


def _types(tensors: Sequence[Tensor], listed: Sequence[DType]) -> Iterator[tuple[DType, ...]]:
    """Yield element types: all the same, one that differs, two that differ; operands that are no floats stay."""
    own = [DTYPES_OF_TORCH[t.dtype] for t in tensors]
    floats = [i for i, type_ in enumerate(own) if type_.is_float]
    uniform = [tuple(type_ if i in floats else mine for i, mine in enumerate(own)) for type_ in listed]
    yield from uniform
    if len({*own}) == 1:
        yield from (tuple([type_] * len(own)) for type_ in listed)
    if len(own) == 2 == len(floats):
        yield from itertools.product(listed, repeat=2)
    elif listed is RANKING:
        bases = [types for types in (*uniform, tuple(own)) if not floats or types[floats[0]] in BASES]
        for base, index, type_ in itertools.product(bases, range(len(own)), listed):
            yield (*base[:index], type_, *base[index + 1 :])


def _statistics(call: Call, arguments: Mapping[str, Any]) -> frozenset[int]:
    """Return the places of the operands that are statistics."""
    pairs = zip(_tensor_parameters(call.name, arguments), call.slots, strict=False)
    return frozenset(slot for name, slot in pairs if name in STATISTICS and isinstance(slot, int))


def _with_statistics(listed: Iterator[tuple[DType, ...]], places: frozenset[int]) -> Iterator[tuple[DType, ...]]:
    """Yield element types of operands, and those with statistics in f32 where all are halves."""
    for types in listed:
        yield types
        if places and {*types} in ({dt.BF16}, {dt.F16}):
            yield tuple(dt.F32 if place in places else type_ for place, type_ in enumerate(types))


def _tensor_parameters(op: str, arguments: Mapping[str, Any]) -> list[str]:
    parameters = schema_of(torch_op(op)).arguments
    return [a.name for a in parameters if "Tensor" in str(a.type) and a.name not in arguments]


def _cast(tensor: Tensor, dtype: DType) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tensor.to(TORCH_DTYPES[dtype])


def _trial(call: Call, tensors: list[Tensor], arguments: Mapping[str, Any], devices: Sequence[str]) -> TypeTrial:
    target = torch_op(call.name)
    given: list[tuple[str, tuple[DType | None, ...]]] = []
    errors: dict[str, str] = {}
    for device in devices:
        placed = [t.to(device) if device == "meta" else t.clone() for t in tensors]
        try:
            positional, named = bind_arguments(target, call.slots, placed, arguments)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = (cpu_implementation(call.name) if device == "cpu" else target)(*positional, **named)
        except Exception as error:  # whatever kernels and meta functions raise
            errors[device] = str(error)
            continue
        results = [
            r.dtype if isinstance(r, Tensor) else None for r in (made if isinstance(made, (tuple, list)) else [made])
        ]
        if all(dtype is None or dtype in DTYPES_OF_TORCH for dtype in results):
            given.append((device, tuple(None if dtype is None else DTYPES_OF_TORCH[dtype] for dtype in results)))
    parameters = _tensor_parameters(call.name, arguments)
    metas = [TensorMeta(tuple(t.shape), DTYPES_OF_TORCH[t.dtype]) for t in tensors]
    operands = {}
    for name, slot in zip(parameters, call.slots, strict=False):
        indices = slot if isinstance(slot, tuple) else (slot,)
        operands[name] = tuple(metas[i] for i in indices if i is not None)
    lacks = "cpu" not in devices or bool(LACKING.search(errors.get("cpu", "")))
    deciding = errors.get("meta" if lacks else "cpu", "")
    rejected = bool(ABOUT_TYPES.search(deciding)) and not LACKING.search(deciding)
    return TypeTrial(operands, arguments, tuple(given), rejected, lacks)


def _lacking(found: list[TypeTrial]) -> list[TypeTrial]:
    """Return the trials, in which kernels that are lacking for all floats or all integers are rejections."""
    if not any(trial.is_accepted for trial in found):
        return found
    kinds: dict[str, bool] = {}
    for kind in ("float", "int"):
        uniform = [t for t in found if len({*t.types}) == 1 and t.types[0].kind == kind and t.types[0].itemsize > 1]
        kinds[kind] = bool(uniform) and all(trial.lacks for trial in uniform)
    return [
        attrs.evolve(t, is_rejected=True) if t.lacks and any(kinds.get(type_.kind) for type_ in t.types) else t
        for t in found
    ]
