"""Digests of programs, tensors and values, by which ranks detect differences."""

from __future__ import annotations

import hashlib
import zlib
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, fx
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.dtype import DType
from spmdir.core.placement.base import Placement
from spmdir.core.placement.digest import layout_digest
from spmdir.core.placement.standard import plugins
from spmdir.dialects import ir
from spmdir.dialects.values import global_type, sharding_of
from spmdir.lowering.process_groups import group_names
from spmdir.torch_interop.bits import flat_bytes

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element → integer type of the same size."""

_ODD = -7046029254386353131
"""2^64 divided by the golden ratio, as a signed number: products with it differ in their high bits."""

_CHUNK = 1 << 22
"""Maximum number of elements that are hashed at once, to limit memory."""


@cache
def package_digest() -> str:
    """Return the digest of the files of this package. Unlike a version, it changes with each edit of a checkout."""
    files = sorted(Path(__file__).parents[1].rglob("*"))
    contents = [
        file.read_bytes() for file in files if file.suffix in (".py", ".rules", ".rewrites", ".parsed", ".lark")
    ]
    return hashlib.sha256(b"\0".join(contents)).hexdigest()


def text_digest(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def program_digest(module: ModuleOp, graph: fx.GraphModule) -> str:
    """Return the digest of a program and its groups. All ranks that run it must have the same digest."""
    return text_digest("\n".join([*group_names(graph), ir.print_ir(module)]))


def agreement(*programs: tuple[ModuleOp, fx.GraphModule]) -> dict[str, Any]:
    """Return the fields for `RankGroup.check_agreement` that must be equal on all ranks that run these programs.

    Args:
        programs: the module and the lowered graph of each program: one, or the forward and the backward.
    """
    program_digests = " ".join(program_digest(module, graph) for module, graph in programs)
    return {"program": program_digests, "placements": placement_digests(*(module for module, _ in programs))}


def placement_digests(*modules: ModuleOp) -> dict[str, str]:
    """Return plug-in placement → digest of the local tensors that its code defines for the tensors of the programs.

    The digest of a program depends only on its text, but this digest also depends on the code of placements.
    """
    tensors_of_placement: dict[Placement, set[tuple[tuple[int, ...], DType, int]]] = {}
    for mesh, op in ((ir.mesh(module), op) for module in modules for op in module.walk()):
        for value in (*op.results, *(argument for region in op.regions for argument in region.block.args)):
            sharding, meta = sharding_of(value), global_type(value, mesh)
            if sharding is None or meta is None or not plugins(placement for _, placement in sharding.entries):
                continue
            for _, placement, (shape, dtype), count in sharding.nested(mesh, meta.shape, meta.dtype):
                if not type(placement).__module__.startswith("spmdir."):
                    tensors_of_placement.setdefault(placement, set()).add((shape, dtype, count))
    return {
        str(plugin_placement): layout_digest(plugin_placement, sorted(tensors, key=repr))
        for plugin_placement, tensors in sorted(tensors_of_placement.items(), key=repr)
    }


def tensor_digest(tensor: Tensor) -> str:
    """Return the digest of a tensor's bits."""
    return hashlib.sha256(flat_bytes(tensor.cpu()).numpy()).hexdigest()[:16]  # type: ignore  # an array is a buffer


def quick_digest(tensor: Tensor) -> int:
    """Return a hash of the shape, element type and bits of a tensor, computed on its device.

    Only the hash is copied from the device. Equal tensors on devices of one type have equal hashes. The hash is not
    cryptographic: different tensors with equal hashes can be constructed.
    """
    bits = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    bits = bits.resolve_neg().contiguous().reshape(-1).view(_BITS[bits.element_size()])
    start = zlib.crc32(f"{tensor.dtype} {list(tensor.shape)}".encode())
    return zlib.crc32(bits.numpy(), start) if bits.is_cpu else hash_bits(bits, start)  # type: ignore  # an array is a buffer


def hash_bits(bits: Tensor, start: int) -> int:
    """Return `start` plus the sum of hashes of (index, integer), computed on the device of the integers."""
    total = torch.full((), start, dtype=torch.int64, device=bits.device)
    for chunk_start in range(0, len(bits), _CHUNK):
        chunk = bits[chunk_start : chunk_start + _CHUNK]
        indices = torch.arange(chunk_start, chunk_start + len(chunk), dtype=torch.int64, device=bits.device)
        hashes = indices.mul_(_ODD).add_(chunk).mul_(_ODD)  # wraps around
        total += hashes.bitwise_xor_(hashes >> 32).mul_(_ODD).sum()
    return total.item()  # type: ignore  # an integer


def value_digest(value: Any) -> str:
    """Return a digest of a value that pickle supports; equal values have equal digests in all processes.

    The pickle itself is not used, because it depends on which parts are the same object. `repr` is not used, because it
    may contain addresses.

    Raises:
        TypeError: the value cannot be pickled.
    """
    return text_digest(_describe_value(value, ()))


def _describe_value(value: Any, enclosing: tuple[int, ...]) -> str:
    """Return a text of a value and of all its parts.

    Args:
        enclosing: the ids of the values that contain this one, outermost first. A value that contains itself has a
            reference to the enclosing value in its text: `x = [1]; x.append(x)` gives `list(1, the one 1 outside)`.
    """
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)} {tensor_digest(value)}"
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return repr(value)
    if id(value) in enclosing:
        return f"the one {len(enclosing) - enclosing.index(id(value))} outside"
    enclosing = (*enclosing, id(value))
    if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(_describe_value(part, enclosing) for part in value)})"
    if type(value) in (set, frozenset):
        return f"{type(value).__name__}({', '.join(sorted(_describe_value(part, enclosing) for part in value))})"
    if type(value) is dict:
        items = sorted(
            f"{_describe_value(key, enclosing)}: {_describe_value(part, enclosing)}" for key, part in value.items()
        )
        return f"dict({', '.join(items)})"
    reduced: Any = value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return reduced
    # Items of lists and dicts are iterators in the tuple of `__reduce_ex__`.
    parts: list[Any] = [list(part) if hasattr(part, "__next__") else part for part in reduced]
    return _describe_value(tuple(parts), enclosing)
