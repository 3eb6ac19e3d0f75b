"""Views and rearrangements."""

from __future__ import annotations

import torch

from spmdir.checking.rules.samples.sample import Sample, b, c, f, i, sample
from spmdir.core.dtype import F64, I32, I64


def samples() -> list[Sample]:
    """Return calls of ops that move or select elements, and of their backward."""
    return [
        sample("as_strided", f(5, 4), size=(5, 4), stride=(4, 1)),
        sample("as_strided_scatter", f(5, 4), f(5, 4), size=(5, 4), stride=(4, 1)),
        *(sample(op, f(6, 4, 5), size=(3, 8, 5)) for op in ("view", "_unsafe_view")),
        sample("view", f(5, 4, 3), size=(5, 12)),
        *(sample("view", x, size=s) for x, s in ((f(8, 3), (2, 4, 3)), (f(2, 4, 3), (8, 3)), (f(2, 2, 4), (16,)))),
        sample("view", f(4, 15), size=(4, 3, -1)),
        sample("view", f(2, 3, 4), size=(4, 3, 2)),
        sample("view", f(3, 4, 5), size=(2, 6, 5)),
        sample("view", f(1, 5, 1), size=(5, 1, 1, 1)),
        sample("view", f(0, 5), size=(5, 0)),
        sample("view", f(1).sum(), size=(1, 1)),
        sample("view", b(4, 6), size=(24,)),
        sample("reshape", f(6, 4), shape=(4, -1)),
        sample("flatten.using_ints", f(5, 4, 3), start_dim=1),
        sample("unflatten.int", f(5, 12), dim=1, sizes=(3, 4)),
        sample("permute", f(5, 4, 3), dims=(2, 0, 1)),
        sample("transpose.int", f(5, 4, 3), dim0=0, dim1=-1),
        sample("t", f(5, 4)),
        sample("t", f(5)),
        sample("numpy_T", f(5, 4)),
        *(
            sample(op, f(5, 4, 3), source=source, destination=destination)
            for ops, source, destination in (
                (("movedim.int", "moveaxis.int"), 0, -1),
                (("movedim.intlist", "moveaxis.intlist"), (0, 2), (1, 0)),
            )
            for op in ops
        ),
        sample("swapaxes", f(5, 4, 3), axis0=0, axis1=-1),
        sample("swapdims", f(5, 4, 3), dim0=0, dim1=1),
        *(sample(op, x) for op in ("mT", "mH", "adjoint") for x in (f(2, 5, 4), c(2, 5, 4))),
        sample("matrix_H", c(5, 4)),
        sample("atleast_1d", f(5, 4)),
        sample("atleast_1d", f(1).sum()),
        sample("ravel", f(6, 4)),
        sample("view_as", f(6, 4), f(3, 8)),
        sample("reshape_as", f(6, 4), f(6, 2, 2)),
        sample("view.dtype", f(5, 4), dtype=I64),
        sample("view.dtype", i(9, 6, 4), dtype=F64, compare=False),
        sample("view.dtype", f(6, 4), dtype=I32),
        sample("view_as_real", c(5, 4)),
        sample("view_as_complex", f(5, 4, 2)),
        sample("unsqueeze", f(5, 4), dim=-1),
        sample("squeeze", f(5, 1, 4)),
        sample("squeeze.dim", f(5, 1, 4), dim=0),
        sample("squeeze.dim", f(5, 1, 4), dim=1),
        sample("squeeze.dims", f(1, 5, 1), dim=(0, -1)),
        sample("expand", f(5, 1), size=(3, -1, 4)),
        sample("expand_as", f(5, 1), f(3, 5, 4)),
        sample("broadcast_to", f(5, 1), size=(3, 5, 4)),
        sample("broadcast_tensors", [f(5, 1), f(4), f(5, 4)]),
        sample("tile", f(5, 4), dims=(3,)),
        sample("tile", f(5, 4), dims=(2, 1, 3)),
        sample("meshgrid", [f(5), f(4), f(1).sum()]),
        sample("meshgrid.indexing", [f(5), f(4)], indexing="xy"),
        sample("meshgrid.indexing", [f(5), f(4), f(6)], indexing="ij"),
        sample("repeat", f(5, 4), repeats=(2, 1, 3)),
        sample("repeat_interleave.self_int", f(6, 4), repeats=2, dim=0),
        sample("repeat_interleave.self_int", f(5, 4), repeats=3, dim=-1),
        sample("repeat_interleave.self_int", f(6, 4), repeats=2),
        sample("repeat_interleave.self_int", f(6, 4), repeats=2, dim=0, output_size=12),
        sample("slice.Tensor", f(5, 4), dim=1, start=1, end=3),
        *(
            sample("slice.Tensor", x, dim=0, start=start, end=end, step=step)
            for x in (f(6, 4), b(7, 4), c(5, 3))
            for start, end, step in ((1, 4, 1), (-3, None, 1), (None, -1, 2), (0, 2**63 - 1, 3))
        ),
        sample("slice.Tensor", f(6, 4), dim=0, start=4, end=2),
        sample("slice.Tensor", f(5, 4), dim=0, start=0, end=9),
        sample("narrow", f(5, 4), dim=1, start=1, length=2),
        sample("narrow", f(6, 4), dim=0, start=-3, length=2),
        sample("narrow.Tensor", f(6, 4), torch.tensor(1), dim=0, length=2),
        sample("select.int", f(5, 4), dim=1, index=2),
        *(sample("select.int", x, dim=0, index=index) for x in (f(6, 4), b(5, 4), f(6)) for index in (0, -1, 3)),
        sample("unbind.int", f(5, 4), dim=1),
        *(sample(op, f(5, 4), split_size=2, dim=1) for op in ("split.Tensor", "unsafe_split.Tensor")),
        sample("split.sizes", f(5, 4), split_size=(1, 3), dim=1),
        sample("unsafe_split_with_sizes", f(5, 4), split_sizes=(1, 3), dim=1),
        sample("unsafe_chunk", f(5, 4), chunks=3, dim=1),
        sample("tensor_split.sections", f(5, 4), sections=2, dim=0),
        sample("tensor_split.indices", f(5, 4), indices=(1, 3), dim=1),
        sample("split_with_sizes", f(5, 4), split_sizes=(1, 3), dim=1),
        *(sample(op, f(8, 4), split_sizes=(4, 4)) for op in ("split_with_sizes", "unsafe_split_with_sizes")),
        sample("chunk", f(5, 4), chunks=3, dim=1),
        *(sample(op, [f(5, 4), f(2, 4)], dim=0) for op in ("cat", "concat", "concatenate")),
        sample("cat", [f(0), f(5, 4), f(5, 4)], dim=1),
        sample("cat", [f(0, 4), f(1, 4)], dim=0),
        sample("cat", [f(0), f(0)], dim=0),
        sample("cat", [f(5, 4), f(5, 4)], dim=-1),
        sample("stack", [f(5, 4), f(5, 4)], dim=1),
        sample("flip", f(5, 4), dims=(1,)),
        sample("roll", f(5, 4), shifts=(1,), dims=(0,)),
        sample("roll", f(5, 4), shifts=(1,)),
        sample("rot90", f(5, 4)),
        *(sample("fliplr", t) for t in (f(3, 4), f(5, 4, 3))),
        sample("flipud", f(5, 4)),
        *(sample("rot90", f(5, 4, 3), k=k, dims=(2, 0)) for k in (1, 2, -1)),
        sample("constant_pad_nd", f(5, 4), pad=(1, 1)),
        sample("constant_pad_nd", f(5, 4), pad=(0, 0, 1, -1), value=2),
        *(
            sample("constant_pad_nd", x, pad=pad, value=value)
            for x in (f(6, 4), b(5, 6))
            for pad in ((2, 0, 0, 3), (0, 1, 1, 1))
            for value in (0, 1)
        ),
        sample("pad", f(2, 5, 4), pad=(1, 1), mode="reflect"),
        sample("pad", f(5, 4), pad=(1, 1)),
        sample("pad", f(5, 4), pad=(1, 1), value=1.0),
        sample("diagonal", f(5, 4, 4), dim1=1, dim2=2),
        *(sample("diagonal", f(5, 4, 6), offset=offset, dim1=0, dim2=2) for offset in (2, -1, 9)),
        sample("diag", f(5)),
        sample("diag", f(5, 4), diagonal=1),
        sample("diag_embed", f(5, 4)),
        sample("diag_embed", f(5, 4), offset=-1, dim1=0, dim2=2),
        *(
            sample("unfold", f(5, 6, 4), dimension=1, size=size, step=step)
            for size, step in ((2, 2), (3, 3), (3, 1), (4, 4))
        ),
        sample("unfold", f(5, 8), dimension=1, size=2, step=2),
        sample("tril", f(2, 5, 4)),
        sample("triu", f(5, 6), diagonal=-1),
        sample("slice_backward", f(5, 2), input_sizes=(5, 4), dim=1, start=1, end=3, step=1),
        sample("slice_backward", f(6, 4), input_sizes=(9, 4), dim=0, start=-6, end=2**63 - 1, step=1),
        sample("slice_backward", f(5, 2), input_sizes=(5, 4), dim=1, start=0, end=4, step=2),
        sample("select_backward", f(5), input_sizes=(5, 4), dim=1, index=2),
        sample("diagonal_backward", f(5, 4), input_sizes=(4, 5, 6), offset=0, dim1=0, dim2=2),
        *(
            sample("unfold_backward", f(5, count, 4, size), input_sizes=(5, 6, 4), dim=1, size=size, step=step)
            for count, size, step in ((3, 2, 2), (4, 3, 1), (1, 4, 4))
        ),
        sample("unfold_backward", f(4, 5, 2), input_sizes=(8, 5), dim=0, size=2, step=2),
        sample("slice_scatter", f(5, 4), f(5, 2), dim=1, start=1, end=3),
        *(
            sample("slice_scatter", x, y, dim=0, start=-4, end=None, step=1)
            for x, y in ((f(6, 4), f(4, 4)), (b(7, 3), b(4, 3)))
        ),
        sample("slice_scatter", f(6, 4), f(3, 4), dim=0, start=0, end=6, step=2),
        sample("slice_scatter", f(6, 4), f(0, 4), dim=0, start=3, end=3),
        sample("slice_scatter", f(6, 4), f(6, 4), dim=0),
        *(sample("select_scatter", f(5, 4), f(5), dim=1, index=index) for index in (2, -1)),
        sample("select_scatter", b(6, 3), b(3), dim=0, index=4),
        sample("diagonal_scatter", f(5, 4, 6), f(5, 4), offset=1, dim1=1, dim2=2),
        sample("diff", f(5, 4), dim=1),
        sample("diff", f(5, 4), f(5, 2), dim=1),
    ]  # fmt: skip
