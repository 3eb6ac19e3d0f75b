"""Conversion of any form of a plan to the explicit plan for a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import attrs
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from spmdir.core.arguments import accepts, instance
from spmdir.core.errors import require_type
from spmdir.core.mesh import Mesh, as_mesh
from spmdir.core.placement.sharding import as_sharding
from spmdir.core.placement.sharding_plan import ShardingPlan, as_plan, is_plan_text, read_plan
from spmdir.core.text_file import read_text_file
from spmdir.plans.module_names import first_names, is_glob, parameters_of
from spmdir.plans.recipes import recipe_plan
from spmdir.plans.styles import is_style, styles_plan

PlanLike = Any
"""A recipe, the text or path of a plan file, a dict of shardings and styles, a ShardingPlan, or None."""


@accepts(model=instance(nn.Module, expected="an nn.Module"))
def sharding_plan(model: nn.Module, mesh: Mesh | DeviceMesh, plan: PlanLike) -> ShardingPlan:
    """Return the explicit plan for a model. Its `str` is the text of a plan file.

    Args:
        model: the model with the parameters and modules of the plan. Values are not read.
        mesh: a Mesh, or a torch DeviceMesh with named dimensions.
        plan: a recipe such as "fsdp*tp"; the text of a plan file, or a path that ends in .toml; a dict of shardings,
            torch's ParallelStyles or words of Hugging Face's `tp_plan`, by names and globs; a ShardingPlan; or None,
            if the search decides everything.

    Raises:
        SpmdirError: a recipe, style, axis, parameter or module does not exist.

    Example:
        >>> print(spmdir.placement.sharding_plan(model, spmdir.Mesh({"dp": 2, "tp": 2}), "fsdp*tp"))
    """
    return resolve(plan, model, mesh)


def resolve(plan: PlanLike, model: nn.Module, mesh: Mesh | DeviceMesh) -> ShardingPlan:
    """Return the explicit plan, as `sharding_plan` does. The front ends call it without checks of the arguments."""
    mesh = as_mesh(mesh)
    parsed = _parse_plan(plan, model, mesh)
    if parsed.pipeline is not None and parsed.pipeline.axis in mesh.sizes:
        mesh = parsed.pipeline.other_axes(mesh)
    return _fit_to_model(parsed, model, mesh)


def _parse_plan(plan: PlanLike, model: nn.Module, mesh: Mesh) -> ShardingPlan:
    """Return any form of a plan as a ShardingPlan: a path, a recipe, styles and shardings, or a form of `as_plan`."""
    is_path = isinstance(plan, os.PathLike) or (isinstance(plan, str) and plan.endswith(".toml") and "\n" not in plan)
    if is_path:
        path = os.fspath(plan)
        return read_plan(read_text_file(path, f"the plan {path}"), path, mesh)
    if isinstance(plan, str) and not is_plan_text(plan):
        return recipe_plan(plan, model, mesh)
    if isinstance(plan, Mapping) and any(map(is_style, plan.values())):
        styles = {key: value for key, value in plan.items() if is_style(value)}
        shardings = {key: value for key, value in plan.items() if not is_style(value)}
        return styles_plan(styles, model, mesh).updated_with(ShardingPlan(shardings))
    return as_plan(plan, mesh)


def _fit_to_model(plan: ShardingPlan, model: nn.Module, mesh: Mesh) -> ShardingPlan:
    """Return `plan` with the first name of each tied parameter, and with DTensor placements as shardings.

    For example, if `embed.weight` is tied to `head.weight`, the key `head.weight` becomes `embed.weight`. A key that
    matches no parameter, such as the name of an input, is kept.
    """
    parameters = parameters_of(model)
    first_name_of = first_names(model)
    shardings: dict[str, Any] = {}
    for key, value in plan.shardings.items():
        require_type("a key of shardings", key, str, "an input's name, 'input:N' or a glob")
        matches = [name for name in parameters if name == key or (is_glob(key) and fnmatchcase(name, key))]
        if isinstance(value, (list, tuple)):
            value = as_sharding(value, mesh, parameters[matches[0]].dim() if matches else None)
        matches_first_name = any(first_name_of[name] == name for name in matches)
        if matches_first_name or not matches:
            shardings[key] = value
        # A first name that the key does not match gets an entry.
        shardings |= {first_name_of[name]: value for name in matches if first_name_of[name] not in matches}
    return attrs.evolve(plan, shardings=shardings)


def plan_for(plan: PlanLike, program: object, mesh: Mesh | DeviceMesh) -> tuple[ShardingPlan, nn.Module]:
    """Return the explicit plan for a program to be captured, and the model whose modules it refers to.

    Args:
        program: a module, or a step with its module in the attribute `model`, as of `training_step`. For any other
            function, a plan can only name arguments.

    Raises:
        SpmdirError: as for `sharding_plan`, or the plan names modules and `program` has none.
    """
    model = program if isinstance(program, nn.Module) else getattr(program, "model", None)
    if isinstance(model, nn.Module):
        return resolve(plan, model, mesh), model
    return as_plan(plan, as_mesh(mesh)), nn.Module()
