"""Lays the activations of a model out as a plan says, while it is captured."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from spmdir.core.errors import ShardingError, did_you_mean
from spmdir.core.placement.sharding_plan import RANKS, Activation, Layout, ShardingPlan
from spmdir.core.toml_text import key_location
from spmdir.importer.constrain import constrain
from spmdir.plans.module_names import chosen, modules_of

Texts = Mapping[int, str]
"""Number of dimensions → the sharding of an activation; a table, since Dynamo traces what reads it."""


@contextmanager
def constrained_activations(model: nn.Module, plan: ShardingPlan) -> Iterator[None]:
    """Let the modules of `model` constrain what they take and give as `plan` says, within the context.

    `torch.export`, `make_fx` and Dynamo record the constraints; in eager they are identities.

    Raises:
        ShardingError: the plan names a module that the model does not have, or an argument that a module does not take.
    """
    modules = modules_of(model)
    hooks = []
    try:
        for name, activation in chosen(plan.activations, modules).items():
            _check(name, modules[name], activation, plan)
            hooks += _hooks(name, modules[name], activation)
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _check(name: str, module: nn.Module, activation: Activation, plan: ShardingPlan) -> None:
    """Raise ShardingError for an argument that `module` does not take."""
    parameters = inspect.signature(module.forward).parameters
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values()):
        return
    for key in activation.inputs:
        if int(key) >= len(parameters) if key.isdigit() else key not in parameters:
            place = next((key_location(given) for given, one in plan.activations.items() if one is activation), None)
            raise ShardingError(
                f"the plan lays out input {key} of '{name}', whose forward takes {', '.join(parameters)}"
                f"{did_you_mean(key, parameters)}",
                place,
            )


def _hooks(name: str, module: nn.Module, activation: Activation) -> Iterator[Any]:
    if activation.inputs:
        hook = _on_inputs(name, list(inspect.signature(module.forward).parameters), _texts(activation.inputs))
        yield module.register_forward_pre_hook(hook, with_kwargs=True)
    if activation.outputs:
        yield module.register_forward_hook(_on_outputs(name, _texts(activation.outputs)))


def _texts(layouts: Mapping[str, Layout]) -> dict[str, Texts]:
    return {key: {rank: layout.of_rank(rank) for rank in RANKS} for key, layout in layouts.items()}


def _on_inputs(name: str, names: list[str], texts: Mapping[str, Texts]) -> Callable[..., Any]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        positional, named = list(args), dict(kwargs)
        for key, layouts in texts.items():
            place = int(key) if key.isdigit() else names.index(key) if key in names else len(positional)
            keyword = key if not key.isdigit() else names[place] if place < len(names) else key
            if place < len(positional):
                positional[place] = _laid_out(positional[place], layouts, f"input {key} of '{name}'")
            elif named.get(keyword) is not None:
                named[keyword] = _laid_out(named[keyword], layouts, f"input {key} of '{name}'")
        return tuple(positional), named

    return hook


def _on_outputs(name: str, texts: Mapping[str, Texts]) -> Callable[..., Any]:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, Tensor):
            for key, layouts in texts.items():
                if key != "0":
                    raise ShardingError(f"the plan lays out output {key} of '{name}', which returns one tensor")
                output = _laid_out(output, layouts, f"the output of '{name}'")
            return output
        if isinstance(output, dict):
            keys = list(output)
            for key, layouts in texts.items():
                at = keys[int(key)] if key.isdigit() and int(key) < len(keys) else key
                if at not in output:
                    raise ShardingError(f"the plan lays out output {key} of '{name}', which returns {', '.join(keys)}")
                output[at] = _laid_out(output[at], layouts, f"output {key} of '{name}'")
            return output
        found = list(output)
        for key, layouts in texts.items():
            if not key.isdigit() or int(key) >= len(found):
                raise ShardingError(f"the plan lays out output {key} of '{name}', which returns {len(found)} values")
            found[int(key)] = _laid_out(found[int(key)], layouts, f"output {key} of '{name}'")
        return type(output)(*found) if hasattr(output, "_fields") else type(output)(found)

    return hook


def _laid_out(value: Any, layouts: Texts, what: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise ShardingError(f"the plan lays out {what}, which is a {type(value).__name__}; expected a tensor")
    return constrain(value, layouts[value.dim()])
