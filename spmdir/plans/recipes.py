"""Recipes: plans given by one word, or by a product of words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import attrs
from torch import nn

from spmdir.core.errors import ShardingError, did_you_mean, shown
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, parse_placement
from spmdir.core.placement.pipeline_axis import PipelineAxis, read_pipeline_axis
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.sharding_plan import INPUTS, Activation, ShardingPlan
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import R, Shard
from spmdir.plans.expert_parameters import expert_parameters
from spmdir.plans.module_names import first_names, modules_of, parameters_of, with_globs
from spmdir.plans.styles import Style, layer_styles, layout, placed_parameters, targets_of_styles
from spmdir.plans.tensor_parallel_layers import is_linear, tensor_parallel_layers


@attrs.frozen
class Recipe:
    """The effect of one word along one axis. By default, parameters are replicated along it.

    Attributes:
        axes: names of mesh axes. The first one that the mesh has is used.
        inputs: the sharded dimension of the inputs: 0 is the batch, 1 the sequence. None shards no inputs.
        parameters: whether parameters are sharded, along the dimension that `_shard_over` chooses.
        state: whether optimizer states are sharded in this way, with replicated parameters.
        layers: whether linear layers are sharded in pairs: by output features, then by input features.
        experts: whether parameters of experts are sharded by expert, and kept. Other parameters are sharded if another
            recipe of the product shards parameters.
        sequence: whether outputs of the embedding, layers, norms and linear layers are sharded along the sequence,
            their dimension 1. Outputs that are sharded by features are left out.
        stages: whether the model is cut into stages along it. No tensor is sharded over it.
    """

    axes: tuple[str, ...]
    inputs: int | None = None
    parameters: bool = False
    state: bool = False
    layers: bool = False
    experts: bool = False
    sequence: bool = False
    stages: bool = False


RECIPES: dict[str, Recipe] = {
    "ddp": Recipe(("ddp", "dp_replicate", "dp"), inputs=0),
    "zero1": Recipe(("zero", "dp_shard", "dp"), inputs=0, state=True),
    "zero2": Recipe(("zero", "dp_shard", "dp"), inputs=0, state=True),
    "fsdp": Recipe(("fsdp", "dp_shard", "dp"), inputs=0, parameters=True),
    "tp": Recipe(("tp",), layers=True),
    "ep": Recipe(("ep",), inputs=0, experts=True),
    "sp": Recipe(("sp", "tp"), sequence=True),
    "cp": Recipe(("cp",), inputs=1, sequence=True),
    "pp": Recipe(("pp",), stages=True),
}
"""Word → its effect along its axis. zero1 and zero2 are the same plan: a sharded update uses a sharded gradient."""

_SAME_AXIS = (("tp", "sp"), ("ddp", "ep"), ("zero1", "ep"), ("fsdp", "ep"))
"""The pairs of words that one axis may have."""

PRODUCTS = {"hsdp": ("ddp", "fsdp")}
"""Word → the recipes whose product it is."""

AUTO = "auto"
"""The word for a search: it chooses all placements that the other words leave open."""

_FACTOR = re.compile(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*")
"""One factor of a product: a word, and the names of axes and options in round brackets."""

AxisPlacements = dict[str, Placement]
"""Mesh axis → placement."""


@attrs.frozen
class AxisRecipe:
    """A recipe along one mesh axis. A recipe with stages has options: the fields of its `PipelineAxis`."""

    axis: str
    recipe: Recipe
    options: Mapping[str, str | int] = attrs.field(factory=dict)


def recipe_plan(text: str, model: nn.Module, mesh: Mesh) -> ShardingPlan:
    """Return the plan of a product of recipes, such as `fsdp*tp` or `fsdp(data)*tp(model)`.

    Mesh axes without a recipe are left open. The plan of `auto` alone is empty. If a recipe shards optimizer states,
    the key `NAME` is for the states of a parameter, and the key `parameters.NAME` for the parameter itself. With `pp`,
    the shardings are over the other axes.

    Raises:
        ShardingError: a recipe or a mesh axis does not exist, two recipes are for one axis, `tp` finds no layers, or
            `ep` finds no experts or cannot divide their number.
    """
    factors = recipe_factors(text, mesh)
    pipeline = _pipeline_axis(factors)
    if pipeline is not None:
        factors = [factor for factor in factors if not factor.recipe.stages]
        mesh = pipeline.other_axes(mesh)
    if not factors:
        return ShardingPlan(pipeline=pipeline)
    layers = {  # axis of `tp` → module or parameter → its style
        factor.axis: layer_styles(tensor_parallel_layers(model), model) for factor in factors if factor.recipe.layers
    }
    expert_axes = [factor.axis for factor in factors if factor.recipe.experts]
    experts = expert_parameters(model) if expert_axes else []
    _check_expert_counts(experts, expert_axes, model, mesh)
    parameters, states = _parameter_shardings(factors, _layer_placements(layers, model), experts, model, mesh)
    names = list(parameters_of(model))
    shardings: dict[str, Sharding] = {}
    inputs = {factor.axis: Shard(factor.recipe.inputs) for factor in factors if factor.recipe.inputs is not None}
    if inputs:
        replicated = {factor.axis: R for factor in factors}
        shardings[INPUTS] = _sharding(mesh, {**replicated, **inputs})
    if _axes_with(factors, "state", expert_axes):
        shardings |= with_globs(states, names)
        shardings |= {f"parameters.{key}": sharding for key, sharding in with_globs(parameters, names).items()}
    else:
        shardings |= with_globs(parameters, names)
    kept_experts = with_globs(dict.fromkeys(experts, True), names)
    keep = [*layers, *(f"{axis}: {key}" for axis in expert_axes for key in kept_experts)]
    activations = _activations(factors, layers, model, mesh)
    return ShardingPlan(shardings, activations=activations, keep=tuple(keep), pipeline=pipeline)


def _parameter_shardings(
    factors: Sequence[AxisRecipe],
    weights: Mapping[str, AxisPlacements],
    experts: Collection[str],
    model: nn.Module,
    mesh: Mesh,
) -> tuple[dict[str, Sharding], dict[str, Sharding]]:
    """Return parameter → its sharding, and parameter → the sharding of its optimizer states.

    For example, `fsdp*tp` on the mesh (dp = 2, tp = 2) shards a colwise weight of shape (8, 8) first as `tp: S(0)`, and
    then over `dp` as `tp: S(0), dp: S(1)`.

    Args:
        weights: parameter → axis → placement, for the axes of `tp`.
        experts: the parameters of experts, which the axes of `ep` shard by expert.
    """
    replicated = {factor.axis: R for factor in factors}
    expert_axes = [factor.axis for factor in factors if factor.recipe.experts]
    parameter_axes = _axes_with(factors, "parameters", expert_axes)
    state_axes = _axes_with(factors, "state", expert_axes)
    parameters: dict[str, Sharding] = {}
    states: dict[str, Sharding] = {}
    for name, parameter in model.named_parameters():
        by_expert = dict.fromkeys(expert_axes if name in experts else [], Shard(0))
        placements = {**replicated, **by_expert, **weights.get(name, {})}
        placements = _shard_over(placements, parameter_axes, by_expert, parameter.shape, mesh)
        parameters[name] = _sharding(mesh, placements)
        states[name] = _sharding(mesh, _shard_over(placements, state_axes, by_expert, parameter.shape, mesh))
    return parameters, states


def _pipeline_axis(factors: Sequence[AxisRecipe]) -> PipelineAxis | None:
    """Return the pipeline axis of the factor with stages; None without one."""
    for factor in factors:
        if factor.recipe.stages:
            return read_pipeline_axis({"axis": factor.axis, **factor.options}, lambda key: None)
    return None


def recipe_factors(text: str, mesh: Mesh) -> list[AxisRecipe]:
    """Return the factors of a product of recipes. `auto` is not a factor, and `hsdp` is two.

    Raises:
        ShardingError: a recipe or a mesh axis does not exist, or two recipes are for one axis.
    """
    factors = list(_read_factors(text, mesh))
    _check_distinct(text, factors, mesh)
    return factors


def _read_factors(text: str, mesh: Mesh) -> Iterator[AxisRecipe]:
    """Yield the factors of a product of recipes; `auto` has none, and `hsdp` has two.

    A factor is a word with names of axes and options, such as `hsdp(replicate, shard)` or `pp(stages=8)`.
    """
    for part in text.split("*"):
        match = _FACTOR.fullmatch(part)
        word = match[1] if match else part.strip()
        words = PRODUCTS.get(word, (word,))
        recipe_names = [*RECIPES, *PRODUCTS, AUTO]
        if match is None or word not in recipe_names:
            raise ShardingError(
                f"{shown(part.strip())} is not a recipe; expected one of {', '.join(recipe_names)}, or a product, as "
                f"in fsdp*tp or fsdp(data)*tp(model){did_you_mean(word, recipe_names)}"
            )
        entries = [entry.strip() for entry in match[2].split(",")] if match[2] is not None else []
        options = dict(_read_option(entry) for entry in entries if "=" in entry)
        axes = [entry for entry in entries if "=" not in entry] or None
        if word == AUTO:
            continue
        if options and not RECIPES[words[0]].stages:
            raise ShardingError(
                f"'{part.strip()}' has the option '{min(options)}'; expected names of axes, as only pp has options"
            )
        if axes is not None and len(axes) != len(words):
            raise ShardingError(
                f"'{part.strip()}' names {len(axes)} axes; expected {len(words)}, for {' and '.join(words)}"
            )
        for index, recipe_name in enumerate(words):
            yield AxisRecipe(_axis(recipe_name, mesh, axes[index] if axes else None), RECIPES[recipe_name], options)


def _read_option(entry: str) -> tuple[str, str | int]:
    """Return (name, value) of an option such as `stages=8`."""
    key, _, value = (text.strip() for text in entry.partition("="))
    return key, int(value) if value.isascii() and value.isdigit() and key != "schedule" else value


def _axis(word: str, mesh: Mesh, named_axis: str | None) -> str:
    """Return the mesh axis of a recipe: the one that the user named, the first of its names, or the only axis.

    Raises:
        ShardingError: the mesh does not have the named axis, or has several axes and none of the names of the recipe.
    """
    if named_axis is not None:
        mesh.require(named_axis)
        return named_axis
    candidates = [axis for axis in RECIPES[word].axes if axis in mesh.sizes]
    if not candidates and len(mesh.axes) > 1:
        raise ShardingError(
            f"{word} uses the axis {' or '.join(RECIPES[word].axes)}, which mesh {mesh} does not have; "
            f"expected an axis of the mesh: name one, as in {word}({mesh.axis_names[0]})"
        )
    return (candidates or mesh.axis_names)[0]


def _check_distinct(text: str, factors: Sequence[AxisRecipe], mesh: Mesh) -> None:
    """Raise ShardingError if two recipes are for one axis, except the pairs of `_SAME_AXIS`."""
    for index, factor in enumerate(factors):
        for earlier in factors[:index]:
            pairs = [{RECIPES[first], RECIPES[second]} for first, second in _SAME_AXIS]
            if factor.axis == earlier.axis and {factor.recipe, earlier.recipe} not in pairs:
                raise ShardingError(
                    f"'{text}' has two recipes for axis '{factor.axis}' of mesh {mesh}; expected one for each axis, or "
                    "tp and sp, or fsdp and ep: add an axis to the mesh, or name the axes, as in fsdp(dp)*tp(tp)"
                )


def _axes_with(factors: Sequence[AxisRecipe], field: str, expert_axes: Sequence[str]) -> list[str]:
    """Return the axes of the recipes whose attribute `field` is true, and those of `ep` if there are any."""
    axes = [factor.axis for factor in factors if getattr(factor.recipe, field)]
    return list(dict.fromkeys([*axes, *expert_axes])) if axes else []


def _check_expert_counts(names: Sequence[str], axes: Sequence[str], model: nn.Module, mesh: Mesh) -> None:
    """Raise ShardingError if the ranks of an axis do not divide the number of experts of a parameter."""
    parameters, ranks = parameters_of(model), mesh.group_size(axes)
    for name in names:
        if parameters[name].shape[0] % ranks:
            raise ShardingError(
                f"'{name}' has {parameters[name].shape[0]} experts, which the {ranks} ranks of axis "
                f"'{axes[0]}' do not divide; expected equally many on each rank: choose a size of the axis "
                "that divides the number of experts"
            )


def _layer_placements(layers: Mapping[str, Mapping[str, Style]], model: nn.Module) -> dict[str, AxisPlacements]:
    """Return parameter → axis → placement, by the styles of the layers.

    A tied parameter is listed under its first name, with the placements of all its names.

    Args:
        layers: axis → module or parameter → style.
    """
    targets, first_name_of = targets_of_styles(model), first_names(model)
    placements_by_name: dict[str, AxisPlacements] = {}
    for axis, styles in layers.items():
        for name, style in styles.items():
            for parameter, placement in placed_parameters(name, targets[name], style).items():
                placements_by_name.setdefault(first_name_of[parameter], {})[axis] = placement
    return placements_by_name


def _shard_over(
    placements: AxisPlacements, axes: Sequence[str], fixed: Collection[str], shape: Sequence[int], mesh: Mesh
) -> AxisPlacements:
    """Return `placements` with one sharded dimension for each of `axes`, if the axis divides one.

    The placements of `fixed` axes do not change. All other `axes` shard the same dimension if they can: then one
    message gathers the tensor. The first choice is dimension 0, then the largest one. A dimension that an axis outside
    `axes`, or a fixed one, shards already is the last choice; the new axis is nested inside that axis. For the shape
    (6, 8) and an axis of 4 ranks, the result is `S(1)`, since 4 does not divide 6.
    """
    placements = dict(placements)
    for axis in axes:
        if axis in fixed:
            continue
        sharded_dims = {
            placement.dim
            for other_axis, placement in placements.items()
            if isinstance(placement, ShardPlacement) and (other_axis in fixed or other_axis not in axes)
        }
        ranking: dict[int, tuple[bool, bool, int, int]] = {}
        for dim, size in enumerate(shape):
            shard_size = _shard_size(dim, size, placements, mesh)
            if shard_size and shard_size % mesh.sizes[axis] == 0:
                ranking[dim] = (dim in sharded_dims, dim != 0, -size, dim)
        if ranking:
            placements.pop(axis, None)  # the axis becomes the innermost one of its dimension
            placements[axis] = Shard(min(ranking, key=ranking.__getitem__))
    return placements


def _shard_size(dim: int, size: int, placements: AxisPlacements, mesh: Mesh) -> int:
    """Return the size of a shard of a dimension of `size` elements; 0 if an axis does not divide it."""
    for axis, placement in placements.items():
        if isinstance(placement, ShardPlacement) and placement.dim == dim:
            if size % mesh.sizes[axis] != 0:
                return 0
            size //= mesh.sizes[axis]
    return size


def _sharding(mesh: Mesh, placements: AxisPlacements) -> Sharding:
    """Return the sharding with these placements. All other axes of the mesh are open."""
    open_axes = [(axis, parse_placement("?")) for axis in mesh.axis_names if axis not in placements]
    return Sharding([*placements.items(), *open_axes])


def _activations(
    factors: Sequence[AxisRecipe], layers: Mapping[str, Mapping[str, Style]], model: nn.Module, mesh: Mesh
) -> dict[str, Activation]:
    """Return the layouts of outputs of shape (batch, sequence, …), if a recipe shards the sequence.

    Args:
        layers: axis → module → style. Outputs that a style shards by features are left out.
    """
    if not any(factor.recipe.sequence for factor in factors):
        return {}
    # axis → the text of its placement: open, replicated, as the inputs, or along the sequence; later entries win
    placement_texts = dict.fromkeys(mesh.axis_names, "?") | {factor.axis: "R" for factor in factors}
    input_dims = {factor.axis: factor.recipe.inputs for factor in factors if factor.recipe.inputs is not None}
    placement_texts |= {axis: f"S({dim})" for axis, dim in input_dims.items()}
    sequence_axes = [factor.axis for factor in factors if factor.recipe.sequence]
    placement_texts |= dict.fromkeys(sequence_axes, "S(1)")
    activation = Activation(outputs={"0": layout(placement_texts)})
    by_features: set[str] = set()
    for axis in sequence_axes:
        by_features |= {name for name, style in layers.get(axis, {}).items() if style.features == "out"}
    names = [name for name in _tokenwise_modules(model, sequence_axes[0]) if name not in by_features]
    return with_globs(dict.fromkeys(names, activation), modules_of(model))


def _tokenwise_modules(model: nn.Module, axis: str) -> list[str]:
    """Return the modules with outputs (batch, sequence, …): the first embedding, layers, norms and linear layers.

    Args:
        axis: the mesh axis that shards the sequence, for the error.

    Raises:
        ShardingError: the model has no list of layers.
    """
    modules = modules_of(model)
    lists = [name for name, module in modules.items() if _is_list_of_layers(module)]
    layers: set[str] = set()
    for name in lists:
        is_nested = any(other != name and _is_within(name, other) for other in lists)
        if not is_nested:
            layers |= {f"{name}.{index}".lstrip(".") for index, _ in modules[name].named_children()}
    if not layers:
        raise ShardingError(
            "the model has no nn.ModuleList, nn.Sequential or numbered nn.ModuleDict of layers; expected "
            "one for sp and cp: print placement.sharding_plan of the recipe without sp or cp, add the "
            f'modules with one row for each token, as in [activations] "NAME" = {{ outputs = "{axis}: S(1)" '
            "}, and use that text as the plan"
        )
    embedding = [name for name, module in modules.items() if isinstance(module, nn.Embedding)][:1]
    tokenwise = {*layers, *embedding}
    for name, module in modules.items():
        if is_linear(module) or type(module).__name__.endswith("Norm"):
            tokenwise.add(name)
    return [name for name in modules if name in tokenwise]


def _is_list_of_layers(module: nn.Module) -> bool:
    """Return whether `module` is a list of layers. In models of torchtitan, it is a ModuleDict with numbers."""
    if isinstance(module, nn.ModuleDict):
        return len(module) > 0 and all(key.isdigit() for key in module)
    return isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > 0


def _is_within(name: str, module: str) -> bool:
    """Return whether `name` is the name of a submodule of `module`; "" is the model."""
    return not module or name.startswith(f"{module}.")
