"""Check the kinds of literal arguments of `aten` ops. A name has the same kind in all of torch's schemas."""

from __future__ import annotations

from typing import Any

from spmdir.core.dtype import DType
from spmdir.core.errors import RuleError
from spmdir.core.placement.call import Literal, Local


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, Local)) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, float) or _is_integer(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, complex)) or _is_real(value)


def _is_integers(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_is_integer, value))


_EXPECTED = {
    "true or false": _is_flag,
    "a list of true and false": lambda value: isinstance(value, tuple) and all(map(_is_flag, value)),
    "an integer": _is_integer,
    "a list of integers": _is_integers,
    "an integer or a list of integers": lambda value: _is_integer(value) or _is_integers(value),
    'integers, "valid" or "same"': lambda value: (
        _is_integer(value) or _is_integers(value) or value in ("valid", "same")
    ),
    "a real number": _is_real,
    "a list of real numbers": lambda value: isinstance(value, tuple) and all(map(_is_real, value)),
    "a number": _is_number,
    "a string": lambda value: isinstance(value, str),
    "a string or an integer": lambda value: isinstance(value, str) or _is_integer(value),
    "an element type": lambda value: isinstance(value, DType),
}

KINDS = {
    "true or false": (
        "accumulate adjoint align_corners assume_unique average_attn_weights bias_requires_grad ceil_mode "
        "check_errors compute_log_sumexp compute_uv compute_v copy count_include_pad cudnn_enable "
        "cudnn_enabled descending enable_gqa equal_nan forward full full_matrices half_to_float hermitian "
        "implicit include_last_offset include_self invert is_causal is_result keepdim largest left log_input "
        "log_target need_weights non_blocking onesided out_int32 periodic pin_memory pivot replacement "
        "return_counts return_debug_mask return_inverse right scale_grad_by_freq self_is_result "
        "shared_storage_dqdkdv sorted sparse sparse_grad stable swap train training transpose transposed "
        "unbiased unitriangular unpack_data unpack_pivots update use_fast_accum use_gelu use_input_stats "
        "zero_infinity"
    ),
    "a list of true and false": "grad_input_mask output_mask",
    "an integer": (
        "axis0 axis1 bins blank C chunks col compute_mode custom_mask_type decimals diagonal dim0 dim1 dim2 "
        "window capacity experts first candidates "
        "dimension divisor_override downscale_factor embed_dim end_dim group groups high HxW ignore_index "
        "index interpolation_mode k last_dim_size length low m mask_type max_k max_q max_seqlen_k "
        "max_seqlen_q minlength N normalization num_classes num_groups num_head num_samples num_splits "
        "num_splits_key num_weights offset padding_idx padding_mode qGroupSize reduction row sections "
        "start_dim steps storage_offset unroll_dim upscale_factor window_length window_size window_size_left "
        "window_size_right growth_interval"
    ),
    "a list of integers": (
        "bias_sizes expand1 expand2 expand3 indices input_lengths input_size input_sizes normalized_shape pad "
        "path physical_layout shape sizes split_sizes sumdim target_lengths"
    ),
    "an integer or a list of integers": (
        "destination dilation dim dims kernel_size output_padding output_size repeats shifts size source "
        "split_size stride"
    ),
    'integers, "valid" or "same"': "padding",
    "a string or an integer": "mode",
    "a real number": (
        "atol base delta dropout_p eps epsilon exponential_average_factor label_smoothing mean median "
        "momentum nan neginf posinf rtol scales scales_d scales_h scales_w sigma std "
        "scale_backoff_factor scale_growth_factor"
    ),
    "a list of real numbers": "scale_factors",
    "a number": (
        "alpha beta correction element end exponent fill fill_value from input_scale lambd lower margin max "
        "max_val maxnorm min min_val n negative_slope ord other p s scale self start step test_element "
        "threshold to upper value weight x"
    ),
    "a string": "approximate driver equation indexing reduce rounding_mode side UPLO",
    "an element type": "dtype input_dtype out_dtype",
}
"""Kind → the arguments of this kind. Torch itself checks device, layout, memory_format and generator."""

_KIND_OF = {name: kind for kind, names in KINDS.items() for name in names.split()}


def check_kind(op: str, name: str, value: Literal) -> None:
    """Raise RuleError unless `value` is valid for argument `name` of `op`. None, for the default, is always valid."""
    kind = _KIND_OF.get(name) if op.startswith("aten.") else None
    if kind is not None and value is not None and not _EXPECTED[kind](value):
        from spmdir.core.placement.literals import print_literal  # imported for errors only, to load faster

        raise RuleError(f"{op}: argument '{name}' is {print_literal(value)}; expected {kind}")
