"""Parallel styles of modules: torch's classes and the words of Hugging Face's `tp_plan`, as sharding plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from torch import nn

from spmdir.core.errors import ShardingError, UnsupportedError, did_you_mean, shown
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, parse_placement
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.sharding_plan import Activation, Layout, ShardingPlan
from spmdir.core.placement.standard import R, Shard
from spmdir.core.toml_text import key_location
from spmdir.plans.module_names import chosen, first_names, modules_of, parameters_of, with_globs


@attrs.frozen
class Style:
    """What a style does with a module along one axis.

    Attributes:
        features: which features of the weight are sharded: "out", "in", or "none", for which all parameters are
            replicated; None for a style that is not about parameters.
        packed: how many matrices the weight holds one after another, each of which is sharded.
        inputs, outputs: position or name → the text of the placement asked for; what is not named follows from the
            weight, as the compiler finds best.
    """

    features: str | None = None
    packed: int = 1
    inputs: Mapping[str, str] = attrs.field(factory=dict)
    outputs: Mapping[str, str] = attrs.field(factory=dict)


_WHOLE = {"0": "R"}
_SEQUENCE = {"0": "S(1)"}
COLWISE, ROWWISE, REPLICATED = Style("out"), Style("in"), Style("none")

WORDS: dict[str, Style] = {
    "colwise": COLWISE,
    "colwise_gather_output": Style("out", outputs=_WHOLE),
    "colwise_rep": Style("out", outputs=_WHOLE),
    "packed_colwise": Style("out", packed=2),
    "rowwise": ROWWISE,
    "rowwise_rep": Style("in", inputs=_WHOLE),
    "rowwise_split_input": Style("in", inputs=_WHOLE),
    "packed_rowwise": Style("in", packed=2),
    "embedding_rowwise": ROWWISE,
    "embedding_colwise": Style("out", outputs=_WHOLE),
    "sequence_parallel": Style("none", inputs=_SEQUENCE, outputs=_SEQUENCE),
    "all_reduce": Style(outputs=_WHOLE),
    "replicate": REPLICATED,
    "replicated": REPLICATED,
    "replicated_with_grad_allreduce": REPLICATED,
    "mla_kv_a_proj": REPLICATED,
}
"""Words of Hugging Face's `tp_plan`. Gradients of what is replicated are summed wherever they are partial."""

EXPERTS = ("moe_tp_experts", "moe_identity_expert", "grouped_gemm", "ep_dispatch_experts", "ep_router", "local_params")
"""Words of plans for experts, which no style here means."""


def _texts(layouts: Sequence[Any] | Mapping[str, Any] | None, default: str | None = None) -> dict[str, str]:
    """Return position or name → text of DTensor placements; those equal to `default` and None are left out."""
    named = layouts if isinstance(layouts, Mapping) else dict(enumerate(layouts or ()))
    texts = {str(key): _placement_text(placement) for key, placement in named.items() if placement is not None}
    return {key: text for key, text in texts.items() if text != default}


def _placement_text(placement: Any) -> str:
    kind = type(placement).__name__
    if kind == "Shard":
        return f"S({placement.dim})"
    if kind == "Replicate":
        return "R"
    raise UnsupportedError(f"a style asks for the layout {placement!r}; expected Shard or Replicate")


def _prepared_input(style: Any) -> Style:
    keywords = _texts(style.desired_input_kwarg_layouts)
    return Style(inputs={**_texts(style.desired_input_layouts), **keywords})


CLASSES: dict[str, Callable[[Any], Style]] = {
    "ColwiseParallel": lambda s: Style(
        "out", inputs=_texts(s.input_layouts, "R"), outputs=_texts(s.output_layouts, "S(-1)")
    ),
    "RowwiseParallel": lambda s: Style(
        "in", inputs=_texts(s.input_layouts, "S(-1)"), outputs=_texts(s.output_layouts, "R")
    ),
    "SequenceParallel": lambda s: Style(
        "none", inputs=_texts(s.sequence_sharding), outputs=_texts(s.sequence_sharding)
    ),
    "PrepareModuleInput": _prepared_input,
    "PrepareModuleOutput": lambda s: Style(outputs=_texts(s.desired_output_layouts)),
    "PrepareModuleInputOutput": lambda s: attrs.evolve(
        _prepared_input(s.prepare_module_input), outputs=_texts(s.prepare_module_output.desired_output_layouts)
    ),
}
"""Class of torch.distributed.tensor.parallel → the style. What a layer would do by itself is not asked for."""


def is_style(value: object) -> bool:
    """Return whether a value of a plan is a style rather than a sharding."""
    word = isinstance(value, str) and value.strip().isidentifier()
    return word or any(kind.__name__ == "ParallelStyle" for kind in type(value).__mro__)


