"""Attention and its gradients as text, and the plug-in of the page about ring attention."""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spmdir import Pipeline

PAGE = Path(__file__).parents[2] / "docs" / "placements" / "ring-attention.md"
FORWARD, BACKWARD = (f"aten._scaled_dot_product_flash_attention_for_cpu{end}" for end in ("", "_backward"))
TYPES = {torch.float64: ("f64", "f64"), torch.float32: ("f32", "f32"), torch.bfloat16: ("bf16", "f32")}
"""Element type → its name, and that of the logarithms of sums."""


@functools.cache
def plugin() -> str:
    """Return the path of a file with the plug-in that the page shows, under another name than the page's own run."""
    shown = re.search(r"<<'END'\n(.*?)^END$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown
    assert shown[1].count("\n") <= 60
    path = Path(tempfile.mkdtemp()) / "ring_attention.py"
    path.write_text(shown[1].replace("Attended", "RingAttended"))
    return str(path)


def pipeline(path: str, memory: str = "least", topology: str | None = None) -> Pipeline:
    """Return the standard passes with the plug-in at `path`, and what a rank may hold."""
    passes = f"inline,propagate{{memory={memory}}},expand,insert-reshard,lower-reshard,localize"
    return Pipeline(passes, plugins=[path], topology=topology)


def ring_pipeline(path: str) -> Pipeline:
    """Return the passes after `propagate`, with the plug-in at `path`: for programs that are decided."""
    return Pipeline("inline,expand,insert-reshard,lower-reshard,localize", plugins=[path])


def ring_program(tensors: list[Tensor], sharding: str, is_causal: bool = True) -> str:
    """Return the text of `program` with the decision that all ops need their operands with `sharding`, by rings."""
    lines = program(tensors, sharding, is_causal=is_causal).splitlines()
    for name, count in ((FORWARD, 3), (BACKWARD, 6)):
        at = next(at for at, line in enumerate(lines) if f"{name}(" in line)
        lines[at] += f" needs ({', '.join([f'<{sharding}>'] * count)})"
    return "\n".join(lines)


def program(tensors: list[Tensor], sharding: str, mesh: str = "cp = 4", is_causal: bool = True) -> str:
    """Return the text of a program from queries, keys, values and the gradient of the output to the output and the
    gradients of the first three, all of them with `sharding`."""
    query, key = (list(tensor.shape) for tensor in tensors[:2])
    kind, wide = TYPES[tensors[0].dtype]
    q, k = (f"tensor<{'x'.join(map(str, shape))}x{kind}>" for shape in (query, key))
    lse = f"tensor<{'x'.join(map(str, query[:-1]))}x{wide}>"
    given = f"{{spmd.sharding = #spmd.sharding<@mesh, {sharding}>}}"
    flag, s = "true" if is_causal else "false", f"<{sharding}>"
    results = ", ".join(f"{type_} {given}" for type_ in (q, q, k, k))
    return f"""spmd.mesh @mesh <{mesh}>
func.func @f(%q: {q} {given}, %k: {k} {given}, %v: {k} {given}, %g: {q} {given}) -> ({results}) {{
  %0, %1 = {FORWARD}(%q, %k, %v) {{is_causal = {flag}}} : {q} {s}, {lse} {s}
  %2, %3, %4 = {BACKWARD}(%g, %q, %k, %v, %0, %1) {{dropout_p = 0.0, is_causal = {flag}}} : {q} {s}, {k} {s}, {k} {s}
  return %0, %2, %3, %4 : {q}, {q}, {k}, {k}
}}"""


def inputs(
    length: int, heads: int = 4, key_heads: int = 2, size: int = 8, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Return random queries, keys, values, and the gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    counts = (heads, key_heads, key_heads, heads)
    return [torch.randn(2, n, length, size, dtype=torch.float64, generator=generator).to(dtype) for n in counts]


def expected(tensors: list[Tensor], is_causal: bool = True) -> list[Tensor]:
    """Return what the program gives, in f64."""
    *leaves, gradient = (tensor.double() for tensor in tensors)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=is_causal, enable_gqa=True)
    return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]


def worst(found: list[Tensor], wanted: list[Tensor]) -> float:
    """Return the largest error in norm, relative to the norm."""
    return max(float((a.double() - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True))


class Sent(TorchDispatchMode):
    """Counts the bytes that this rank gives to all_to_all for other ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops._c10d_functional.all_to_all_single.default:
            self.bytes += args[0].numel() * args[0].element_size()
        return func(*args, **(kwargs or {}))
