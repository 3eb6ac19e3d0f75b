"""Capture the aten calls of torch's OpInfo samples, forward and backward, as samples of the called ops.

OpInfos belong to torch's tests. They move between versions and require the package expecttest, so they may be absent.
"""

from __future__ import annotations

import copyreg
import io
import itertools
import pickle
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from spmdir.checking.rules.samples.sample import Sample
from spmdir.checking.rules.values import seed
from spmdir.torch_interop import pytree
from spmdir.torch_interop.dispatch import TorchDispatchMode
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH
from spmdir.torch_interop.ops import op_infos, schema_of

ELEMENT_TYPES = (torch.float64, torch.int64, torch.bool, torch.complex128)
"""The element types of samples by default."""

MAX_SAMPLES = 30
"""The most samples of one OpInfo and element type that are run."""

MAX_ELEMENTS = 700
"""The most elements of an operand in a captured call. Small tensors suffice to check rules."""

STORAGE_ARGUMENTS = ("device", "layout", "pin_memory", "memory_format", "generator", "non_blocking")
"""Arguments for the storage of a tensor, not for its elements."""

UNSUPPORTED: Any = object()
"""Marks a value that a sample cannot contain."""


@cache
def _opinfos() -> tuple[list[Any], str | None]:
    """Return torch's OpInfos, and a note if they cannot be loaded."""
    try:
        return op_infos(), None
    except ImportError as error:
        return [], f"torch's OpInfo samples cannot be loaded ({error}); checked the packaged samples alone"


def opinfo_names() -> tuple[list[str], str | None]:
    """Return the names of torch's OpInfos, and the reason if they cannot be loaded."""
    infos, problem = _opinfos()
    return [info.name for info in infos], problem


def capture(
    index: int, selected: frozenset[str] | None, element_types: Iterable[torch.dtype] = ELEMENT_TYPES
) -> list[tuple[str, str, bytes]]:
    """Return (op, kind of call, pickled sample) of each distinct call in the samples of one OpInfo.

    Args:
        index: the index of the OpInfo in `opinfo_names`.
        selected: the ops to capture; None for all functional aten ops.
        element_types: the element types of the samples.
    """
    info = _opinfos()[0][index]
    recorder = _Recorder(selected)
    for dtype in element_types:
        if dtype not in info.dtypes:
            continue
        seed(info.name, dtype)
        differentiable = info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        # Some samples cannot run on every machine.
        try:
            for sample in itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=differentiable), MAX_SAMPLES):
                _run(info.op, sample, recorder)
        except Exception:
            continue
    return recorder.calls


def _run(op: Callable[..., Any], sample: Any, recorder: _Recorder) -> None:
    """Run a sample of an OpInfo and its backward pass, so that `recorder` records their ops. Stop if an op fails."""
    try:
        with recorder:
            results = op(sample.input, *sample.args, **sample.kwargs)
            outputs = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor) and leaf.requires_grad]
            if outputs:
                torch.autograd.backward(outputs, list(map(torch.randn_like, outputs)))
    except Exception:
        return


class _Recorder(TorchDispatchMode):
    """Records each call of a functional aten op on small dense tensors."""

    def __init__(self, selected: frozenset[str] | None):
        super().__init__()
        self.selected = selected
        self.calls: list[tuple[str, str, bytes]] = []
        self._keys: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a call and return its result. Record the call if its op is selected and does not overwrite operands."""
        kwargs = kwargs or {}
        name = op_name(func)
        is_selected = name.startswith("aten.") if self.selected is None else name in self.selected
        # The sample copies the operands before the op may overwrite them.
        is_recorded = is_selected and not schema_of(func).is_mutable
        sample = _sample_of_call(name, func, args, kwargs) if is_recorded else None
        result = func(*args, **kwargs)
        if sample:
            self._record(sample)
        return result

    def _record(self, sample: Sample) -> None:
        """Add a call, unless one of the same op, operand shapes, element types and arguments has been recorded.

        Its kind is coarser: the kinds of its operands and the types of its arguments. Calls of few kinds are checked.
        """
        argument_types = sorted((name, type(value).__name__) for name, value in sample.arguments.items())
        arguments = [(name, sample.arguments[name]) for name in sorted(sample.arguments)]
        kind = f"{list(map(_kind_of_operand, sample.operands))} {argument_types}"
        call = f"{list(map(_operand_key, sample.operands))} {arguments}"
        if f"{sample.op} {call}" not in self._keys:
            self._keys.add(f"{sample.op} {call}")
            self.calls.append((sample.op, kind, _pickled(sample)))


def _pickled(sample: Sample) -> bytes:
    """Pickle a sample. Tensors are pickled as NumPy arrays, because torch's pickling takes longer than most ops."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer)
    pickler.dispatch_table = copyreg.dispatch_table.copy()
    pickler.dispatch_table[Tensor] = _reduce_tensor
    pickler.dump(sample)
    return buffer.getvalue()


