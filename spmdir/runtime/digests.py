"""Digests by which ranks find out that they differ."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, fx
from xdsl.dialects.builtin import ModuleOp

from spmdir.dialects import ir
from spmdir.lowering.process_groups import group_names


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


def tensor_digest(tensor: Tensor) -> str:
    """Return the digest of a tensor's bits."""
    bits = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(bits.numpy()).hexdigest()[:16]  # type: ignore  # an array is a buffer
