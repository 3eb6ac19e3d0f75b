"""A call, or several, for every rule: what test_soundness runs. Sizes divide by 2 or 3 here, by neither there."""

from __future__ import annotations

from typing import Any

import torch

from spmdir.call import DType
from spmdir.rules import RuleSet
from tests.rules.soundness import Sample


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def positive(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64) + 0.1


def i(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


def c(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.complex128)


def b(*shape: int) -> torch.Tensor:
    return torch.rand(shape) > 0.5


def h(*shape: int) -> torch.Tensor:
    return torch.randint(-4, 5, shape).bfloat16()


F32, F64, I64, I1 = DType("f32"), DType("f64"), DType("i64"), DType("i1")


def sample(op: str, *operands: Any, compare: bool = True, **arguments: Any) -> Sample:
    return Sample(f"aten.{op}", operands, arguments, compare)


CONV = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "transposed": False, "output_padding": (0, 0)}
BACK = {**CONV, "groups": 1, "output_mask": (True, True, True)}


def _loss(reduction: int, **more: Any) -> dict[str, Any]:
    return {"reduction": reduction, "ignore_index": -100, **more}


def written() -> list[Sample]:
    """The samples that need more than shapes."""
    torch.manual_seed(0)
    logits, target = torch.log_softmax(f(5, 6), 1), torch.tensor([0, 5, 2, -100, 3])
    weight6 = positive(6)
    total = torch.tensor(4.0, dtype=torch.float64)
    norm = torch.ops.aten.native_layer_norm(f(5, 4, 3), [3], f(3), f(3), 1e-5)
    q, k, v = f(2, 4, 5, 6), f(2, 4, 3, 6), f(2, 4, 3, 6)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    causal = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    grouped = f(2, 4, 5, 6), f(2, 2, 3, 6), f(2, 2, 3, 6)
    flash_grouped = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*grouped)
    rms = torch.ops.aten._fused_rms_norm(f(5, 4, 3), [3], f(3), 1e-5)
    return [
        # pointwise
        sample("add.Tensor", f(5, 4), f(4), alpha=2),
        sample("add.Tensor", f(5, 4), f(5, 1), alpha=-1),
        sample("add.Tensor", f(5, 4), 2.0),
        sample("add.Tensor", i(9, 5, 4), i(9, 5, 4)),
        sample("add.Tensor", b(5, 4), b(5, 4)),
        sample("add.Tensor", f(4), f(5, 4).sum()),
        sample("add.Scalar", f(5, 4), other=1.5),
        sample("sub.Tensor", f(5, 4), f(4)),
        sample("sub.Tensor", f(5, 4), 1),
        sample("sub.Scalar", f(5, 4), other=1.5),
        sample("rsub.Tensor", f(5, 4), f(4)),
        sample("rsub.Scalar", f(5, 4), other=0, alpha=2),
        sample("rsub.Scalar", f(5, 4), other=1),
        sample("mul.Tensor", f(5, 4), f(4)),
        sample("mul.Tensor", f(5, 4), 3.0),
        sample("mul.Scalar", f(5, 4), other=-3.0),
        sample("mul.Scalar", f(5, 4), other=3.0),
        sample("div.Tensor", f(5, 4), positive(4)),
        sample("div.Tensor", i(9, 5, 4), 4),
        sample("div.Scalar", f(5, 4), other=-3.0),
        sample("div.Scalar", f(5, 4), other=2),
        sample("div.Tensor_mode", f(5, 4), f(4), rounding_mode="floor"),
        sample("div.Tensor_mode", f(5, 4), f(4), rounding_mode=None),
        sample("addcmul", f(5, 4), f(4), f(5, 1), value=2.0),
        sample("addcdiv", f(5, 4), f(4), positive(5, 1), value=2.0),
        sample("lerp.Scalar", f(5, 4), f(5, 4), weight=0.3),
        sample("lerp.Tensor", f(5, 4), f(5, 4), f(4)),
        sample("where.self", b(5, 1), f(5, 4), f(4)),
        sample("where.self", b(5, 1), b(5, 4), b(4)),
        sample("where.ScalarOther", b(5, 1), f(5, 4), other=0),
        sample("where.ScalarOther", b(5, 1), f(5, 4), other=1),
        sample("where.ScalarSelf", b(5, 1), f(5, 4), self=0),
        sample("where.Scalar", b(5, 1), self=0, other=2),
        sample("masked_fill.Scalar", f(5, 4), b(5, 4), value=0),
        sample("masked_fill.Scalar", f(5, 4), b(5, 4), value=-1),
        sample("masked_fill.Tensor", f(5, 4), b(5, 4), f(1).sum()),
        sample("copy", f(5, 4), f(5, 4)),
        sample("copy", f(5, 4), h(5, 4)),
        sample("_to_copy", f(5, 4), dtype=F32),
        sample("_to_copy", h(5, 4), dtype=F64),
        sample("_to_copy", i(9, 5, 4), dtype=F64),
        sample("_to_copy", f(5, 4), dtype=I64),
        sample("_to_copy", f(5, 4), dtype=I1),
        sample("_to_copy", f(5, 4)),
        sample("to.dtype", f(5, 4), dtype=F32),
        sample("to.device", f(5, 4), device="cpu", dtype=F32),
        sample("to.dtype_layout", f(5, 4), dtype=F32),
        sample("hardtanh", f(5, 4)),
        sample("clamp", f(5, 4), min=-0.5, max=0.5),
        sample("clamp.Tensor", f(5, 4), f(4), f(5, 4)),
        sample("clamp.Tensor", f(5, 4), None, f(5, 4)),
        sample("clamp_min", f(5, 4), min=0),
        sample("clamp_max", f(5, 4), max=0),
        sample("pow.Scalar", f(5, 4), self=2),
        sample("pow.Tensor_Scalar", f(5, 4), exponent=2),
        sample("remainder.Scalar", f(5, 4), other=2),
        sample("fmod.Scalar", f(5, 4), other=2),
        sample("logit", positive(5, 4)),
        sample("threshold_backward", f(5, 4), f(5, 4), threshold=0),
        sample("leaky_relu_backward", f(5, 4), f(5, 4), negative_slope=0.1, self_is_result=False),
        sample("elu_backward", f(5, 4), f(5, 4), alpha=1, scale=1, input_scale=1, is_result=False),
        sample("hardtanh_backward", f(5, 4), f(5, 4), min_val=-1, max_val=1),
        sample("softplus_backward", f(5, 4), f(5, 4), beta=1, threshold=20),
        *(sample(f"{op}.Scalar", f(5, 4), other=0) for op in ("eq", "ne", "ge", "gt", "le", "lt")),
        *(sample(f"logical_{op}", b(5, 4), b(4)) for op in ("and", "or", "xor")),
        sample("logical_not", b(5, 4)),
        sample("logical_not", f(5, 4)),
        sample("bitwise_not", b(5, 4)),
        sample("bitwise_not", i(9, 5, 4)),
        *(sample(f"bitwise_{op}.Tensor", b(5, 4), b(4)) for op in ("and", "or", "xor")),
        *(sample(f"bitwise_{op}.Tensor", i(9, 5, 4), i(9, 4)) for op in ("and", "or", "xor")),
        *(sample(f"bitwise_{op}.Scalar", i(9, 5, 4), other=3) for op in ("and", "or")),
        *(sample(f"{op}.Tensor", b(5, 4), b(4)) for op in ("__and__", "__or__")),
        # contraction
        sample("mm", f(5, 4), f(4, 3)),
        sample("mm", f(6, 6), f(6, 6)),
        sample("addmm", f(3), f(5, 4), f(4, 3)),
        sample("addmm", f(5, 3), f(5, 4), f(4, 3), beta=0.5, alpha=2),
        sample("bmm", f(4, 5, 3), f(4, 3, 6)),
        sample("baddbmm", f(5, 6), f(4, 5, 3), f(4, 3, 6)),
        sample("mv", f(5, 4), f(4)),
        sample("dot", f(5), f(5)),
        sample("linear", f(5, 2, 4), f(3, 4), f(3)),
        sample("linear", f(5, 2, 4), f(3, 4)),
        sample("matmul", f(2, 5, 4), f(4, 3)),
        sample("matmul", f(2, 1, 5, 4), f(6, 4, 3)),
        sample("matmul", f(4), f(5, 4, 3)),
        sample("matmul", f(4), f(4)),
        sample("matmul", f(2, 5, 4), f(4)),
        sample("einsum", [f(5, 4), f(4, 3)], equation="mk,kn->mn"),
        sample("einsum", [f(2, 5, 3), f(2, 4, 3)], equation="bik, bjk -> bji"),
        sample("einsum", [f(5, 4)], equation="ij->j"),
        sample("einsum", [f(1, 4), f(5, 4)], equation="ij,ij->j"),
        # reduction
        *(sample(op, f(5, 4)) for op in ("sum", "mean", "max", "min", "prod")),
        sample("sum", i(9, 5, 4)),
        sample("sum", b(5, 4)),
        sample("mean", h(4, 4)),
        sample("any", b(5, 4)),
        sample("all", b(5, 4)),
        sample("any", f(5, 4)),
        *(
            sample(op, f(5, 4, 3), dim=dim, keepdim=keep)
            for op in ("sum.dim_IntList", "mean.dim", "amax", "amin", "linalg_vector_norm", "logsumexp")
            for dim, keep in (((0, -1), True), ((1,), False))
        ),
        sample("logsumexp", torch.full((4, 3), float("-inf"), dtype=torch.float64), dim=(0,)),
        sample("mean.dim", f(5, 4), dim=None),
        sample("mean.dim", h(5, 4), dim=(0,), dtype=F64),
        sample("sum.dim_IntList", b(5, 4), dim=()),
        sample("linalg_vector_norm", f(5, 4), ord=1, dim=(0,)),
        *(sample(op, c(5, 4), dim=(0,)) for op in ("linalg_vector_norm", "var.correction", "logsumexp")),
        *(sample(op, f(5, 4), dim=(1,), correction=0) for op in ("var.correction", "std.correction")),
        sample("var.correction", f(5, 4), dim=(0,), keepdim=True),
        sample("var.correction", f(5, 4), dim=(0,), correction=5),
        sample("var_mean.correction", f(5, 4), dim=(1,)),
        *(sample(op, f(5, 4), dim=1) for op in ("max.dim", "min.dim", "argmax", "argmin", "prod.dim_int")),
        sample("argmax", f(5, 4), dim=None),
        *(sample(f"{op}.dim", b(5, 4), dim=0, keepdim=True) for op in ("any", "all")),
        *(sample(f"{op}.dims", b(5, 4), dim=(0, 1)) for op in ("any", "all")),
        *(sample(op, f(5, 4), dim=1) for op in ("cumsum", "cumprod", "logcumsumexp", "sort", "argsort")),
        sample("sort.stable", f(5, 4), stable=True, dim=0),
        sample("topk", f(5, 4), k=2, dim=1),
        sample("topk", f(5, 4), k=4),
        # softmax
        *(sample(op, f(5, 4), dim=d, half_to_float=False) for op in ("_softmax", "_log_softmax") for d in (0, -1)),
        *(sample(op, h(4, 6), dim=1, dtype=F64) for op in ("softmax.int", "log_softmax.int")),
        sample("_safe_softmax", f(5, 4), dim=1),
        *(
            sample(op, f(5, 4), f(5, 4), dim=1, input_dtype=F64)
            for op in ("_softmax_backward_data", "_log_softmax_backward_data")
        ),
        # view
        *(sample(op, f(6, 4, 5), size=(3, 8, 5)) for op in ("view", "_unsafe_view")),
        sample("view", f(5, 4, 3), size=(5, 12)),
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
        sample("movedim.int", f(5, 4, 3), source=0, destination=-1),
        sample("unsqueeze", f(5, 4), dim=-1),
        sample("squeeze", f(5, 1, 4)),
        sample("squeeze.dim", f(5, 1, 4), dim=0),
        sample("squeeze.dim", f(5, 1, 4), dim=1),
        sample("squeeze.dims", f(1, 5, 1), dim=(0, -1)),
        sample("expand", f(5, 1), size=(3, -1, 4)),
        sample("expand_as", f(5, 1), f(3, 5, 4)),
        sample("repeat", f(5, 4), repeats=(2, 1, 3)),
        sample("slice.Tensor", f(5, 4), dim=1, start=1, end=3),
        sample("slice.Tensor", f(5, 4), dim=0, start=0, end=9),
        sample("narrow", f(5, 4), dim=1, start=1, length=2),
        sample("select.int", f(5, 4), dim=1, index=2),
        sample("unbind.int", f(5, 4), dim=1),
        sample("split.Tensor", f(5, 4), split_size=2, dim=1),
        sample("split_with_sizes", f(5, 4), split_sizes=(1, 3), dim=1),
        sample("chunk", f(5, 4), chunks=3, dim=1),
        sample("cat", [f(5, 4), f(2, 4)], dim=0),
        sample("cat", [f(5, 4), f(5, 4)], dim=-1),
        sample("stack", [f(5, 4), f(5, 4)], dim=1),
        sample("flip", f(5, 4), dims=(1,)),
        sample("roll", f(5, 4), shifts=(1,), dims=(0,)),
        sample("roll", f(5, 4), shifts=(1,)),
        sample("constant_pad_nd", f(5, 4), pad=(1, 1)),
        sample("constant_pad_nd", f(5, 4), pad=(0, 0, 1, -1), value=2),
        sample("pad", f(2, 5, 4), pad=(1, 1), mode="reflect"),
        sample("pad", f(5, 4), pad=(1, 1)),
        sample("pad", f(5, 4), pad=(1, 1), value=1.0),
        sample("diagonal", f(5, 4, 4), dim1=1, dim2=2),
        sample("tril", f(2, 5, 4)),
        sample("triu", f(5, 6), diagonal=-1),
        sample("slice_backward", f(5, 2), input_sizes=(5, 4), dim=1, start=1, end=3, step=1),
        sample("select_backward", f(5), input_sizes=(5, 4), dim=1, index=2),
        sample("slice_scatter", f(5, 4), f(5, 2), dim=1, start=1, end=3),
        sample("select_scatter", f(5, 4), f(5), dim=1, index=2),
        sample("diff", f(5, 4), dim=1),
        sample("diff", f(5, 4), f(5, 2), dim=1),
        # factory
        sample("full", size=(5, 4), fill_value=2, dtype=F64),
        sample("zeros", size=(5, 4)),
        sample("ones", size=()),
        sample("empty.memory_format", size=(5, 4), compare=False),
        *(sample(op, f(2), size=(5, 4)) for op in ("new_zeros", "new_ones")),
        sample("new_full", f(2), size=(5, 4), fill_value=2),
        sample("new_empty", f(2), size=(5, 4), compare=False),
        sample("full_like", f(5, 4), fill_value=2),
        sample("zeros_like", f(5, 4)),
        sample("ones_like", f(5, 4)),
        sample("empty_like", f(5, 4), compare=False),
        sample("fill.Scalar", f(5, 4), value=2),
        sample("scalar_tensor", s=2),
        sample("arange", end=10),
        sample("arange", end=2.5),
        sample("arange.start", start=2, end=7),
        sample("arange.start_step", start=2, end=13, step=3),
        sample("arange.start_step", start=0, end=6, dtype=F32),
        *(sample(op, size=(5, 4), compare=False) for op in ("rand", "randn")),
        *(sample(op, f(5, 4), compare=False) for op in ("rand_like", "randn_like")),
        sample("bernoulli", torch.zeros(5, 4)),
        sample("bernoulli.p", f(5, 4), p=1.0),
        sample("dropout", f(5, 4), p=0.1, train=False),
        sample("dropout", f(5, 4), p=0.0, train=True),
        sample("dropout", f(5, 4), p=0.5, train=True, compare=False),
        sample("native_dropout", f(5, 4), p=0.5, train=True, compare=False),
        sample("native_dropout", f(5, 4), p=0.5, train=False),
        sample("native_dropout_backward", f(5, 4), b(5, 4), scale=2.0),
        # index
        sample("embedding", f(7, 4), i(7, 5, 3)),
        sample("embedding", f(4, 5), i(4, 5)),
        sample("embedding_dense_backward", f(5, 3, 4), i(7, 5, 3), num_weights=7, padding_idx=2,
               scale_grad_by_freq=False),
        sample("embedding_dense_backward", f(5, 4), i(6, 5), num_weights=6, padding_idx=-1, scale_grad_by_freq=True),
        sample("gather", f(5, 7), i(7, 5, 4), dim=1),
        sample("gather", f(5, 7), i(7, 3, 4), dim=-1),
        sample("gather", f(5, 7), i(7, 5, 1), dim=1),
        sample("scatter.src", f(5, 7), torch.arange(4).repeat(5, 1), f(5, 4), dim=1),
        sample("scatter.value", f(5, 7), i(7, 5, 4), dim=1, value=2),
        sample("scatter_add", f(5, 7), i(7, 5, 4), f(5, 4), dim=1),
        sample("scatter_add", f(5, 7), i(7, 5, 4), f(6, 5), dim=1),
        sample("index_select", f(5, 7), i(7, 4), dim=1),
        sample("index_add", f(5, 7), i(7, 4), f(5, 4), dim=1, alpha=2),
        sample("index.Tensor", f(5, 7, 4), [None, i(7, 6)]),
        sample("index.Tensor", f(5, 7, 4), [i(5, 3, 1), i(7, 5)]),
        sample("index.Tensor", f(5, 7, 4), [i(5, 3), None, i(4, 3)]),
        sample("index_put", f(5, 7), [None, torch.tensor([0, 3, 2])], f(5, 3)),
        sample("index_put", f(5, 7), [i(5, 4)], f(7), accumulate=True),
        sample("_unsafe_index_put", f(5, 7), [None, torch.tensor([0, 3, 2])], f(1), accumulate=True),
        sample("_unsafe_index_put", f(5, 7), [None, torch.tensor([0, 3, 2])], f(3)),
        sample("one_hot", i(6, 5, 4), num_classes=6),
        # normalization
        sample("layer_norm", f(5, 4, 3), f(3), f(3), normalized_shape=(3,)),
        sample("layer_norm", f(5, 4, 3), None, None, normalized_shape=(4, 3)),
        sample("native_layer_norm", f(5, 4, 3), f(3), None, normalized_shape=(3,), eps=1e-5),
        sample("native_layer_norm_backward", f(5, 4, 3), f(5, 4, 3), norm[1], norm[2], f(3), f(3),
               normalized_shape=(3,), output_mask=(True, True, True)),
        sample("native_layer_norm_backward", f(5, 4, 3), f(5, 4, 3), norm[1], norm[2], None, None,
               normalized_shape=(3,), output_mask=(True, False, False)),
        sample("rms_norm", f(5, 4, 3), f(3), normalized_shape=(3,), eps=1e-5),
        sample("_fused_rms_norm", f(5, 4, 3), f(3), normalized_shape=(3,), eps=1e-5),
        sample("_fused_rms_norm_backward", f(5, 4, 3), f(5, 4, 3), rms[1], f(3), normalized_shape=(3,),
               output_mask=(True, True)),
        sample("group_norm", f(5, 4, 3, 3), f(4), f(4), num_groups=2),
        sample("native_group_norm", f(5, 4, 3, 3), f(4), f(4), N=5, C=4, HxW=9, group=2, eps=1e-5),
        sample("batch_norm", f(5, 4, 3), f(4), f(4), f(4), positive(4), training=False, momentum=0.1, eps=1e-5,
               cudnn_enabled=False),
        sample("batch_norm", f(5, 4, 3), f(4), f(4), None, None, training=True, momentum=0.1, eps=1e-5,
               cudnn_enabled=False),
        sample("_native_batch_norm_legit_no_training", f(5, 4, 3), f(4), f(4), f(4), positive(4), momentum=0.1,
               eps=1e-5),
        # attention
        sample("scaled_dot_product_attention", q, k, v),
        sample("scaled_dot_product_attention", f(2, 4, 5, 6), f(2, 4, 5, 6), f(2, 4, 5, 7), is_causal=True),
        sample("scaled_dot_product_attention", f(5, 4, 5, 6), f(5, 2, 3, 6), f(5, 2, 3, 6), f(5, 1, 5, 3),
               enable_gqa=True),
        sample("scaled_dot_product_attention", q, k, v, b(5, 3) | True),
        sample("scaled_dot_product_attention", q, k, v, dropout_p=0.5, compare=False),
        sample("_scaled_dot_product_flash_attention_for_cpu", q, k, v),
        sample("_scaled_dot_product_flash_attention_for_cpu", q, q, q, f(5, 5)),
        sample("_scaled_dot_product_flash_attention_for_cpu", q, q, q, is_causal=True),
        sample("_scaled_dot_product_flash_attention_for_cpu_backward", f(2, 4, 5, 6), q, k, v, *flash, dropout_p=0.0,
               is_causal=False),
        sample("_scaled_dot_product_flash_attention_for_cpu_backward", f(2, 4, 5, 6), q, k, v, *causal, dropout_p=0.0,
               is_causal=True),
        sample("_scaled_dot_product_flash_attention_for_cpu", *grouped),
        sample("_scaled_dot_product_flash_attention_for_cpu_backward", f(2, 4, 5, 6), *grouped, *flash_grouped,
               dropout_p=0.0, is_causal=False),
        sample("_scaled_dot_product_efficient_attention", f(5, 4, 3, 6), f(5, 4, 2, 6), f(5, 4, 2, 7), f(3, 2),
               compute_log_sumexp=True),
        sample("_scaled_dot_product_efficient_attention_backward", f(5, 4, 3, 6), f(5, 4, 3, 6), f(5, 4, 3, 6),
               f(5, 4, 3, 6), None, f(5, 4, 3, 6), f(5, 4, 32), f(1).sum(), f(1).sum(), dropout_p=0.0,
               grad_input_mask=(True, True, True, False), is_causal=True),
        sample("_scaled_dot_product_flash_attention", f(5, 4, 3, 6), f(5, 2, 2, 6), f(5, 2, 2, 6)),
        sample("_scaled_dot_product_flash_attention_backward", f(5, 4, 3, 6), f(5, 4, 3, 6), f(5, 2, 3, 6),
               f(5, 2, 3, 6), f(5, 4, 3, 6), f(5, 4, 3), None, None, f(2), f(1).sum(), max_q=3, max_k=3,
               dropout_p=0.0, is_causal=True),
        # convolution
        sample("convolution", f(5, 4, 6, 6), f(3, 4, 3, 3), f(3), **CONV, groups=1),
        sample("convolution", f(5, 4, 6, 6), f(4, 3, 3, 3), f(3), **{**CONV, "transposed": True}, groups=1),
        sample("convolution", f(5, 4, 6, 6), f(6, 2, 3, 3), f(6), **CONV, groups=2),
        sample("conv2d", f(5, 4, 6, 6), f(3, 4, 3, 3), f(3), stride=(3, 3)),
        sample("conv2d", f(4, 6, 6), f(3, 4, 3, 3), f(3)),
        sample("conv1d", f(5, 4, 6), f(3, 4, 3)),
        sample("conv1d", f(5, 4, 6), f(4, 1, 3), groups=4),
        sample("convolution_backward", f(5, 3, 6, 6), f(5, 4, 6, 6), f(3, 4, 3, 3), **BACK, bias_sizes=(3,)),
        sample("convolution_backward", f(5, 6, 6, 6), f(5, 4, 6, 6), f(6, 2, 3, 3), **{**BACK, "groups": 2},
               bias_sizes=(6,)),
        # windows
        sample("max_pool2d", f(5, 4, 6, 6), kernel_size=(2, 2)),
        sample("max_pool2d_with_indices", f(5, 4, 6, 6), kernel_size=(2, 2)),
        sample("avg_pool2d", f(5, 4, 6, 6), kernel_size=(2, 2)),
        *(sample(op, f(5, 4, 6, 6), output_size=(2, 3)) for op in ("adaptive_avg_pool2d", "_adaptive_avg_pool2d")),
        sample("upsample_nearest2d", f(5, 4, 3, 3), output_size=(6, 6)),
        sample("upsample_bilinear2d", f(5, 4, 3, 3), output_size=(6, 6), align_corners=False),
        # loss
        *(sample("mse_loss", f(5, 4), f(5, 4), reduction=r) for r in (0, 1, 2)),
        sample("mse_loss_backward", f(5, 4), f(5, 4), f(5, 4), reduction=0),
        *(sample("mse_loss_backward", f(1).sum(), f(5, 4), f(5, 4), reduction=r) for r in (1, 2)),
        *(sample("nll_loss_forward", logits, target, w, **_loss(r)) for r in (0, 1, 2) for w in (None, weight6)),
        sample("nll_loss_backward", f(5), logits, target, weight6, total, **_loss(0)),
        sample("nll_loss_backward", f(1).sum(), logits, target, weight6, total, **_loss(1)),
        sample("nll_loss_backward", f(1).sum(), logits, target.abs() % 6, None, total, reduction=1, ignore_index=2),
        sample("nll_loss_forward", logits, target.abs() % 6, None, reduction=2, ignore_index=2),
        sample("nll_loss_forward", logits[0], target[0], None, **_loss(1)),
        *(sample("cross_entropy_loss", f(5, 6), target, weight6, reduction=r) for r in (0, 1, 2)),
        sample("cross_entropy_loss", f(5, 6), torch.softmax(f(5, 6), 1)),
    ]  # fmt: skip


def all_samples(rules: RuleSet) -> list[Sample]:
    """The written samples, and one for every other op whose tensors are all pointwise."""
    samples = written()
    have = {s.op for s in samples}
    for name in rules.names:
        rule = rules.lookup(name)
        assert rule is not None
        if name not in have and all(str(p.pattern[0]) == "*" for p in rule.tensors if p.pattern):
            shapes = [(5, 4), (4,), (5, 1)][: len(rule.tensors)]
            if name.endswith("backward"):
                shapes = [(5, 4)] * len(rule.tensors)
            samples.append(Sample(name, tuple(f(*shape) for shape in shapes)))
    return samples
