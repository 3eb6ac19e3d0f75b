"""The aten calls that torch's own OpInfo samples make, forward and backward, as samples of the ops they call.

torch keeps them for its tests: they move between versions and need the package expecttest, so they may be absent.
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
"""What samples are asked for by default."""

SAMPLES_OF_ONE = 30
"""How many samples of one OpInfo and element type are run."""

LARGEST = 700
"""Elements of the largest operand that is kept: a rule is as wrong on small tensors."""

PLACES = ("device", "layout", "pin_memory", "memory_format", "generator", "non_blocking")
"""Arguments about where a tensor is stored, not what is in it."""

UNSAYABLE: Any = object()
"""Stands for what a sample cannot say."""


@cache
def _opinfos() -> tuple[list[Any], str | None]:
    try:
        return op_infos(), None
    except ImportError as error:
        return [], f"torch's OpInfo samples cannot be loaded ({error}); checked the packaged samples alone"


def opinfo_names() -> tuple[list[str], str | None]:
    """Return the names of torch's OpInfos, and why there are none if there are none."""
    infos, problem = _opinfos()
    return [info.name for info in infos], problem


def capture(
    index: int, wanted: frozenset[str] | None, element_types: Iterable[torch.dtype] = ELEMENT_TYPES
) -> list[tuple[str, str, bytes]]:
    """Return (op, what kind of call, pickled sample) of each different call that the samples of one OpInfo make.

    Args:
        wanted: the ops to keep; None keeps all functional ones.
        element_types: what samples are asked for.
    """
    info = _opinfos()[0][index]
    recorder = _Recorder(wanted)
    for dtype in element_types:
        if dtype not in info.dtypes:
            continue
        seed(info.name, dtype)
        differentiable = info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        # Whatever samples there are, some fail to run on this machine.
        try:
            for sample in itertools.islice(
                info.sample_inputs("cpu", dtype, requires_grad=differentiable), SAMPLES_OF_ONE
            ):
                _run(info.op, sample, recorder)
        except Exception:
            continue
    return recorder.found


def _run(op: Callable[..., Any], sample: Any, recorder: _Recorder) -> None:
    try:
        with recorder:
            made = op(sample.input, *sample.args, **sample.kwargs)
            leaves = [t for t in pytree.tree_leaves(made) if isinstance(t, Tensor) and t.requires_grad]
            if leaves:
                torch.autograd.backward(leaves, [torch.randn_like(t) for t in leaves])
    except Exception:
        return


class _Recorder(TorchDispatchMode):
    """Keeps every call of a functional aten op on small dense tensors."""

    def __init__(self, wanted: frozenset[str] | None):
        super().__init__()
        self.wanted = wanted
        self.found: list[tuple[str, str, bytes]] = []
        self._seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = op_name(func)
        keep = not schema_of(func).is_mutable and (
            name.startswith("aten.") if self.wanted is None else name in self.wanted
        )
        sample = _sample(name, func, args, kwargs) if keep else None
        result = func(*args, **kwargs)
        if sample:
            self._keep(sample)
        return result

    def _keep(self, sample: Sample) -> None:
        given = sorted((name, type(value).__name__) for name, value in sample.arguments.items())
        kind = f"{[_form(o) for o in sample.operands]} {given}"
        call = f"{[_shape(o) for o in sample.operands]} {sorted(sample.arguments.items(), key=lambda kv: kv[0])}"
        if f"{sample.op} {call}" not in self._seen:
            self._seen.add(f"{sample.op} {call}")
            self.found.append((sample.op, kind, _pickled(sample)))


def _pickled(sample: Sample) -> bytes:
    """Return `sample` as bytes; torch's own way of pickling tensors costs more than running most ops."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer)
    pickler.dispatch_table = copyreg.dispatch_table.copy()
    pickler.dispatch_table[Tensor] = lambda t: (
        t.__reduce_ex__(2) if t.dtype == torch.bfloat16 else (torch.from_numpy, (t.numpy(),))
    )
    pickler.dump(sample)
    return buffer.getvalue()


def op_name(func: Any) -> str:
    """Return the name that rules use for an overload: `aten.mm`, `aten.add.Tensor`."""
    schema = schema_of(func)
    name = schema.name.replace("::", ".")
    return f"{name}.{schema.overload_name}" if schema.overload_name else name


def _sample(name: str, func: Any, args: Any, kwargs: Any) -> Sample | None:
    """Return the call as a sample, if a sample can say it."""
    given = dict(zip((a.name for a in schema_of(func).arguments), args, strict=False)) | kwargs
    operands: list[Any] = []
    arguments: dict[str, Any] = {}
    for argument in schema_of(func).arguments:
        value = given.get(argument.name)
        if "Tensor" in str(argument.type):
            operands.append(_operand(value))
            if operands[-1] is UNSAYABLE:
                return None
        elif argument.name in given and argument.name not in PLACES:
            literal = _literal(value)
            if literal is UNSAYABLE:
                return None
            arguments[argument.name] = literal
    return Sample(name, tuple(operands), arguments)


def _operand(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        made = [_operand(one) for one in value]
        return UNSAYABLE if any(one is UNSAYABLE for one in made) else made
    if not isinstance(value, Tensor):
        return value
    dense = value.layout == torch.strided and value.device.type == "cpu" and value.dtype in DTYPES_OF_TORCH
    if not dense or value.numel() > LARGEST or type(value) not in (Tensor, torch.nn.Parameter):
        return UNSAYABLE
    return value.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def _literal(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return DTYPES_OF_TORCH.get(value, UNSAYABLE)
    if isinstance(value, (list, tuple)):
        made = tuple(_literal(one) for one in value)
        return UNSAYABLE if any(one is UNSAYABLE for one in made) else made
    return value if isinstance(value, (int, float, complex, str, type(None))) else UNSAYABLE


def _form(operand: Any) -> Any:
    """Return what of an operand makes a different kind of call: rank, where sizes are 1, element type."""
    if isinstance(operand, list):
        return [_form(one) for one in operand[:2]]
    if not isinstance(operand, Tensor):
        return type(operand).__name__
    return [min(size, 2) for size in operand.shape], str(operand.dtype)


def _shape(operand: Any) -> Any:
    if isinstance(operand, list):
        return [_shape(one) for one in operand]
    return (tuple(operand.shape), str(operand.dtype)) if isinstance(operand, Tensor) else operand
