"""Parallel styles of modules: torch's classes, and the words of Hugging Face's `tp_plan`."""

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
from spmdir.plans.module_names import first_names, modules_of, parameters_of, values_by_module, with_globs


@attrs.frozen
class Style:
    """The effect of a style on a module along one axis.

    Attributes:
        features: the sharded features of the weight: "out", "in", or "none" for replicated parameters. "experts" shards
            the leading dimension of a parameter of experts. None does not set the placements of parameters.
        packed: the number of matrices that the weight concatenates. Each of them is sharded.
        inputs, outputs: position or name → the text of a placement. The compiler decides all others.
    """

    features: str | None = None
    packed: int = 1
    inputs: Mapping[str, str] = attrs.field(factory=dict)
    outputs: Mapping[str, str] = attrs.field(factory=dict)


_WHOLE = {"0": "R"}
"""The first input or output is replicated."""

_SEQUENCE = {"0": "S(1)"}
"""The first input or output is sharded along the sequence, dimension 1."""

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
    "moe_tp_experts": Style(),
    "grouped_gemm": Style("experts"),
    "ep_dispatch_experts": Style(),
}
"""Word of Hugging Face's `tp_plan` → its style. Partial gradients of replicated parameters are summed."""

EXPERTS = ("moe_identity_expert", "ep_router", "local_params")
"""Words of Hugging Face's `tp_plan` for experts, which are not supported."""


def _texts(layouts: Sequence[Any] | Mapping[str, Any] | None, default: str | None = None) -> dict[str, str]:
    """Return position or name → text of a DTensor placement, without None and placements with the text `default`.

    Args:
        layouts: a sequence of placements by position, a mapping by name, or None for no placements.
    """
    named = layouts if isinstance(layouts, Mapping) else dict(enumerate(layouts or ()))
    texts = {str(key): _placement_text(placement) for key, placement in named.items() if placement is not None}
    return {key: text for key, text in texts.items() if text != default}


def _placement_text(placement: Any) -> str:
    """Return the text of a placement of DTensor: `S(1)` or `R`."""
    kind = type(placement).__name__
    if kind == "Shard":
        return f"S({placement.dim})"
    if kind == "Replicate":
        return "R"
    raise UnsupportedError(f"a style has the layout {placement!r}; expected Shard or Replicate: use one of them")


def _prepared_input(style: Any) -> Style:
    """Return the style of a `PrepareModuleInput` of torch, with the layouts that it requires of inputs."""
    keywords = _texts(style.desired_input_kwarg_layouts)
    return Style(inputs={**_texts(style.desired_input_layouts), **keywords})


CLASSES: dict[str, Callable[[Any], Style]] = {
    "ColwiseParallel": lambda style: Style(
        "out", inputs=_texts(style.input_layouts, "R"), outputs=_texts(style.output_layouts, "S(-1)")
    ),
    "RowwiseParallel": lambda style: Style(
        "in", inputs=_texts(style.input_layouts, "S(-1)"), outputs=_texts(style.output_layouts, "R")
    ),
    "SequenceParallel": lambda style: Style(
        "none", inputs=_texts(style.sequence_sharding), outputs=_texts(style.sequence_sharding)
    ),
    "PrepareModuleInput": _prepared_input,
    "PrepareModuleOutput": lambda style: Style(outputs=_texts(style.desired_output_layouts)),
    "PrepareModuleInputOutput": lambda style: attrs.evolve(
        _prepared_input(style.prepare_module_input), outputs=_texts(style.prepare_module_output.desired_output_layouts)
    ),
}
"""Class of torch.distributed.tensor.parallel → the style, without the layouts that a layer has by default."""


def is_style(value: object) -> bool:
    """Return whether a value of a plan is a style rather than a sharding: one word, or a ParallelStyle of torch."""
    is_word = isinstance(value, str) and value.strip().isidentifier()
    return is_word or any(kind.__name__ == "ParallelStyle" for kind in type(value).__mro__)


def as_style(key: str, value: object) -> Style:
    """Return the style of a word or of an object of torch.

    Raises:
        UnsupportedError: the style is for experts.
        ShardingError: the style is unknown.
    """
    if isinstance(value, str):
        word = value.strip()
        if word in WORDS:
            return WORDS[word]
        if word in EXPERTS:
            raise UnsupportedError(
                f"'{key}' has the style '{word}' for experts; expected a style for layers: omit it, and give the "
                "parameters of the experts shardings",
                key_location(key),
            )
    else:
        for kind in type(value).__mro__:
            if kind.__name__ in CLASSES:
                return CLASSES[kind.__name__](value)
    style_name = value if isinstance(value, str) else type(value).__name__
    expected_names = [*WORDS, *CLASSES]
    raise ShardingError(
        f"'{key}' has the style {shown(style_name)}; expected one of {', '.join(expected_names)}"
        f"{did_you_mean(str(style_name), expected_names)}",
        key_location(key),
    )


def style_axis(mesh: Mesh, axis: str | None = None) -> str:
    """Return the mesh axis of styles: `axis`, or by default "tp", or the only axis.

    Raises:
        ShardingError: there is no such axis.
    """
    if axis is None and len(mesh.axes) > 1 and "tp" not in mesh.sizes:
        raise ShardingError(
            f"mesh {mesh} has several axes, but no axis 'tp'; expected the axis of the weights: pass it as axis="
        )
    axis = axis or ("tp" if "tp" in mesh.sizes else mesh.axis_names[0])
    mesh.require(axis)
    return axis


