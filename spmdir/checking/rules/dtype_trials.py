"""Find the combinations of element types that torch accepts, by running samples with other element types.

A call is run on meta tensors, as the importer does, and on the CPU, which checks more. A combination is rejected if the
error of the CPU kernel concerns element types. If the CPU has no kernel for it, the error on meta tensors counts. If
the CPU has no kernel for any float or any integer, all floats or all integers are rejected.
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

BASE_TYPES = (dt.F32, dt.I64)
"""The element types of the other operands while the type of one operand varies."""

COMMON_TYPES = (dt.I1, dt.UI8, dt.I64, dt.BF16, dt.F32, dt.F64, dt.COMPLEX_F32)
"""The element types for variants of a sample with other arguments or ranks."""

MAX_SAMPLES = 4
"""The number of samples of an op that are run with other types."""

SCALARS = (True, 3, 2.5, 2 + 1j)
"""The values of arguments that may be numbers of any type."""

STATISTICS = frozenset({"logsumexp", "mean", "rstd", "save_mean", "save_var", "running_mean", "running_var"})
"""Operands that some kernels require in f32 if the values are bf16 or f16. They are tried in both types."""

MISSING_KERNEL = re.compile(r"not implemented for|not implemented on|[Oo]n CPU|on cpu")
"""An error because the device has no kernel for the element types."""

TYPE_ERROR = re.compile(
    r"dtype|scalar.?type|data ?type|same type|[Ff]loat8|\b(Int|Long|Float|Double|Half|Bool|Byte|Char|Short|BFloat16"
    r"|Complex\w+|int|long|bool|boolean|floats?|floating.point|integers?|integral|complex)\b"
)
"""An error that concerns element types."""


@attrs.frozen
class TypeTrial:
    """The result of a call with some combination of element types.

    Attributes:
        operands: parameter → its operands.
        result_types: ("meta" or "cpu", element types of the results) for each device on which the op ran.
        is_rejected: whether torch rejects the types.
        lacks_kernel: whether the CPU has no kernel for them.
    """

    operands: Mapping[str, tuple[TensorMeta, ...]]
    arguments: Mapping[str, Any]
    result_types: tuple[tuple[str, tuple[DType | None, ...]], ...]
    is_rejected: bool
    lacks_kernel: bool

    @property
    def is_accepted(self) -> bool:
        """Return whether the op ran on the CPU."""
        return not self.is_rejected and any(device == "cpu" for device, _ in self.result_types)

    @property
    def types(self) -> tuple[DType, ...]:
        """Return the element types of all operands."""
        return tuple(meta.dtype for metas in self.operands.values() for meta in metas)


DEVICES = ("meta", "cpu")
"""The devices on which calls are run."""


def dtype_argument(op: str) -> str | None:
    """Return the name of the argument of an op that is an element type; None if there is none."""
    for argument in schema_of(torch_op(op)).arguments:
        if "ScalarType" in str(argument.real_type):
            return argument.name
    return None


def trials(samples: Sequence[Sample], devices: Sequence[str] = DEVICES) -> list[TypeTrial]:
    """Run samples of one op with other element types. Return each distinct call with its result.

    If torch rejects a sample with its original types, no trial counts as rejected: the errors of the op are then not
    about types.
    """
    trials_by_key: dict[str, TypeTrial] = {}
    is_trusted = True
    for sample in samples[:MAX_SAMPLES]:
        call, tensors, _ = call_of(sample)
        is_trusted = is_trusted and not _run_trial(call, tensors, call.argument, devices).is_rejected
        for number, (operands, arguments) in enumerate(_variants(call, tensors, devices)):
            # Only the sample itself, and variants with one operand, are run with all types.
            assignments = _type_assignments(operands, COMMON_TYPES if number and len(operands) > 1 else RANKING)
            for types in _with_f32_statistics(assignments, _statistics_operands(call, arguments)):
                converted = [_cast(operand, type_) for operand, type_ in zip(operands, types, strict=True)]
                key = f"{types} {[operand.dim() for operand in operands]} {call.structure} {arguments}"
                if key not in trials_by_key:
                    trials_by_key[key] = _run_trial(call, converted, arguments, devices)
    if not is_trusted:  # the sample itself fails with valid types, so the errors of the op do not concern types
        return [attrs.evolve(trial, is_rejected=False) for trial in trials_by_key.values()]
    return _with_missing_kernels(list(trials_by_key.values()))


def _variants(
    call: Call, tensors: list[Tensor], devices: Sequence[str]
) -> Iterator[tuple[list[Tensor], dict[str, Any]]]:
    """Yield the operands and arguments of the call, then variants that may have results of other element types.

    A variant lacks the argument `dtype`, or has one operand of rank 0, a number of another type, the other Boolean, or
    another `dtype`.
    """
    yield tensors, call.argument
    dtype = dtype_argument(call.name)
    if call.argument.get(dtype or "") is not None:
        call = attrs.evolve(call, arguments=tuple((name, value) for name, value in call.arguments if name != dtype))
        yield tensors, call.argument
    for index, tensor in enumerate(tensors):
        if len(tensors) > 1 and tensor.numel() and tensor.dim():
            with_scalar = [*tensors[:index], tensor.flatten()[0], *tensors[index + 1 :]]
            if _run_trial(call, with_scalar, call.argument, devices).result_types:
                yield with_scalar, call.argument
    for argument in schema_of(torch_op(call.name)).arguments:
        type_text, arguments = str(argument.type), call.argument
        values: Sequence[Any] = ()
        if "number" in type_text or (argument.name in arguments and "Tensor" in type_text):
            values = SCALARS
        elif "bool" in type_text:
            values = (True, False)
        elif argument.name == dtype:
            values = (*RANKING, None)
        if "List" in type_text:
            continue
        for value in values:
            yield tensors, {**arguments, argument.name: value}


def _type_assignments(tensors: Sequence[Tensor], types: Sequence[DType]) -> Iterator[tuple[DType, ...]]:
    """Yield a tuple of element types of all operands, for several combinations of `types`.

    First all floating-point operands have the same type. Then all operands have the same type, if their original types
    are equal. Then two floating-point operands have all pairs of types. For other operands, and if `types` are all
    types, one operand has another type than the rest.
    """
    original_types = [DTYPES_OF_TORCH[tensor.dtype] for tensor in tensors]
    float_indices = [index for index, original in enumerate(original_types) if original.is_float]
    with_equal_floats = [
        tuple(type_ if original.is_float else original for original in original_types) for type_ in types
    ]
    yield from with_equal_floats
    if len({*original_types}) == 1:
        yield from (tuple([type_] * len(original_types)) for type_ in types)
    if len(original_types) == 2 == len(float_indices):
        yield from itertools.product(types, repeat=2)
    elif types is RANKING:
        candidates = (*with_equal_floats, tuple(original_types))
        bases = [base for base in candidates if not float_indices or base[float_indices[0]] in BASE_TYPES]
        for base, index, type_ in itertools.product(bases, range(len(original_types)), types):
            yield (*base[:index], type_, *base[index + 1 :])


def _statistics_operands(call: Call, arguments: Mapping[str, Any]) -> frozenset[int]:
    """Return the indices of the operands that are statistics."""
    pairs = zip(_tensor_parameters(call.name, arguments), call.slots, strict=False)
    return frozenset(slot for name, slot in pairs if name in STATISTICS and isinstance(slot, int))


def _with_f32_statistics(
    assignments: Iterator[tuple[DType, ...]], statistics: frozenset[int]
) -> Iterator[tuple[DType, ...]]:
    """Yield each assignment. If all types are bf16 or f16, also yield it with the statistics in f32."""
    for types in assignments:
        yield types
        if statistics and {*types} in ({dt.BF16}, {dt.F16}):
            yield tuple(dt.F32 if index in statistics else type_ for index, type_ in enumerate(types))


def _tensor_parameters(op: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of the tensor parameters of an op that no argument fills."""
    parameters = schema_of(torch_op(op)).arguments
    return [
        parameter.name
        for parameter in parameters
        if "Tensor" in str(parameter.type) and parameter.name not in arguments
    ]


