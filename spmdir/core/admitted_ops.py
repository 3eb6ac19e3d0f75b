"""The torch ops that a program may use: functional ops from tensors and plain values to tensors.

`ops.txt` lists every op of `aten` and `prims`, one per line: its name, the reason if it is rejected, and the versions
of torch if the line does not apply to all of them. `make op-table` writes it from torch's schemas and the tables below,
which contain the facts that schemas lack. This module does not import torch. Therefore the importer and the emitter
check the ops of other libraries.
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
"""The versions of torch that `ops.txt` covers."""

LISTED = ("aten", "prims")
"""The namespaces whose ops are all listed in `ops.txt`."""

FUNCTIONAL = (*LISTED, "experts")
"""The namespaces whose admitted ops have no effects, except the random ones."""

SENTENCES = {
    "writes": "writes its operand '{}'",
    "takes": "takes a {} as '{}'; expected tensors and plain values: use another op",
    "gives": "returns a {}; expected tensors: use another op",
    "gives-nothing": "returns no tensor; expected one or more tensors: use another op",
    "file": "opens the file in its argument '{}'; expected a program without access to files: pass the tensor as an "
    "input",
    "collective": "communicates between ranks; expected a program without collectives: remove it, since the passes "
    "insert "
    "collectives of the dialect spmd",
    "effect": "is called for its side effect; expected ops without side effects: remove it",
    "internal": "is an internal op of torch; expected a public op: trace the program again, or use another op",
    "layout": "depends on strides or storage, which tensors of the IR do not have; expected an op on values: use "
    "another op",
    "uninitialised": "returns uninitialised memory, whose values would differ between ranks; expected defined "
    "values: use "
    "zeros or full",
    "placement": "chooses the device or memory of a tensor; expected no such op, since each rank chooses its own: "
    "remove it",
    "random": "draws random numbers without torch's tag for random ops, so ranks could draw different numbers; "
    "expected a "
    "tagged op: use another one, such as aten.rand or aten.bernoulli",
    "packed": "works on quantised or packed tensors; expected plain tensors: dequantise them first",
    "sparse": "works on sparse tensors; expected dense tensors: convert them first",
    "nested": "works on nested tensors; expected dense tensors: pad them first",
    "autograd": "is an internal op of autograd or vmap; expected a traced program: trace it so that this op is "
    "resolved",
}
"""Kind of reason → message about the op, with a `{}` for each word that follows the kind in `ops.txt`."""

NOT_EVEN_TRACED = ("file", "collective")
"""The kinds of reasons for which the importer does not even run an op on fake tensors."""

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
"""Namespace of torch that `ops.txt` does not list → reason to reject its ops."""

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
"""Reason → ops of the listed namespaces that are rejected although their schemas look functional."""

STATISTICS: dict[str, tuple[int, str | None]] = {
    **dict.fromkeys(["aten.batch_norm", "aten.native_batch_norm", "aten._batch_norm_impl_index"], (3, "training")),
    **dict.fromkeys(["aten.cudnn_batch_norm", "aten.miopen_batch_norm"], (3, "training")),
    "aten.instance_norm": (3, "use_input_stats"),
    **dict.fromkeys(["aten.batch_norm_gather_stats", "aten.batch_norm_gather_stats_with_counts"], (3, None)),
    "aten.batch_norm_update_stats": (1, None),
}
"""Op that writes running statistics without declaring it in its schema → (index of `running_mean` among the tensor
arguments, name of the argument that enables the write). The name is None if the op always writes given statistics."""

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
"""The admitted ops that advance the random number generator: two equal calls return different values."""

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
"""The admitted ops that advance the generator unless `dropout_p` is 0, its default."""


def draws(name: str, dropout: object = 0) -> bool:
    """Return whether calls of op `name` advance the random number generator.

    Args:
        dropout: the argument `dropout_p` of the call. Only the ops in DROPOUT depend on it.
    """
    return name in RANDOM or (name in DROPOUT and dropout != 0)


_NAME = re.compile(r"[A-Za-z_]\w*\.\w+(?:\.\w+)?", re.ASCII)
_FILES = re.compile(r"file|path|url")


def exception(name: str) -> str:
    """Return the reason in EXCEPTIONS to reject op `name` although its schema looks functional; "" if there is none."""
    for reason, text in EXCEPTIONS.items():
        for glob in text.split():
            text_before_star, star, _ = glob.partition("*")
            if not name.startswith(text_before_star):  # much faster than fnmatchcase, and rules out most globs
                continue
            if fnmatchcase(name, glob) if star else name == glob:
                return reason
    return ""


def names_file(argument: str) -> bool:
    """Return whether a string argument is a file path or URL: its name contains `file`, `path` or `url`."""
    return bool(_FILES.search(argument))


def sentence(name: str, reason: str) -> str:
    """Return the message for op `name`, rejected for `reason`, with the op to use instead if there is one.

    For `aten.relu_` and the reason `writes self`: "writes its operand 'self'; expected a functional op: use aten.relu".
    """
    kind, *words = reason.split(" ")
    message = SENTENCES[kind].format(*words)
    if kind == "writes":
        message += "; expected a functional op"
        twin = functional(name)
        message += f": use {twin}" if twin else ""
    return message


def is_admitted(name: str) -> bool:
    """Return whether a program may use op `name`, judged without torch.

    Ops of the namespaces in LISTED must be admitted by `ops.txt`, and ops of NAMESPACES are rejected. Any other
    well-formed name is admitted: the importer and the emitter check the ops of other libraries.
    """
    namespace = name.partition(".")[0]
    if namespace in LISTED:
        return "" in _reasons(name)
    is_special = any(part.startswith("__") for part in name.split("."))
    return namespace not in NAMESPACES and _NAME.fullmatch(name) is not None and not is_special


def listed(namespace: str) -> list[str]:
    """Return the names of all ops of `namespace` in `ops.txt`, rejected ones included."""
    names = (line.partition(" ")[0] for line in _lines())
    return list(dict.fromkeys(name for name in names if name.startswith(f"{namespace}.")))


@cache
def why_not(name: str) -> str | None:
    """Return the reason why a program may not use op `name`, as the predicate of a sentence; None if it may.

    For an unknown name, the first call takes about 10 ms, because it searches for similar names.
    """
    if is_admitted(name):
        return None
    namespace = name.partition(".")[0]
    if namespace in NAMESPACES:
        return sentence(name, NAMESPACES[namespace])
    if namespace not in LISTED:
        return "is not the name of an op; expected NAMESPACE.OP or NAMESPACE.OP.OVERLOAD"
    reason = next(_reasons(name), None)
    if reason is None:
        hint = _nearest(name) or "; expected the name of one: correct it"
        return f"is not an op of torch {VERSIONS[0]} to {VERSIONS[-1]}{hint}"
    return sentence(name, reason)


def listed_twin(name: str) -> str | None:
    """Return the admitted op whose namespace has a similar spelling, such as `aten.gelu` for `atem.gelu`.

    Returns None if there is no such op, or if the namespace of `name` is a listed one.
    """
    namespace, _, op_name = name.partition(".")
    if namespace in LISTED:
        return None
    import difflib  # 5 ms, and few ops have no rule

    for similar_namespace in difflib.get_close_matches(namespace, LISTED, n=1, cutoff=0.7):
        twin = f"{similar_namespace}.{op_name}"
        if "" in _reasons(twin):
            return twin
    return None


def functional(name: str) -> str | None:
    """Return the functional form of an op that writes an operand: `aten.relu` for `aten.relu_`; None if none exists."""
    namespace, base, *overload = name.split(".")
    stem = f"{namespace}.{base.removesuffix('_')}"
    # `aten.max.dim_max` writes its results to its operands, and `aten.max.dim` is its functional form.
    overload_names = [overload[0].removesuffix("_out"), overload[0].rpartition("_")[0]] if overload else []
    candidates = [
        *(f"{stem}.{overload_name}" for overload_name in overload_names),
        stem,
        f"{stem}_functional",
        f"{stem}.Tensor",
    ]
    return next((candidate for candidate in candidates if "" in _reasons(candidate)), None)


def _nearest(name: str) -> str:
    """Return the end of the message about an unknown op: its overloads, or an op with a similar name."""
    admitted = [line.partition(" ")[0] for line in _lines() if _reason(line) == ""]
    overloads = [op for op in admitted if op.startswith(f"{name}.")]
    if overloads:
        return f"; expected one of its overloads, such as {' or '.join(overloads[:4])}"
    packet = ".".join(name.split(".")[:2])
    return f"; did you mean '{packet}'?" if packet in admitted else did_you_mean(name, admitted)


def _reasons(name: str) -> Iterator[str]:
    """Yield the reason to reject an op in each of its lines of `ops.txt`, "" for a line that admits it.

    An op has several lines if the reason depends on the version of torch. Nothing is yielded if the op is not listed.
    """
    lines = _lines()  # sorted, so the lines of one op are adjacent
    for index in range(bisect_left(lines, name), len(lines)):
        line = lines[index]
        if line != name and not line.startswith(name + " "):
            return
        yield _reason(line)


def _reason(line: str) -> str:
    """Return the reason in a line of `ops.txt`, without its versions; "" if the op is admitted."""
    return line.partition(" [")[0].partition(" ")[2]


@cache
def _lines() -> list[str]:
    """Return the lines of `ops.txt`."""
    return TABLE.read_text().splitlines()