def as_style(key: str, value: object) -> Style:
    """Return the style that a word or an object of torch means.

    Raises:
        UnsupportedError: it is a style of experts, or one that is not known.
    """
    if isinstance(value, str):
        word = value.strip()
        if word in WORDS:
            return WORDS[word]
        if word in EXPERTS:
            raise UnsupportedError(
                f"'{key}' has the style '{word}', which is for experts; expected a style of layers: leave it out, and "
                "lay the parameters of the experts out by shardings",
                key_location(key),
            )
    else:
        for kind in type(value).__mro__:
            if kind.__name__ in CLASSES:
                return CLASSES[kind.__name__](value)
    found = value if isinstance(value, str) else type(value).__name__
    known = [*WORDS, *CLASSES]
    raise ShardingError(
        f"'{key}' has the style {shown(found)}; expected one of {', '.join(known)}{did_you_mean(str(found), known)}",
        key_location(key),
    )


def style_axis(mesh: Mesh, axis: str | None = None) -> str:
    """Return the mesh axis that styles are about: `axis`, else "tp", else the only one.

    Raises:
        ShardingError: there is no such axis.
    """
    if axis is None and len(mesh.axes) > 1 and "tp" not in mesh.sizes:
        raise ShardingError(f"mesh {mesh} has several axes and none is 'tp'; say which shards the weights by axis=")
    axis = axis or ("tp" if "tp" in mesh.sizes else mesh.axis_names[0])
    mesh.require(axis)
    return axis


def linear_placements(style: Style, parts: Mapping[str, int], out_first: bool = True) -> dict[str, Placement]:
    """Return the placements of the parameters of a linear layer or an embedding.

    Args:
        parts: weight, bias → number of dimensions.
        out_first: whether the weight is (…, out, in), as of nn.Linear, instead of (…, in, out).
    """
    found: dict[str, Placement] = {}
    for part, rank in parts.items():
        if style.features == "none" or (style.features == "in" and rank == 1):
            found[part] = R
            continue
        dim = rank - 1 if rank == 1 or out_first == (style.features == "in") else rank - 2
        found[part] = Shard(dim) if style.packed == 1 else parse_placement(f"Strided({dim}, {style.packed})")
    return found


def placed_parameters(name: str, module: nn.Module, style: Style) -> dict[str, Placement]:
    """Return parameter of `module`, called `name` → placement under `style`.

    Raises:
        ShardingError: the style shards a weight, which the module does not have.
    """
    if style.features is None:
        return {}
    parts = {part: parameter.dim() for part, parameter in module.named_parameters(recurse=False)}
    weight = parts.get("weight", 0)
    if style.features != "none" and (weight < 2 or set(parts) - {"weight", "bias"}):
        raise ShardingError(
            f"'{name}' is a {type(module).__name__}; only linear layers and embeddings, with a weight and maybe a "
            "bias, can be colwise or rowwise"
        )
    # An embedding is a linear layer on one-hot rows; Conv1D of transformers keeps its weight as (in, out) too.
    out_first = not isinstance(module, nn.Embedding) and type(module).__name__ != "Conv1D"
    return {f"{name}.{part}": one for part, one in linear_placements(style, parts, out_first).items()}


def layer_styles(styles: Mapping[str, object], model: nn.Module) -> dict[str, Style]:
    """Return module → style for styles by names and globs, within the base model too.

    Raises:
        ShardingError: an unknown style, or a key that means no module.
    """
    known = {key: as_style(key, value) for key, value in styles.items()}
    return chosen(known, modules_of(model), getattr(model, "base_model_prefix", ""))


def styles_plan(styles: Mapping[str, object], model: nn.Module, mesh: Mesh, axis: str | None = None) -> ShardingPlan:
    """Return the plan of parallel styles along one axis of `mesh`; the other axes are left open.

    Raises:
        ShardingError, UnsupportedError: an unknown style, axis or module.
    """
    axis = style_axis(mesh, axis)
    layers, modules, first = layer_styles(styles, model), modules_of(model), first_names(model)
    others = {other: parse_placement("?") for other in mesh.axis_names if other != axis}
    shardings: dict[str, Sharding] = {}
    for name, style in layers.items():
        for parameter, placement in placed_parameters(name, modules[name], style).items():
            shardings[first[parameter]] = Sharding([(axis, placement), *others.items()])
    activations = {name: style_activation(style, axis, mesh) for name, style in layers.items()}
    return ShardingPlan(
        with_globs(shardings, parameters_of(model)),
        activations=with_globs({name: one for name, one in activations.items() if one is not None}, modules),
        keep=(axis,),
    )


def style_activation(style: Style, axis: str, mesh: Mesh) -> Activation | None:
    """Return the layouts that a style asks for along one axis; the other axes are open."""

    def layouts(given: Mapping[str, str]) -> dict[str, Layout]:
        return {key: layout({**dict.fromkeys(mesh.axis_names, "?"), axis: text}) for key, text in given.items()}

    asks = style.inputs or style.outputs
    return Activation(layouts(style.inputs), layouts(style.outputs)) if asks else None


def layout(placements: Mapping[str, str]) -> Layout:
    """Return the layout of axis → text of a placement."""
    return Layout(", ".join(f"{axis}: {text}" for axis, text in placements.items()))
