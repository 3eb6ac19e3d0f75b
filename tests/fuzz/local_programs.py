# ruff: noqa: E501
"""Programs that between them have everything that localize makes: uneven sizes, local forms, buckets, plug-ins."""

from __future__ import annotations

import re

import torch

from spmdir import run_passes
from spmdir.core.dtype import I64
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.names import full_name
from spmdir.torch_interop.dtypes import TORCH_DTYPES

STAGES = {
    "localize": "insert-reshard,lower-reshard,localize",
    "lower-reshard": "insert-reshard,lower-reshard",
    "insert-reshard": "insert-reshard",
    "propagate": "",
}
"""Stage → the passes after propagate that lead there."""

PROGRAMS = {
    "mlp": """
        <dp = 2, tp = 2> (%x: tensor<7x6xf64> <dp: S(0)>, %v: tensor<6x5xf64> <tp: S(1)>, %w: tensor<5x4xf64> <tp: S(0)>)
        %0 = aten.mm(%x, %v) : tensor<7x5xf64>
        %1 = aten.relu(%0) : tensor<7x5xf64>
        %2 = aten.mm(%1, %w) : tensor<7x4xf64> <dp: S(0), tp: P(sum)>
        %3 = aten.exp(%2) : tensor<7x4xf64>
        return %3 : tensor<7x4xf64>""",
    "vocabulary": """
        <dp = 2, tp = 3> (%table: tensor<11x4xf64> <tp: S(0)>, %ids: tensor<5xi64> <dp: S(0)>)
        %0 = aten.embedding(%table, %ids) : tensor<5x4xf64> <dp: S(0), tp: P(sum)>
        %1 = aten.tanh(%0) : tensor<5x4xf64>
        return %1 : tensor<5x4xf64>""",
    "masked": """
        <tp = 3> (%table: tensor<11x4xf64> <tp: S(0)>, %ids: tensor<5xi64> <>)
        %0 = aten.embedding(%table, %ids) : tensor<5x4xf64> <tp: Masked>
        %1 = aten.relu(%0) : tensor<5x4xf64> <tp: Masked>
        %2 = aten.exp(%1) : tensor<5x4xf64> <tp: S(1)>
        return %2 : tensor<5x4xf64>""",
    "positions": """
        <dp = 2, tp = 3> (%x: tensor<8x7xf64> <dp: S(0), tp: S(1)>)
        %0 = aten.arange() {dtype = i64, end = 7} : tensor<7xi64> <tp: S(0)>
        %1 = aten.add.Tensor(%x, %0) : tensor<8x7xf64> <dp: S(0), tp: S(1)>
        %2 = aten.triu(%1) {diagonal = 1} : tensor<8x7xf64> <dp: S(0)>
        %3 = aten.view(%2) {size = [2, 4, 7]} : tensor<2x4x7xf64> <dp: S(0)>
        %4 = aten.sum.dim_IntList(%3) {dim = [2]} : tensor<2x4xf64> <dp: S(0)>
        return %4 : tensor<2x4xf64>""",
    "pixels": """
        <a = 2, b = 2> (%x: tensor<1x2x8x6xf64> <a: S(2), b: S(3)>, %w: tensor<3x2x3x3xf64> <>)
        %0 = aten.convolution(%x, %w, none) {dilation = [1, 1], groups = 1, output_padding = [0, 0], padding = [1, 1], stride = [2, 1], transposed = false} : tensor<1x3x4x6xf64> <a: S(2), b: S(3)>
        %1 = aten.max_pool2d(%0) {kernel_size = [3, 3], padding = [1, 1], stride = [1, 1]} : tensor<1x3x4x6xf64> <a: S(2), b: S(3)>
        return %1 : tensor<1x3x4x6xf64>""",
    "one rank": """
        <dp = 1, tp = 3> (%x: tensor<8x7xf64> <tp: S(0), dp: S(0)>, %w: tensor<7x5xf64> <dp: S(1)>)
        %0 = aten.mm(%x, %w) : tensor<8x5xf64> <dp: S(0), tp: S(0)>
        %1 = aten.triu(%0) {diagonal = 1} : tensor<8x5xf64> <dp: S(1), tp: S(0)>
        %2 = aten.sum.dim_IntList(%1) {dim = [0]} : tensor<5xf64> <dp: P(sum), tp: P(sum)>
        %3 = aten.exp(%2) : tensor<5xf64>
        return %3 : tensor<5xf64>""",
    "bucket": """
        <dp = 2, tp = 2> (%x: tensor<4x6xf64> <tp: S(1), dp: P(sum)>, %y: tensor<6xf64> <dp: P(sum)>)
        %0, %1 = spmd.all_reduce_start %x, %y on [dp] op sum : !spmd.pending<tensor<4x6xf64>> <tp: S(1)>, !spmd.pending<tensor<6xf64>> <>
        %3, %4 = spmd.wait %0, %1 : tensor<4x6xf64> <tp: S(1)>, tensor<6xf64> <>
        %5 = aten.mul.Tensor(%3, %4) : tensor<4x6xf64> <tp: S(1)>
        return %5 : tensor<4x6xf64>""",
    "sub-axes": """
        <tp = 4> (%x: tensor<8x6xf64> <tp: S(0)>)
        %0 = aten.view(%x) {size = [2, 4, 6]} : tensor<2x4x6xf64> <tp(1)2: S(0), tp(2)2: S(1)>
        %1 = aten.sum.dim_IntList(%0) {dim = [1]} : tensor<2x6xf64> <tp(1)2: S(0), tp(2)2: P(sum)>
        %2 = aten.exp(%1) : tensor<2x6xf64> <tp(1)2: S(0)>
        return %2 : tensor<2x6xf64>""",
    "dealt": """
        <tp = 2> (%x: tensor<9x4xf64> <tp: Cyclic(0, 2)>, %w: tensor<4x6xf64> <>)
        %0 = aten.mm(%x, %w) : tensor<9x6xf64> <tp: Cyclic(0, 2)>
        %1 = aten.view(%0) {size = [9, 2, 3]} : tensor<9x2x3xf64> <tp: Cyclic(0, 2)>
        %2 = aten.amax(%1) {dim = [0]} : tensor<2x3xf64> <tp: P(max)>
        return %2 : tensor<2x3xf64>""",
    "random": """
        <dp = 3> (%x: tensor<5x4xf64> <dp: S(0)>)
        %0 = aten.rand_like(%x) : tensor<5x4xf64> <>
        %1 = aten.mul.Tensor(%x, %0) : tensor<5x4xf64> <dp: S(0)>
        %2 = aten.mean.dim(%1) {dim = [0], keepdim = true} : tensor<1x4xf64> <dp: P(sum)>
        %3 = aten.sub.Tensor(%x, %2) : tensor<5x4xf64> <dp: S(0)>
        return %3 : tensor<5x4xf64>""",
    "written": """
        <tp = 2> (%table: tensor<7x3xf64> <tp: S(0)>, %ids: tensor<4xi64> <>, %new: tensor<4x3xf64> <>)
        %0 = aten.index_copy(%table, %ids, %new) {dim = 0} : tensor<7x3xf64> <tp: S(0)>
        %1 = aten.select.int(%0) {dim = 1, index = 1} : tensor<7xf64> <tp: S(0)>
        %2 = aten.cumsum(%1) {dim = 0} : tensor<7xf64> <>
        return %0, %2 : tensor<7x3xf64>, tensor<7xf64>""",
}  # fmt: skip
"""Name → mesh, arguments and body, shardings behind types."""