def _reduce_tensor(tensor: Tensor) -> Any:
    """Return (function, arguments) to make a tensor again from its pickle. NumPy has no bfloat16."""
    return tensor.__reduce_ex__(2) if tensor.dtype == torch.bfloat16 else (torch.from_numpy, (tensor.numpy(),))


def op_name(func: Any) -> str:
    """Return the name of an overload in rules: `aten.mm`, `aten.add.Tensor`."""
    schema = schema_of(func)
    name = schema.name.replace("::", ".")
    return f"{name}.{schema.overload_name}" if schema.overload_name else name


def _sample_of_call(name: str, func: Any, args: Any, kwargs: Any) -> Sample | None:
    """Return the call as a sample; None if a sample cannot contain one of its values."""
    values = dict(zip((argument.name for argument in schema_of(func).arguments), args, strict=False)) | kwargs
    operands: list[Any] = []
    arguments: dict[str, Any] = {}
    for argument in schema_of(func).arguments:
        value = values.get(argument.name)
        if "Tensor" in str(argument.type):
            operands.append(_operand(value))
            if operands[-1] is UNSUPPORTED:
                return None
        elif argument.name in values and argument.name not in STORAGE_ARGUMENTS:
            literal = _literal(value)
            if literal is UNSUPPORTED:
                return None
            arguments[argument.name] = literal
    return Sample(name, tuple(operands), arguments)


def _operand(value: Any) -> Any:
    """Return a copy of an operand; UNSUPPORTED if it is a tensor that is large, not dense, or of a subclass.

    A list is converted entry by entry. Other values, such as numbers, are returned unchanged.
    """
    if isinstance(value, (list, tuple)):
        operands = [_operand(entry) for entry in value]
        return UNSUPPORTED if any(entry is UNSUPPORTED for entry in operands) else operands
    if not isinstance(value, Tensor):
        return value
    is_dense = value.layout == torch.strided and value.device.type == "cpu" and value.dtype in DTYPES_OF_TORCH
    if not is_dense or value.numel() > MAX_ELEMENTS or type(value) not in (Tensor, torch.nn.Parameter):
        return UNSUPPORTED
    return value.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def _literal(value: Any) -> Any:
    """Return an argument as a literal, or UNSUPPORTED."""
    if isinstance(value, torch.dtype):
        return DTYPES_OF_TORCH.get(value, UNSUPPORTED)
    if isinstance(value, (list, tuple)):
        literals = tuple(_literal(entry) for entry in value)
        return UNSUPPORTED if any(entry is UNSUPPORTED for entry in literals) else literals
    return value if isinstance(value, (int, float, complex, str, type(None))) else UNSUPPORTED


def _kind_of_operand(operand: Any) -> Any:
    """Return the properties of an operand by which kinds of calls differ: rank, sizes of 0 and 1, element type.

    Sizes above 1 count as 2. The first two tensors represent a list.
    """
    if isinstance(operand, list):
        return [_kind_of_operand(tensor) for tensor in operand[:2]]
    if not isinstance(operand, Tensor):
        return type(operand).__name__
    return [min(size, 2) for size in operand.shape], str(operand.dtype)


def _operand_key(operand: Any) -> Any:
    """Return a value that is equal for operands of the same shape and element type."""
    if isinstance(operand, list):
        return [_operand_key(tensor) for tensor in operand]
    return (tuple(operand.shape), str(operand.dtype)) if isinstance(operand, Tensor) else operand