def _cast(tensor: Tensor, dtype: DType) -> Tensor:
    """Convert a tensor without torch's warning about a lost imaginary part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tensor.to(TORCH_DTYPES[dtype])


def _run_trial(call: Call, tensors: list[Tensor], arguments: Mapping[str, Any], devices: Sequence[str]) -> TypeTrial:
    """Run a call on each device, and return the element types of its results and whether torch rejects the types.

    The error on the CPU decides, or the one on meta tensors if the CPU has no kernel for the types. It counts only if
    its text is about element types.

    Args:
        tensors: the operands, with the element types to try.
    """
    target = torch_op(call.name)
    result_types: list[tuple[str, tuple[DType | None, ...]]] = []
    errors: dict[str, str] = {}
    for device in devices:
        device_tensors = [tensor.to(device) if device == "meta" else tensor.clone() for tensor in tensors]
        try:
            positional, named = bind_arguments(target, call.slots, device_tensors, arguments)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                output = (cpu_implementation(call.name) if device == "cpu" else target)(*positional, **named)
        except Exception as error:  # kernels and meta functions may raise any exception
            errors[device] = str(error)
            continue
        results = output if isinstance(output, (tuple, list)) else [output]
        dtypes = [result.dtype if isinstance(result, Tensor) else None for result in results]
        if all(dtype is None or dtype in DTYPES_OF_TORCH for dtype in dtypes):
            result_types.append((device, tuple(None if dtype is None else DTYPES_OF_TORCH[dtype] for dtype in dtypes)))
    parameters = _tensor_parameters(call.name, arguments)
    metas = [TensorMeta(tuple(tensor.shape), DTYPES_OF_TORCH[tensor.dtype]) for tensor in tensors]
    operands = {}
    for name, slot in zip(parameters, call.slots, strict=False):
        indices = slot if isinstance(slot, tuple) else (slot,)
        operands[name] = tuple(metas[index] for index in indices if index is not None)
    lacks_kernel = "cpu" not in devices or bool(MISSING_KERNEL.search(errors.get("cpu", "")))
    error_text = errors.get("meta" if lacks_kernel else "cpu", "")
    is_rejected = bool(TYPE_ERROR.search(error_text)) and not MISSING_KERNEL.search(error_text)
    return TypeTrial(operands, arguments, tuple(result_types), is_rejected, lacks_kernel)


def _with_missing_kernels(trials: list[TypeTrial]) -> list[TypeTrial]:
    """Mark the types without a kernel as rejected, if the CPU has no kernel for any float, or for any integer."""
    if not any(trial.is_accepted for trial in trials):
        return trials
    is_kind_missing: dict[str, bool] = {}
    for kind in ("float", "int"):
        trials_of_kind = []  # with one element type for all operands
        for trial in trials:
            first_type, *other_types = dict.fromkeys(trial.types) or (None,)
            # Few kernels support types of one byte, such as float8, so these do not count.
            if not other_types and first_type and first_type.kind == kind and first_type.itemsize > 1:
                trials_of_kind.append(trial)
        is_kind_missing[kind] = bool(trials_of_kind) and all(trial.lacks_kernel for trial in trials_of_kind)
    marked = []
    for trial in trials:
        is_rejected = trial.lacks_kernel and any(is_kind_missing.get(type_.kind) for type_ in trial.types)
        marked.append(attrs.evolve(trial, is_rejected=True) if is_rejected else trial)
    return marked
