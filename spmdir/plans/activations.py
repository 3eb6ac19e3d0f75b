"""Constraints on the activations of a model, according to a plan, while it is captured."""

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
from spmdir.plans.module_names import modules_of, values_by_module

Texts = Mapping[int, str]
"""Number of dimensions → the sharding of an activation. It is a table, because Dynamo traces the hooks."""


@contextmanager
def constrained_activations(model: nn.Module, plan: ShardingPlan) -> Iterator[None]:
    """Constrain the inputs and outputs of modules of `model` according to `plan`, within the context.

    `torch.export`, `make_fx` and Dynamo record the constraints. In eager mode, they are identities.

    Raises:
        ShardingError: the plan names a module, or an argument of a module, that does not exist.
    """
    modules = modules_of(model)
    hooks = []
    try:
        for name, activation in values_by_module(plan.activations, modules).items():
            _check_inputs(name, modules[name], activation, plan)
            hooks += _register_hooks(name, modules[name], activation)
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _check_inputs(name: str, module: nn.Module, activation: Activation, plan: ShardingPlan) -> None:
    """Raise ShardingError for an input in `activation` that is not an argument of `module`.

    A module whose forward has `*args` or `**kwargs` accepts any input.
    """
    parameters = inspect.signature(module.forward).parameters
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters.values()):
        return
    for key in activation.inputs:
        is_argument = int(key) < len(parameters) if key.isdigit() else key in parameters
        if not is_argument:
            globs = [glob for glob, value in plan.activations.items() if value is activation]
            place = key_location(globs[0]) if globs else None
            raise ShardingError(
                f"the plan shards input {key} of '{name}', but the arguments of its forward are "
                f"{', '.join(parameters)}; expected the name or position of one of them"
                f"{did_you_mean(key, parameters)}",
                place,
            )


def _register_hooks(name: str, module: nn.Module, activation: Activation) -> Iterator[Any]:
    """Register hooks that constrain the inputs and outputs of a module, and yield their handles."""
    if activation.inputs:
        hook = _input_hook(name, list(inspect.signature(module.forward).parameters), _sharding_texts(activation.inputs))
        yield module.register_forward_pre_hook(hook, with_kwargs=True)
    if activation.outputs:
        yield module.register_forward_hook(_output_hook(name, _sharding_texts(activation.outputs)))


def _sharding_texts(layouts: Mapping[str, Layout]) -> dict[str, Texts]:
    """Return position or name of a value → its sharding for each number of dimensions."""
    return {key: {rank: layout.of_rank(rank) for rank in RANKS} for key, layout in layouts.items()}


def _input_hook(name: str, names: list[str], texts: Mapping[str, Texts]) -> Callable[..., Any]:
    """Return a hook that constrains the inputs of the module `name`.

    Args:
        names: the names of the arguments of its forward, in order. An input may be passed by position or by name.
        texts: position or name of an input → its sharding. An input that a call does not pass is ignored.
    """

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the arguments of a call, with the inputs in `texts` constrained."""
        positional, named = list(args), dict(kwargs)
        for key, layouts in texts.items():
            # Find the position and the keyword of the input: the key is one of them.
            if key.isdigit():
                position = int(key)
                keyword = names[position] if position < len(names) else key
            else:
                position = names.index(key) if key in names else len(positional)
                keyword = key
            if position < len(positional):
                positional[position] = _constrain_tensor(positional[position], layouts, f"input {key} of '{name}'")
            elif named.get(keyword) is not None:
                named[keyword] = _constrain_tensor(named[keyword], layouts, f"input {key} of '{name}'")
        return tuple(positional), named

    return hook


def _output_hook(name: str, texts: Mapping[str, Texts]) -> Callable[..., Any]:
    """Return a hook that constrains the outputs of the module `name`: a tensor, or a dict or sequence of tensors.

    The hook changes a dict in place. It raises ShardingError if the module does not return an output in `texts`.

    Args:
        texts: position of an output, or its key in a dict → its sharding; "0" for a single tensor.
    """

    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Return the output of a call, with the outputs in `texts` constrained; it keeps its type.

        The three cases are one tensor, a dict, and a sequence such as a tuple or a named tuple.
        """
        if isinstance(output, Tensor):
            for key, layouts in texts.items():
                if key != "0":
                    raise ShardingError(
                        f"the plan shards output {key} of '{name}', but the module returns one tensor; "
                        f"expected output 0: write 0 in place of {key}"
                    )
                output = _constrain_tensor(output, layouts, f"the output of '{name}'")
            return output
        if isinstance(output, dict):
            keys = list(output)
            for key, layouts in texts.items():
                output_key = keys[int(key)] if key.isdigit() and int(key) < len(keys) else key
                if output_key not in output:
                    raise ShardingError(
                        f"the plan shards output {key} of '{name}', but the module returns {', '.join(keys)}; "
                        "expected one of these names, or a position"
                    )
                output[output_key] = _constrain_tensor(output[output_key], layouts, f"output {key} of '{name}'")
            return output
        outputs = list(output)
        for key, layouts in texts.items():
            if not key.isdigit() or int(key) >= len(outputs):
                raise ShardingError(
                    f"the plan shards output {key} of '{name}', but the module returns {len(outputs)} values; "
                    f"expected a position below {len(outputs)}"
                )
            outputs[int(key)] = _constrain_tensor(outputs[int(key)], layouts, f"output {key} of '{name}'")
        return type(output)(*outputs) if hasattr(output, "_fields") else type(output)(outputs)

    return hook


def _constrain_tensor(value: Any, layouts: Texts, description: str) -> Tensor:
    """Constrain a tensor to the sharding for its number of dimensions; raise ShardingError for another value."""
    if not isinstance(value, Tensor):
        raise ShardingError(
            f"the plan shards {description} of type {type(value).__name__}; expected a tensor: remove this "
            "entry of the plan"
        )
    return constrain(value, layouts[value.dim()])