_ARGUMENT = re.compile(r"(%\w+: tensor<[^<>]*>) <([^<>]*)>")


def program(name: str, stage: str) -> str:
    """Return the text of program `name` at `stage`."""
    mesh, _, rest = PROGRAMS[name].strip().partition(" (")
    arguments, _, body = rest.partition("\n")
    given = _ARGUMENT.sub(_argument, arguments)
    results = body.rpartition(" : ")[2]
    text = f"spmd.mesh @mesh {mesh}\nfunc.func @main({given} -> ({results}) {{\n{body}\n}}\n"
    module = ir.parse(text)
    if "spmd.wait" not in text:
        run_passes(module, "propagate")
    if STAGES[stage]:
        run_passes(module, STAGES[stage])
    return ir.print_ir(module)


def _argument(match: re.Match[str]) -> str:
    sharding = f", {match[2]}" if match[2] else ""
    return f"{match[1]} {{spmd.sharding = #spmd.sharding<@mesh{sharding}>}}"


def inputs(name: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random values for the arguments of program `name`; indices are smaller than any table."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for value in ir.main_function(ir.parse(program(name, "propagate"))).args:
        meta = meta_of(value.type)
        assert meta is not None and full_name(value) is not None
        whole = torch.randint(0, 4, meta.shape, generator=generator)
        real = torch.randn(meta.shape, generator=generator, dtype=torch.float64)
        found[full_name(value)] = whole if meta.dtype == I64 else real.to(TORCH_DTYPES[meta.dtype])
    return found
