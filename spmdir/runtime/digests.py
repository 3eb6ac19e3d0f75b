"""Digests by which ranks find out that they differ."""

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
"""Bytes of an element → the integers that its bits are read as."""

_ODD = -7046029254386353131
"""2^64 divided by the golden ratio, as a signed number: products with it differ in their high bits."""

_CHUNK = 1 << 22
"""Most elements that are hashed at once, which bounds the memory that this takes."""


@cache
def package_digest() -> str:
    """Return the digest of this package's files: a checkout has no version that changes with it."""
    files = sorted(Path(__file__).parents[1].rglob("*"))
    read = [file.read_bytes() for file in files if file.suffix in (".py", ".rules", ".rewrites", ".parsed", ".lark")]
    return hashlib.sha256(b"\0".join(read)).hexdigest()


def text_digest(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def program_digest(module: ModuleOp, graph: fx.GraphModule) -> str:
    """Return the digest of what must be alike on ranks that run together: the program, and the groups that it needs."""
    return text_digest("\n".join([*group_names(graph), ir.print_ir(module)]))


def agreement(*halves: tuple[ModuleOp, fx.GraphModule]) -> dict[str, Any]:
    """Return what must be alike on ranks that run these programs together: the fields of a status for them."""
    programs = " ".join(program_digest(*half) for half in halves)
    return {"program": programs, "placements": placement_digests(*(module for module, _ in halves))}


def placement_digests(*modules: ModuleOp) -> dict[str, str]:
    """Return the placements of plug-ins in programs → the digest of what they say of the tensors of the programs.

    It depends on their code, and the digest of a program on its text alone.
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
        str(placement_used): layout_digest(placement_used, sorted(tensors, key=repr))
        for placement_used, tensors in sorted(tensors_of_placement.items(), key=repr)
    }


def tensor_digest(tensor: Tensor) -> str:
    """Return the digest of a tensor's bits."""
    return hashlib.sha256(flat_bytes(tensor.cpu()).numpy()).hexdigest()[:16]  # type: ignore  # an array is a buffer


def quick_digest(tensor: Tensor) -> int:
    """Return a number made of a tensor's shape, element type and bits, computed on its device.

    Only the number leaves the device. It differs for tensors that differ by accident, and is the same for equal ones on
    devices of one type.
    """
    bits = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    bits = bits.resolve_neg().contiguous().reshape(-1).view(_BITS[bits.element_size()])
    start = zlib.crc32(f"{tensor.dtype} {list(tensor.shape)}".encode())
    return zlib.crc32(bits.numpy(), start) if bits.is_cpu else hash_bits(bits, start)  # type: ignore  # an array is a buffer


def hash_bits(bits: Tensor, start: int) -> int:
    """Return `start` plus the sum of the hashes of integers, each hashed with its place; by ops of their device."""
    total = torch.full((), start, dtype=torch.int64, device=bits.device)
    for chunk_start in range(0, len(bits), _CHUNK):
        chunk = bits[chunk_start : chunk_start + _CHUNK]
        places = torch.arange(chunk_start, chunk_start + len(chunk), dtype=torch.int64, device=bits.device)
        mixed = places.mul_(_ODD).add_(chunk).mul_(_ODD)  # wraps around
        total += mixed.bitwise_xor_(mixed >> 32).mul_(_ODD).sum()
    return total.item()  # type: ignore  # an integer


def value_digest(value: Any) -> str:
    """Return a digest of what can be pickled, which is the same in all processes that have equal values.

    Pickles are not, as they tell which parts are one object, and `repr` is not where it tells an address.

    Raises:
        TypeError: it cannot be pickled.
    """
    return text_digest(_describe_value(value, ()))


def _describe_value(value: Any, enclosing: tuple[int, ...]) -> str:
    """Return a text of a value and of all that it is made of."""
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
    parts: list[Any] = [list(part) if hasattr(part, "__next__") else part for part in reduced]
    return _describe_value(tuple(parts), enclosing)
