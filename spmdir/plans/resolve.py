"""Anything that people call a plan, and a model → the explicit plan that it stands for."""

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


@accepts(model=instance(nn.Module, expected="a nn.Module"))
def sharding_plan(model: nn.Module, mesh: Mesh | DeviceMesh, plan: PlanLike) -> ShardingPlan:
    """Return the explicit plan that `plan` stands for; its `str` is the text of a plan file.

    Args:
        model: whose parameters and modules it names; values are not read.
        mesh: a Mesh, or a torch DeviceMesh with names.
        plan: a recipe such as "fsdp*tp"; the text of a plan file, or a path that ends in .toml; a dict from names and
            globs to shardings, to torch's ParallelStyles, or to the words of Hugging Face's `tp_plan`; a ShardingPlan;
            or None, which leaves all to the search.

    Raises:
        SpmdirError: an unknown recipe, style, axis, parameter or module.

    Example:
        >>> print(spmdir.placement.sharding_plan(model, spmdir.Mesh({"dp": 2, "tp": 2}), "fsdp*tp"))
    """
    return resolve(plan, model, mesh)


def resolve(plan: PlanLike, model: nn.Module, mesh: Mesh | DeviceMesh) -> ShardingPlan:
    """Return what `sharding_plan` does, for the front ends."""
    mesh = as_mesh(mesh)
    return _of_model(_explicit(plan, model, mesh), model, mesh)


def _explicit(plan: PlanLike, model: nn.Module, mesh: Mesh) -> ShardingPlan:
    if isinstance(plan, os.PathLike) or (isinstance(plan, str) and plan.endswith(".toml") and "\n" not in plan):
        path = os.fspath(plan)
        return read_plan(read_text_file(path, f"the plan {path}"), path, mesh)
    if isinstance(plan, str) and not is_plan_text(plan):
        return recipe_plan(plan, model, mesh)
    if isinstance(plan, Mapping) and any(map(is_style, plan.values())):
        styles = {key: value for key, value in plan.items() if is_style(value)}
        shardings = {key: value for key, value in plan.items() if not is_style(value)}
        return styles_plan(styles, model, mesh).over(ShardingPlan(shardings))
    return as_plan(plan, mesh)


def _of_model(plan: ShardingPlan, model: nn.Module, mesh: Mesh) -> ShardingPlan:
    """Return `plan` with tied parameters under their first names, and placements of DTensor as shardings."""
    parameters = parameters_of(model)
    first = first_names(model)
    shardings: dict[str, Any] = {}
    for key, value in plan.shardings.items():
        require_type("a key of shardings", key, str, "an input's name, 'input:N' or a glob")
        found = [name for name in parameters if name == key or (is_glob(key) and fnmatchcase(name, key))]
        if isinstance(value, (list, tuple)):
            value = as_sharding(value, mesh, parameters[found[0]].dim() if found else None)
        if not found or any(first[name] == name for name in found):
            shardings[key] = value
        shardings |= {first[name]: value for name in found if first[name] not in found}
    return attrs.evolve(plan, shardings=shardings)


def plan_for(plan: PlanLike, program: object, mesh: Mesh | DeviceMesh) -> tuple[ShardingPlan, nn.Module]:
    """Return the explicit plan of what is to be captured, and the model whose modules it names.

    Args:
        program: a module, or a step that knows its module as `model`, as those of `training_step` do; of any other
            function a plan can name arguments alone.

    Raises:
        SpmdirError: as of `sharding_plan`; the plan is about modules and `program` has none.
    """
    model = program if isinstance(program, nn.Module) else getattr(program, "model", None)
    if isinstance(model, nn.Module):
        return resolve(plan, model, mesh), model
    return as_plan(plan, as_mesh(mesh)), nn.Module()
