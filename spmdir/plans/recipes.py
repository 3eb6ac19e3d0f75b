"""Recipes: one word, or a product of words, for the plan of a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import attrs
from torch import nn

from spmdir.core.errors import ShardingError, did_you_mean, shown
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, ShardPlacement, parse_placement
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.sharding_plan import INPUTS, Activation, ShardingPlan
from spmdir.core.placement.standard import R, Shard
from spmdir.plans.module_names import first_names, modules_of, parameters_of, with_globs
from spmdir.plans.styles import Style, layer_styles, layout, placed_parameters
from spmdir.plans.tensor_parallel_layers import is_linear, tensor_parallel_layers


@attrs.frozen
class Recipe:
    """What one word does along one axis. Parameters are replicated along it but for what is said here.

    Attributes:
        axes: names of the axis, the first that the mesh has is taken.
        inputs: which dimension of the inputs is sharded: 0 is the batch, 1 the sequence; None for none.
        parameters: whether each parameter is sharded, along its first dimension that divides and no other axis shards.
        state: whether what the optimizer keeps of a parameter is sharded so, the parameter being replicated.
        layers: whether linear layers are sharded in pairs, by output and by input features; their outputs are open.
        sequence: whether activations are sharded along the sequence, their dimension 1: what embedding, layers, norms
            and linear layers give, but where it is sharded by features.
    """

    axes: tuple[str, ...]
    inputs: int | None = None
    parameters: bool = False
    state: bool = False
    layers: bool = False
    sequence: bool = False


RECIPES: dict[str, Recipe] = {
    "ddp": Recipe(("ddp", "dp_replicate", "dp"), inputs=0),
    "zero1": Recipe(("zero", "dp_shard", "dp"), inputs=0, state=True),
    "zero2": Recipe(("zero", "dp_shard", "dp"), inputs=0, state=True),
    "fsdp": Recipe(("fsdp", "dp_shard", "dp"), inputs=0, parameters=True),
    "tp": Recipe(("tp",), layers=True),
    "sp": Recipe(("sp", "tp"), sequence=True),
    "cp": Recipe(("cp",), inputs=1, sequence=True),
}
"""Word → what it does along its axis. zero1 and zero2 are one plan: a sharded update takes a sharded gradient."""

PRODUCTS = {"hsdp": ("ddp", "fsdp")}
"""Word → the recipes that it multiplies."""

AUTO = "auto"
"""The word for leaving what no other word places to the search."""

_FACTOR = re.compile(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*")
Placed = dict[str, Placement]


@attrs.frozen
class AxisRecipe:
    """A recipe along the axis of a mesh."""

    axis: str
    recipe: Recipe


def recipe_plan(text: str, model: nn.Module, mesh: Mesh) -> ShardingPlan:
    """Return the plan that a product of recipes stands for, such as `fsdp*tp` or `fsdp(data)*tp(model)`.

    Axes of the mesh that no recipe takes are left open.

    Raises:
        ShardingError: an unknown recipe, an axis that the mesh lacks, two recipes that place the same along one axis,
            or a model whose layers `tp` does not know.
    """
    factors = list(_factors(text, mesh))
    _check_distinct(text, factors, mesh)
    open_axes = dict.fromkeys(mesh.axis_names, parse_placement("?"))
    replicated = {factor.axis: R for factor in factors}
    if not factors:
        return ShardingPlan()
    layers = {f.axis: layer_styles(tensor_parallel_layers(model), model) for f in factors if f.recipe.layers}
    weights = _layer_placements(layers, model)
    sharded = [factor.axis for factor in factors if factor.recipe.parameters]
    kept = [factor.axis for factor in factors if factor.recipe.state]
    parameters: dict[str, Sharding] = {}
    state: dict[str, Sharding] = {}
    for name, parameter in model.named_parameters():
        placed = _spread({**replicated, **weights.get(name, {})}, sharded, parameter.shape, mesh)
        parameters[name] = _sharding(open_axes, placed)
        state[name] = _sharding(open_axes, _spread(placed, kept, parameter.shape, mesh))
    names = list(parameters_of(model))
    inputs = {f.axis: Shard(f.recipe.inputs) for f in factors if f.recipe.inputs is not None}
    shardings = {INPUTS: _sharding(open_axes, {**replicated, **inputs})} if inputs else {}
    if kept:
        shardings |= with_globs(state, names)
        shardings |= {f"parameters.{key}": one for key, one in with_globs(parameters, names).items()}
    else:
        shardings |= with_globs(parameters, names)
    return ShardingPlan(shardings, activations=_activations(factors, layers, model, mesh), keep=tuple(layers))


def _factors(text: str, mesh: Mesh) -> Iterator[AxisRecipe]:
    for part in text.split("*"):
        match = _FACTOR.fullmatch(part)
        word = match[1] if match else part.strip()
        words = PRODUCTS.get(word, (word,))
        known = [*RECIPES, *PRODUCTS, AUTO]
        if match is None or word not in known:
            raise ShardingError(
                f"{shown(part.strip())} is not a recipe; expected one of {', '.join(known)}, or a product, as in "
                f"fsdp*tp or fsdp(data)*tp(model){did_you_mean(word, known)}"
            )
        axes = [axis.strip() for axis in match[2].split(",")] if match[2] is not None else None
        if word == AUTO:
            continue
        if axes is not None and len(axes) != len(words):
            raise ShardingError(
                f"'{part.strip()}' names {len(axes)} axes; {word} has {len(words)}: {' and '.join(words)}"
            )
        for index, one in enumerate(words):
            yield AxisRecipe(_axis(one, mesh, axes[index] if axes else None), RECIPES[one])


def _axis(word: str, mesh: Mesh, given: str | None) -> str:
    if given is not None:
        mesh.require(given)
        return given
    known = [axis for axis in RECIPES[word].axes if axis in mesh.sizes]
    if not known and len(mesh.axes) > 1:
        raise ShardingError(
            f"{word} takes the axis {' or '.join(RECIPES[word].axes)}, which mesh {mesh} does not have; "
            f"name one, as in {word}({mesh.axis_names[0]})"
        )
    return (known or mesh.axis_names)[0]


def _check_distinct(text: str, factors: Sequence[AxisRecipe], mesh: Mesh) -> None:
    """Raise ShardingError where two recipes place inputs, parameters or activations along one axis."""
    for index, one in enumerate(factors):
        for other in factors[:index]:
            if one.axis == other.axis and {one.recipe, other.recipe} != {RECIPES["tp"], RECIPES["sp"]}:
                raise ShardingError(
                    f"'{text}' has two recipes for axis '{one.axis}' of mesh {mesh}; expected one an axis, or tp and "
                    "sp: give the mesh an axis more, or name the axes, as in fsdp(dp)*tp(tp)"
                )


def _layer_placements(layers: Mapping[str, Mapping[str, Style]], model: nn.Module) -> dict[str, Placed]:
    """Return parameter → axis → placement; a tied parameter has those of each of its names."""
    modules, first = modules_of(model), first_names(model)
    found: dict[str, Placed] = {}
    for axis, styles in layers.items():
        for name, style in styles.items():
            for parameter, placement in placed_parameters(name, modules[name], style).items():
                found.setdefault(first[parameter], {})[axis] = placement
    return found


def _spread(placed: Placed, axes: Sequence[str], shape: Sequence[int], mesh: Mesh) -> Placed:
    """Return `placed` with each of `axes` sharding a dimension that it divides; replicated if it divides none.

    Dimension 0 if no other axis shards it, else the largest such; dimensions that others shard come last, nested.
    """
    placed = dict(placed)
    for axis in axes:
        taken = [p.dim for p in placed.values() if isinstance(p, ShardPlacement)]

        def left(dim: int, placed: Placed = placed) -> int:
            others = [mesh.sizes[a] for a, p in placed.items() if isinstance(p, ShardPlacement) and p.dim == dim]
            size = shape[dim]
            for count in others:
                size = size // count if size % count == 0 else 0
            return size

        fitting = [d for d in range(len(shape)) if left(d) and left(d) % mesh.sizes[axis] == 0]
        if fitting:
            placed.pop(axis, None)  # what shards within others comes behind them
            placed[axis] = Shard(min(fitting, key=lambda d: (d in taken, d != 0, -shape[d], d)))
    return placed


def _sharding(open_axes: Placed, placed: Placed) -> Sharding:
    return Sharding(list({**placed, **{axis: p for axis, p in open_axes.items() if axis not in placed}}.items()))


def _activations(
    factors: Sequence[AxisRecipe], layers: Mapping[str, Mapping[str, Style]], model: nn.Module, mesh: Mesh
) -> dict[str, Activation]:
    """Return the layout of what modules give token by token, where a recipe shards the sequence."""
    if not any(factor.recipe.sequence for factor in factors):
        return {}
    texts = dict.fromkeys(mesh.axis_names, "?") | {factor.axis: "R" for factor in factors}
    texts |= {factor.axis: f"S({factor.recipe.inputs})" for factor in factors if factor.recipe.inputs is not None}
    texts |= {factor.axis: "S(1)" for factor in factors if factor.recipe.sequence}
    between = Activation(outputs={"0": layout(texts)})
    styles = [layers.get(factor.axis, {}) for factor in factors if factor.recipe.sequence]
    by_features = {name for named in styles for name, style in named.items() if style.features == "out"}
    axis = next(factor.axis for factor in factors if factor.recipe.sequence)
    given = [name for name in _given_by_token(model, axis) if name not in by_features]
    return with_globs(dict.fromkeys(given, between), modules_of(model))


def _given_by_token(model: nn.Module, axis: str) -> list[str]:
    """Return the modules that give (batch, sequence, …): the first embedding, layers, norms and linear layers.

    Args:
        axis: the mesh axis that is to shard the sequence, for the error.

    Raises:
        ShardingError: the model has no list of layers.
    """
    modules = modules_of(model)
    lists = [name for name, module in modules.items() if _is_list_of_layers(module)]
    outer = [name for name in lists if not any(other != name and _within(name, other) for other in lists)]
    layers = {f"{name}.{index}".lstrip(".") for name in outer for index, _ in modules[name].named_children()}
    if not layers:
        raise ShardingError(
            "the model has no nn.ModuleList, nn.Sequential or numbered nn.ModuleDict of layers, whose sequence sp and "
            "cp shard; print placement.sharding_plan of the recipe without sp or cp, add the modules that give one row "
            f'a token, as in [activations] "NAME" = {{ outputs = "{axis}: S(1)" }}, and give that text as the plan'
        )
    embedding = [name for name, module in modules.items() if isinstance(module, nn.Embedding)][:1]
    tokenwise = {name for name, m in modules.items() if is_linear(m) or type(m).__name__.endswith("Norm")}
    return [name for name in modules if name in layers | tokenwise or name in embedding]


def _is_list_of_layers(module: nn.Module) -> bool:
    """Return whether `module` holds layers in order; torchtitan's models keep them in a ModuleDict by number."""
    if isinstance(module, nn.ModuleDict):
        return len(module) > 0 and all(key.isdigit() for key in module)
    return isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > 0


def _within(name: str, other: str) -> bool:
    return not other or name.startswith(f"{other}.")
