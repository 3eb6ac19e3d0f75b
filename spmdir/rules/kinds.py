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
    "an element type": lambda value: isinstance(value, DType),
}

KINDS = {
    "true or false": "accumulate align_corners ceil_mode compute_log_sumexp copy count_include_pad cudnn_enable "
    "cudnn_enabled descending enable_gqa half_to_float implicit is_causal is_result keepdim largest non_blocking "
    "pin_memory return_debug_mask scale_grad_by_freq self_is_result sorted sparse sparse_grad stable train training "
    "transposed",
    "a list of true and false": "grad_input_mask output_mask",
    "an integer": "C HxW N chunks destination diagonal dim0 dim1 dim2 divisor_override end_dim group groups "
    "ignore_index index k length max_k max_q n num_classes num_groups num_weights offset padding_idx reduction source "
    "split_size start_dim",
    "a list of integers": "bias_sizes input_sizes normalized_shape pad path shape size sizes split_sizes",
    "an integer or a list of integers": "dilation dim dims kernel_size output_padding output_size repeats shifts "
    "stride",
    'integers, "valid" or "same"': "padding",
    "a real number": "dropout_p eps label_smoothing momentum nan neginf p posinf scales_h scales_w",
    "a number": "alpha beta correction end exponent fill_value input_scale max max_val min min_val negative_slope ord "
    "other s scale self start step threshold value weight",
    "a string": "approximate equation mode rounding_mode",
    "an element type": "dtype input_dtype",
}
"""Kind → the arguments of that kind; device, layout, memory_format and generator are torch's own to check."""

_KIND_OF = {name: kind for kind, names in KINDS.items() for name in names.split()}


def check_kind(op: str, name: str, value: Literal) -> None:
    """Raise RuleError unless argument `name` of `op` can be `value`; none stands for what the schema gives."""
    kind = _KIND_OF.get(name) if op.startswith("aten.") else None
    if kind is not None and value is not None and not _EXPECTED[kind](value):
        raise RuleError(f"{op}: argument '{name}' is {value!r}; expected {kind}")
