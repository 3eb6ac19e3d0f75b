"""What kind of literal each argument of an `aten` op takes: torch names arguments alike in all its schemas."""

from __future__ import annotations

from typing import Any

from spmdir.call import DType, Literal, Local
from spmdir.errors import RuleError


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _integer(value: Any) -> bool:
    return isinstance(value, (int, Local)) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    return isinstance(value, float) or _integer(value)


def _number(value: Any) -> bool:
    return isinstance(value, (bool, complex)) or _real(value)


def _integers(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_integer, value))


_EXPECTED = {
    "true or false": _flag,
    "a list of true and false": lambda value: isinstance(value, tuple) and all(map(_flag, value)),
    "an integer": _integer,
    "a list of integers": _integers,
    "an integer or a list of integers": lambda value: _integer(value) or _integers(value),
    'integers, "valid" or "same"': lambda value: _integer(value) or _integers(value) or value in ("valid", "same"),
    "a real number": _real,
    "a number": _number,
    "a string": lambda value: isinstance(value, str),
    "a string or an integer": lambda value: isinstance(value, str) or _integer(value),
    "an element type": lambda value: isinstance(value, DType),
}

KINDS = {
    "true or false": (
        "accumulate adjoint align_corners ceil_mode check_errors compute_log_sumexp compute_uv compute_v copy "
        "count_include_pad cudnn_enable cudnn_enabled descending enable_gqa equal_nan forward full "
        "full_matrices half_to_float hermitian implicit include_self is_causal is_result keepdim largest left "
        "log_input log_target non_blocking onesided periodic pin_memory pivot replacement return_debug_mask "
        "scale_grad_by_freq self_is_result sorted sparse sparse_grad stable swap train training transpose "
        "transposed unbiased unitriangular unpack_data unpack_pivots update use_fast_accum use_gelu "
        "use_input_stats"
    ),
    "a list of true and false": "grad_input_mask output_mask",
    "an integer": (
        "axis0 axis1 bins C chunks compute_mode decimals diagonal dim0 dim1 dim2 dimension divisor_override "
        "end_dim group groups high HxW ignore_index index k last_dim_size length low m max_k max_q N "
        "normalization num_classes num_groups num_samples num_weights offset padding_idx qGroupSize reduction "
        "sections start_dim steps storage_offset unroll_dim window_length"
    ),
    "a list of integers": (
        "bias_sizes expand1 expand2 expand3 indices input_sizes normalized_shape pad path physical_layout "
        "shape sizes split_sizes sumdim"
    ),
    "an integer or a list of integers": (
        "destination dilation dim dims kernel_size output_padding output_size repeats shifts size source "
        "split_size stride"
    ),
    'integers, "valid" or "same"': "padding",
    "a real number": (
        "atol base delta dropout_p eps epsilon exponential_average_factor label_smoothing mean median "
        "momentum nan neginf posinf rtol scales_h scales_w sigma std"
    ),
    "a number": (
        "alpha beta correction end exponent fill fill_value from input_scale lambd lower margin max max_val "
        "maxnorm min min_val n negative_slope ord other p s scale self start step threshold to upper value weight x"
    ),
    "a string": "approximate driver equation indexing reduce rounding_mode UPLO",
    "a string or an integer": "mode",
    "an element type": "dtype input_dtype out_dtype",
}
"""Kind → the arguments of that kind; device, layout, memory_format and generator are torch's own to check."""

_KIND_OF = {name: kind for kind, names in KINDS.items() for name in names.split()}


def check_kind(op: str, name: str, value: Literal) -> None:
    """Raise RuleError unless argument `name` of `op` can be `value`; none stands for what the schema gives."""
    kind = _KIND_OF.get(name) if op.startswith("aten.") else None
    if kind is not None and value is not None and not _EXPECTED[kind](value):
        raise RuleError(f"{op}: argument '{name}' is {value!r}; expected {kind}")