def linear_placements(style: Style, parts: Mapping[str, int], out_first: bool = True) -> dict[str, Placement]:
    """Return "weight" or "bias" → the placement of this parameter of a linear layer or an embedding.

    For example, for nn.Linear, `colwise` shards the output features: S(0) for both. `rowwise` shards the input
    features: S(1) for the weight, and R for the bias.

    Args:
        parts: "weight" or "bias" → its number of dimensions.
        out_first: whether the weight has the shape (…, out, in), as for nn.Linear, or (…, in, out).
    """
    placements: dict[str, Placement] = {}
    for part, rank in parts.items():
        if style.features == "experts":
            placements[part] = Shard(0)
            continue
        # A bias has output features only, so it is replicated if input features are sharded.
        if style.features == "none" or (style.features == "in" and rank == 1):
            placements[part] = R
            continue
        # The last dimension has input features if the weight is (…, out, in), else output features.
        is_last_sharded = rank == 1 or out_first == (style.features == "in")
        dim = rank - 1 if is_last_sharded else rank - 2
        placements[part] = Shard(dim) if style.packed == 1 else parse_placement(f"Strided({dim}, {style.packed})")
    return placements


def placed_parameters(name: str, module: nn.Module | nn.Parameter, style: Style) -> dict[str, Placement]:
    """Return parameter → placement, for the module or parameter `module` with the name `name`.

    A parameter is the weight of a linear layer, or of one for each expert: (…, out, in). The result is empty if the
    style sets no placements of parameters.

    Raises:
        ShardingError: the style shards a weight, but the module is no linear layer or embedding.
    """
    if style.features is None:
        return {}
    if isinstance(module, nn.Parameter):
        return {name: linear_placements(style, {"weight": module.dim()})["weight"]}
    parts = {part: parameter.dim() for part, parameter in module.named_parameters(recurse=False)}
    weight = parts.get("weight", 0)
    if style.features != "none" and (weight < 2 or set(parts) - {"weight", "bias"}):
        raise ShardingError(
            f"'{name}' is a {type(module).__name__}; expected a linear layer or an embedding with a weight "
            "and at most a bias, since only these can be colwise or rowwise: remove its style, or give "
            "shardings of its parameters"
        )
    # An embedding is a linear layer of one-hot rows. Its weight is (in, out), as that of Conv1D of transformers.
    out_first = not isinstance(module, nn.Embedding) and type(module).__name__ != "Conv1D"
    return {f"{name}.{part}": placement for part, placement in linear_placements(style, parts, out_first).items()}


def layer_styles(styles: Mapping[str, object], model: nn.Module) -> dict[str, Style]:
    """Return module or parameter → style, for styles given by names and globs, also relative to the base model.

    Raises:
        ShardingError: a style is unknown, or a key matches no module or parameter.
    """
    style_by_key = {key: as_style(key, value) for key, value in styles.items()}
    base = getattr(model, "base_model_prefix", "")
    return values_by_module(style_by_key, modules_of(model), base, parameters_of(model))


def targets_of_styles(model: nn.Module) -> dict[str, nn.Module | nn.Parameter]:
    """Return name → module or parameter, for all modules and parameters of the model: both may have a style."""
    return {**parameters_of(model), **modules_of(model)}


def styles_plan(styles: Mapping[str, object], model: nn.Module, mesh: Mesh, axis: str | None = None) -> ShardingPlan:
    """Return the plan of parallel styles along one axis of `mesh`. The other axes are left open.

    Raises:
        ShardingError, UnsupportedError: a style, axis or module is unknown.
    """
    axis = style_axis(mesh, axis)
    layers, targets, first_name_of = layer_styles(styles, model), targets_of_styles(model), first_names(model)
    open_placements = {open_axis: parse_placement("?") for open_axis in mesh.axis_names if open_axis != axis}
    shardings: dict[str, Sharding] = {}
    for name, style in layers.items():
        for parameter, placement in placed_parameters(name, targets[name], style).items():
            shardings[first_name_of[parameter]] = Sharding([(axis, placement), *open_placements.items()])
    activations = {name: style_activation(style, axis, mesh) for name, style in layers.items()}
    given_activations = {name: activation for name, activation in activations.items() if activation is not None}
    return ShardingPlan(
        with_globs(shardings, parameters_of(model)),
        activations=with_globs(given_activations, modules_of(model)),
        keep=(axis,),
    )


def style_activation(style: Style, axis: str, mesh: Mesh) -> Activation | None:
    """Return the layouts of a style along one axis, or None if it has none. The other axes are open."""

    def layouts(placements: Mapping[str, str]) -> dict[str, Layout]:
        return {key: layout({**dict.fromkeys(mesh.axis_names, "?"), axis: text}) for key, text in placements.items()}

    has_layouts = style.inputs or style.outputs
    return Activation(layouts(style.inputs), layouts(style.outputs)) if has_layouts else None


def layout(placements: Mapping[str, str]) -> Layout:
    """Return the layout for a mapping axis → text of a placement."""
    return Layout(", ".join(f"{axis}: {text}" for axis, text in placements.items()))
