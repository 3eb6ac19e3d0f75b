"""Reject models that `cache.attend` does not represent: other masks, scores with caps or sinks, recurrent layers.

`check_model` reads the configuration. `check_attention` reads the arguments of one call of the attention function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from spmdir.core.errors import SpmdirError, UnsupportedError, shown

_LAYER_TYPES = ("full_attention", "sliding_attention")
"""The `layer_types` of configurations of transformers whose layers keep only keys and values."""

_DEFAULTS = {
    "dropout": 0.0,
    "is_causal": True,
    "use_cache": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_router_logits": False,
}
"""Keyword of an attention function → the only value that causal attention in eval mode has."""

_METADATA = frozenset({"position_ids", "cache_position", "logits_to_keep"})
"""Keywords that some models pass on to attention functions, and that do not change the attention."""


def text_config(model: nn.Module) -> Any:
    """Return the configuration of the language model; the other parts of a multi-modal model have separate ones."""
    config: Any = getattr(model, "config", None)
    if config is None or not hasattr(config, "_attn_implementation"):
        raise UnsupportedError(
            f"{type(model).__name__} has no configuration of transformers; expected a model such as LlamaForCausalLM"
        )
    return config.get_text_config()


def check_model(model: nn.Module, max_length: int) -> None:
    """Raise SpmdirError if the model is not on the CPU, has other layers, or has too few positions."""
    config, name = text_config(model), type(model).__name__
    if model.training:
        raise SpmdirError("the model is in training mode; expected evaluation mode: call model.eval() before capture")
    for parameter_name, parameter in model.named_parameters():
        if parameter.device.type != "cpu":
            raise SpmdirError(
                f"'{parameter_name}' is on {parameter.device}; expected a model on the CPU, since ranks copy its "
                "shards to their devices: call model.cpu()"
            )
    if getattr(config, "attention_chunk_size", None) is not None:
        raise UnsupportedError(
            f"{name} has attention_chunk_size {config.attention_chunk_size}; expected attention without chunks: "
            "use another model"
        )
    for layer, layer_type in enumerate(getattr(config, "layer_types", None) or ()):
        if layer_type not in _LAYER_TYPES:
            raise UnsupportedError(
                f"layer {layer} of {name} has the type '{layer_type}'; expected {' or '.join(_LAYER_TYPES)}"
            )
    if getattr(model, "_is_stateful", False):
        raise UnsupportedError(f"{name} has recurrent layers; expected attention in all layers: use another model")
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and max_length > positions:
        raise SpmdirError(
            f"max_length is {max_length}; expected at most {positions}, the max_position_embeddings of the model"
        )


def check_attention(module: nn.Module, mask: Tensor | None, keywords: Mapping[str, Any]) -> int:
    """Return the layer of a call of the attention function; raise UnsupportedError for an unsupported argument."""
    if mask is not None:
        raise UnsupportedError(
            f"{type(module).__name__} passes its own attention_mask; expected causal attention: omit the mask"
        )
    if not getattr(module, "is_causal", True):
        raise UnsupportedError(f"{type(module).__name__} is not causal; expected causal attention: use a decoder model")
    for name, value in keywords.items():
        if value is None or name in _METADATA or (type(value) in (bool, int, float) and value == _DEFAULTS.get(name)):
            continue
        expected = f"{_DEFAULTS[name]}" if name in _DEFAULTS else "no such argument"
        raise UnsupportedError(
            f"{type(module).__name__} passes {name}={shown(value)} to the attention function; expected {expected}, "
            "since cache.attend does not support it"
        )
    layer = getattr(module, "layer_idx", None)
    if type(layer) is not int:
        raise UnsupportedError(
            f"{type(module).__name__} has no layer_idx; expected the number of its layer: set it in __init__"
        )
    return layer
