"""Which torch ops a program may name: those that write nothing, and give tensors for tensors and plain values.

`ops.txt` says so of every op of `aten` and `prims`, one a line: its name, why it is rejected if it is, and the versions
of torch that say so if not all do. `make op-table` writes it. The tables here say what schemas do not tell. Ops of
other libraries are judged where torch is: when a graph is imported and before a program is emitted.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from spmdir.core.errors import did_you_mean

TABLE = Path(__file__).parent / "ops.txt"
VERSIONS = ("2.11", "2.12", "2.13")
"""The versions of torch that the table is about."""

LISTED = ("aten", "prims")
"""The namespaces whose ops the table lists, all of them."""

SENTENCES = {
    "writes": "writes its operand '{}'",
    "takes": "takes a {} as '{}', and the IR has only tensors and plain values",
    "gives": "gives a {}, and the IR has only tensors",
    "gives-nothing": "gives no tensor, so it has no place among values",
    "file": "opens the file that '{}' names, and a program may touch no file",
    "collective": "sends data between ranks; collectives are ops of spmd, which the passes insert",
    "effect": "is there for its side effect, and the IR has only values",
    "internal": "is one of torch's internal ops, which no model calls",
    "layout": "depends on the memory layout, which the IR does not have",
    "uninitialised": "gives memory that nothing has written, so that ranks would disagree on it",
    "placement": "says where a tensor is, which each rank decides for itself",
    "random": "draws random numbers, of which torch's tags do not tell, so that ranks could draw others",
    "packed": "works on quantised or packed tensors, which the IR does not have",
    "sparse": "works on sparse tensors, which the IR does not have",
    "nested": "works on nested tensors, which the IR does not have",
    "autograd": "is part of automatic differentiation or vmap, which tracing resolves",
}
"""Kind of a reason → what is said of the op; `{}` are the words that follow the kind in the table."""

NOT_EVEN_TRACED = ("file", "collective")
"""The kinds of reasons for which an op of a graph is not run on fake tensors either."""

NAMESPACES = {
    **dict.fromkeys(
        ["c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp", "symm_mem"],
        "collective",
    ),
    **dict.fromkeys(["debug_mode_ops", "profiler", "streams"], "effect"),
    "debugprims": "file name",
    **dict.fromkeys(["_native", "_test", "_inductor_test", "export", "higher_order", "inductor"], "internal"),
    **dict.fromkeys(["inductor_prims", "prim", "rngprims", "static_runtime"], "internal"),
    **dict.fromkeys(["_quantized", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "quantization"], "packed"),
    "quantized": "packed",
    "sparse": "sparse",
}
"""Namespaces of torch that the table does not list → why their ops are rejected."""

EXCEPTIONS = {
    "writes dst": "aten._copy_from aten._copy_from_and_resize",
    "writes weight": "aten._saturate_weight_to_fp16",
    "effect": "aten._functional_assert_* aten._functional_sym_* aten._make_dep_token prims._make_token",
    "internal": "aten._foobar aten._nnpack_spatial_convolution aten._test_*",
    "layout": """aten._reshape_alias aten._reshape_alias_copy aten.as_strided_copy aten.set aten.set.*
        aten.slice_inverse prims.as_strided_scatter prims.copy_strided""",
    "uninitialised": """aten._resize_output aten.new_empty_strided aten.resize aten.resize_as prims.empty
        prims.empty_permuted prims.empty_strided""",
    "placement": "aten._pin_memory aten._to_cpu aten.pin_memory prims.device_put",
    "random": "aten._cudnn_init_dropout_state prims.normal prims.uniform",
    "packed": """aten._empty_affine_quantized aten._empty_per_channel_affine_quantized aten._make_per_*
        aten._dyn_quant_* aten._mkldnn_* aten._wrapped_* aten.dequantize.* aten.empty_quantized aten.fbgemm_*
        aten.int_repr aten.mkldnn_adaptive_avg_pool* aten.mkldnn_linear* aten.mkldnn_max_pool* aten.mkldnn_reorder_*
        aten.q_per_channel_* aten.quantize_per_* aten.quantized_* aten.to_mkldnn*""",
    "sparse": """aten.*sparse* aten._coalesce aten._coalesced aten._convert_indices_* aten._cslt_* aten._indices
        aten._indices_copy aten._spdiags aten._spsolve aten._values aten._values_copy aten.ccol_indices* aten.coalesce
        aten.col_indices* aten.crow_indices* aten.hspmm aten.indices aten.indices_copy aten.row_indices* aten.smm
        aten.sspaddmm aten.values aten.values_copy""",
    "nested": "aten._nested_* aten.nested_* aten.to_padded_tensor",
    "autograd": "aten._add_batch_dim aten._fw_primal* aten._make_dual* aten._remove_batch_dim aten._unpack_dual",
}
"""Reason → the ops of the listed namespaces that it is true of, although their schemas look harmless."""

STATISTICS: dict[str, tuple[int, str | None]] = {
    **dict.fromkeys(["aten.batch_norm", "aten.native_batch_norm", "aten._batch_norm_impl_index"], (3, "training")),
    **dict.fromkeys(["aten.cudnn_batch_norm", "aten.miopen_batch_norm"], (3, "training")),
    "aten.instance_norm": (3, "use_input_stats"),
    **dict.fromkeys(["aten.batch_norm_gather_stats", "aten.batch_norm_gather_stats_with_counts"], (3, None)),
    "aten.batch_norm_update_stats": (1, None),
}
"""Op that writes running statistics, of which its schema says nothing → which tensor argument `running_mean` is, and
the argument with which it writes them where they are given; None if it always does."""

_RANDOM = """
    aten._cudnn_rnn aten._fused_dropout aten._lstm_mps aten._sample_dirichlet aten._standard_gamma aten.alpha_dropout
    aten.bernoulli aten.bernoulli.Tensor aten.bernoulli.p aten.binomial aten.cauchy aten.dropout aten.exponential
    aten.feature_alpha_dropout aten.feature_dropout aten.geometric aten.gru.data aten.gru.input aten.log_normal
    aten.lstm.data aten.lstm.input aten.miopen_rnn aten.multinomial aten.native_dropout aten.normal.Tensor_Tensor
    aten.normal.Tensor_float aten.normal.float_Tensor aten.normal.float_float aten.normal_functional aten.poisson
    aten.rand aten.rand.generator aten.rand_like aten.rand_like.generator aten.randint aten.randint.generator
    aten.randint.low aten.randint.low_generator aten.randint_like aten.randint_like.Tensor
    aten.randint_like.Tensor_generator aten.randint_like.generator aten.randint_like.low_dtype
    aten.randint_like.low_generator_dtype aten.randn aten.randn.generator aten.randn_like aten.randn_like.generator
    aten.random aten.random.from aten.random.to aten.randperm aten.randperm.generator aten.rnn_relu.data
    aten.rnn_relu.input aten.rnn_tanh.data aten.rnn_tanh.input aten.rrelu aten.rrelu_with_noise_functional
    aten.uniform"""
RANDOM = frozenset(_RANDOM.split())
"""The admitted ops that advance the stream of random numbers, so that two equal calls give different values."""

_DROPOUT = """
    aten._cudnn_attention_backward aten._cudnn_attention_forward aten._efficient_attention_forward
    aten._flash_attention_forward aten._flash_attention_forward.quantized aten._scaled_dot_product_attention_math
    aten._scaled_dot_product_attention_math_for_mps aten._scaled_dot_product_cudnn_attention
    aten._scaled_dot_product_cudnn_attention_backward aten._scaled_dot_product_efficient_attention
    aten._scaled_dot_product_efficient_attention_backward aten._scaled_dot_product_flash_attention
    aten._scaled_dot_product_flash_attention.quantized aten._scaled_dot_product_flash_attention_for_cpu
    aten._scaled_dot_product_fused_attention_overrideable aten._triton_scaled_dot_attention
    aten.scaled_dot_product_attention"""
DROPOUT = frozenset(_DROPOUT.split())
"""The admitted ops that do so unless `dropout_p` is 0, its default."""


def draws(name: str, dropout: object = 0) -> bool:
    """Return whether calls of op `name` with that `dropout_p` advance the stream of random numbers."""
    return name in RANDOM or (name in DROPOUT and dropout != 0)


_NAME = re.compile(r"[A-Za-z_]\w*\.\w+(?:\.\w+)?", re.ASCII)
_FILES = re.compile(r"file|path|url")


def exception(name: str) -> str:
    """Return the reason to reject an op whose schema is harmless; "" if there is none."""
    for reason, text in EXCEPTIONS.items():
        for glob in text.split():
            start, star, _ = glob.partition("*")
            if name.startswith(start) and (fnmatchcase(name, glob) if star else name == glob):
                return reason
    return ""


def names_file(argument: str) -> bool:
    """Return whether a string argument of that name names a file."""
    return bool(_FILES.search(argument))


def sentence(name: str, reason: str) -> str:
    """Return what is said of op `name`, rejected for `reason`, with what to use instead where there is such."""
    kind, *words = reason.split(" ")
    twin = functional(name) if kind == "writes" else None
    hint = f"; expected a functional op{f': use {twin}' if twin else ''}" if kind == "writes" else ""
    return SENTENCES[kind].format(*words) + hint


def is_admitted(name: str) -> bool:
    """Return whether a program may name op `name`, as far as is known here."""
    namespace = name.partition(".")[0]
    if namespace in LISTED:
        return "" in _reasons(name)
    dunder = any(part.startswith("__") for part in name.split("."))
    return namespace not in NAMESPACES and _NAME.fullmatch(name) is not None and not dunder


def listed(namespace: str) -> list[str]:
    """Return the names of the ops of `namespace` that the table lists, rejected ones included."""
    names = (line.partition(" ")[0] for line in _lines())
    return list(dict.fromkeys(name for name in names if name.startswith(f"{namespace}.")))


@cache
def why_not(name: str) -> str | None:
    """Return why a program may not name op `name`, to be read behind the name; None if it may.

    It looks for names that may have been meant, which takes a hundredth of a second.
    """
    if is_admitted(name):
        return None
    namespace = name.partition(".")[0]
    if namespace in NAMESPACES:
        return sentence(name, NAMESPACES[namespace])
    if namespace not in LISTED:
        return "is not a name of an op; expected NAMESPACE.OP or NAMESPACE.OP.OVERLOAD"
    reason = next(_reasons(name), None)
    if reason is None:
        return f"is not an op of torch {VERSIONS[0]} to {VERSIONS[-1]}{_nearest(name)}"
    return sentence(name, reason)


def listed_twin(name: str) -> str | None:
    """Return the op that `name` may have been meant for: the one of that name in a listed namespace that is near.

    `aten.gelu` for `atem.gelu`; None for ops of listed namespaces, and if there is none.
    """
    namespace, _, rest = name.partition(".")
    if namespace in LISTED:
        return None
    import difflib  # 5 ms, and few ops have no rule

    near = difflib.get_close_matches(namespace, LISTED, n=1, cutoff=0.7)
    return next((twin for twin in (f"{found}.{rest}" for found in near) if "" in _reasons(twin)), None)


def functional(name: str) -> str | None:
    """Return the op that gives what op `name` writes: `aten.relu` for `aten.relu_`; None if there is none."""
    namespace, base, *overload = name.split(".")
    stem = f"{namespace}.{base.removesuffix('_')}"
    wanted = [overload[0].removesuffix("_out"), overload[0].rpartition("_")[0]] if overload else []
    names = [*(f"{stem}.{word}" for word in wanted), stem, f"{stem}_functional", f"{stem}.Tensor"]
    return next((found for found in names if "" in _reasons(found)), None)


def _nearest(name: str) -> str:
    """Return what to say of the ops that a name, which is none, may have been meant for."""
    admitted = [line.partition(" ")[0] for line in _lines() if _reason(line) == ""]
    overloads = [found for found in admitted if found.startswith(f"{name}.")]
    if overloads:
        return f"; expected one of its overloads, as {' or '.join(overloads[:4])}"
    whole = ".".join(name.split(".")[:2])
    return f"; did you mean '{whole}'?" if whole in admitted else did_you_mean(name, admitted)


def _reasons(name: str) -> Iterator[str]:
    """Yield what the table says of an op, "" for nothing against it; nothing if it does not list the op."""
    lines = _lines()
    for index in range(bisect_left(lines, name), len(lines)):
        line = lines[index]
        if line != name and not line.startswith(name + " "):
            return
        yield _reason(line)


def _reason(line: str) -> str:
    return line.partition(" [")[0].partition(" ")[2]


@cache
def _lines() -> list[str]:
    return TABLE.read_text().splitlines()
