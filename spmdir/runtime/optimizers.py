"""The update of a torch.optim optimizer as a function of tensors, and its initial state.

The code of the optimizer runs on a replica with the parameters and the state of the caller. So the optimizer itself
does not change, and every formula can be traced. In the replica, the learning rate and the counts of steps are 0-d
tensors of float64, the precision of Python numbers.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any, Literal

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from spmdir.core.errors import UnsupportedError, shown
from spmdir.torch_interop.dispatch import dispatch_functionalize
from spmdir.torch_interop.modules import INIT_GROUP, compiling_flag, has_step_hooks, note_step

Tensors = dict[str, Tensor]
OptimizerState = dict[str, Tensors]
"""Name of an entry, such as `exp_avg` → FQN of a parameter, or index of a group whose parameters share it → tensor."""

_SHARED = ("step", "mu_product", "eta", "mu")
"""Entries that optimizers keep for each parameter although they depend only on the number of updates."""

_TRACEABLE = {"capturable": True, "foreach": False, "fused": False, "differentiable": False}
"""Options that select the form of an update that runs ops on single tensors and reads no value of a tensor."""

_UNSUPPORTED = {
    torch.optim.LBFGS: "the number of times that it evaluates the loss depends on values",
    torch.optim.SparseAdam: "it requires sparse gradients",
}


@attrs.frozen(eq=False)
class Updates:
    """The update of an optimizer, for the parameters of a model.

    Attributes:
        optimizer: the optimizer. Only `set_rate` changes it.
        groups: index of a group → the FQNs of its parameters that require a gradient. Groups without any are left out.
        options: index of a group → its options when this object was made; they are constants of a trace.
    """

    optimizer: Optimizer
    groups: Mapping[str, tuple[str, ...]]
    options: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, optimizer: Optimizer, model: nn.Module) -> Updates:
        """Return the updates of `model` by `optimizer`.

        Raises:
            UnsupportedError: an optimizer that cannot be traced, with parameters of another model, or with nothing to
                train.
        """
        _check_optimizer(optimizer)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        groups, options = {}, {}
        for index, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if id(parameter) not in names:
                    raise UnsupportedError(
                        f"parameter {position} of group {index} of the optimizer, of shape "
                        f"{list(parameter.shape)}, is not a parameter of the model; expected parameters of "
                        "the model: make the optimizer with model.parameters()"
                    )
            trained = tuple(names[id(parameter)] for parameter in group["params"] if parameter.requires_grad)
            if trained:
                groups[str(index)] = trained
                options[str(index)] = {key: copy.copy(group[key]) for key in _options(group)}
        if not groups:
            raise UnsupportedError(
                "no parameter of the optimizer requires a gradient; expected at least one: set "
                "requires_grad of the parameters to train"
            )
        return cls(optimizer, groups, options)

    @property
    def trained(self) -> list[str]:
        """The FQNs of the parameters that the optimizer updates."""
        return [name for names in self.groups.values() for name in names]

    def rates(self) -> dict[str, float]:
        """Return the learning rates of the groups, by their names in the state: `lr.0` is that of group 0.

        Raises:
            UnsupportedError: another option of a group has changed since this object was made.
        """
        rates = {}
        note_step(self.optimizer)
        for index, options in self.options.items():
            group = self.optimizer.param_groups[int(index)]
            for key, value in options.items():
                if group[key] != value:
                    raise UnsupportedError(
                        f"group {index} of the optimizer has {key} = {shown(group[key])}; the step was made "
                        f"with {shown(value)} and keeps all options but lr; expected an equal value: change "
                        "it back, or make another step"
                    )
            if "lr" in group:
                rates[f"lr.{index}"] = float(group["lr"])
        return rates

    def set_rate(self, name: str, rate: float) -> None:
        """Set the learning rate of a group; `name` is a key of `rates`."""
        group = self.optimizer.param_groups[int(name.removeprefix("lr."))]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

    def initial(self, parameters: Mapping[str, Tensor]) -> OptimizerState:
        """Return the state that a step starts from: the learning rates, and the state of the optimizer.

        Without a present state, this is the state that the first update would create.

        Args:
            parameters: FQN → tensor.

        Raises:
            UnsupportedError: the initial state of the optimizer is unknown, or has values that are not tensors.
        """
        initial_state: OptimizerState = {"lr": {}}
        for index, names in self.groups.items():
            device = _device(parameters[names[0]])
            group = self.optimizer.param_groups[int(index)]
            if "lr" in group:
                initial_state["lr"][index] = torch.tensor(float(group["lr"]), dtype=torch.float64, device=device)
            trained = [parameter for parameter in group["params"] if parameter.requires_grad]
            tensors_of_entry: dict[str, Tensors] = {}
            for name, parameter in zip(names, trained, strict=True):
                for key, entry in self._initial_entries(parameters[name], parameter, group).items():
                    tensors_of_entry.setdefault(key, {})[name] = entry
            for key, tensors in tensors_of_entry.items():
                shared = _shared_count(key, tensors)
                if shared is not None:
                    tensors = {index: shared.to(device=device, dtype=torch.float64)}
                initial_state.setdefault(key, {}).update(tensors)
        return initial_state

    def _initial_entries(self, value: Tensor, parameter: Tensor, group: Mapping[str, Any]) -> Tensors:
        """Return the entries of one parameter before the next update.

        SGD creates its momentum buffer only in its first update. Here it is zeros, which gives the same first update.

        Args:
            value: the tensor of the parameter in the step.
            parameter: the parameter of the optimizer.
            group: its group.

        Raises:
            UnsupportedError: an entry is not a tensor, or SGD has dampening and no state.
        """
        entries = self.optimizer.state.get(parameter) or self._entries_of_first_update(value, group)
        for key, entry in entries.items():
            if entry is not None and not isinstance(entry, Tensor):
                raise UnsupportedError(
                    f"{_class_name(self.optimizer)} keeps {key} = {shown(entry)}; expected tensors in its state, since "
                    "a traced step would treat a number as a constant"
                )
        tensors = {key: entry.detach() for key, entry in entries.items() if entry is not None}
        if isinstance(self.optimizer, torch.optim.SGD) and group["momentum"] and not tensors:
            if group["dampening"]:
                raise UnsupportedError(
                    f"SGD has dampening = {group['dampening']}, and its first update differs from the later ones; "
                    "expected dampening = 0, or an optimizer with a loaded state"
                )
            tensors = {"momentum_buffer": torch.zeros_like(value)}
        return tensors

    def _entries_of_first_update(self, value: Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries that `_init_group` of the optimizer creates for a parameter with this value.

        The step of a replica runs until it has called `_init_group`. The optimizer itself does not change.

        Raises:
            UnsupportedError: the optimizer has no `_init_group`, or creates its state elsewhere.
        """
        init_group = getattr(type(self.optimizer), INIT_GROUP, None)
        if init_group is None:
            raise UnsupportedError(
                f"{_class_name(self.optimizer)} has no state, and no _init_group that creates it; expected "
                "an initial state: load a state, or derive the optimizer from one of torch.optim"
            )
        parameter = value.detach().clone().requires_grad_()  # a step may update it before it calls _init_group
        # A gradient of zeros that has the memory of one element.
        parameter.grad = torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape)
        single_tensor_options = {key: False for key in ("foreach", "fused") if key in group}
        replica = self._replica([{**group, **single_tensor_options, "params": [parameter]}], {})

        def init_and_stop(*args: Any, **kwargs: Any) -> None:
            """Create the state, then end the step before it computes an update."""
            init_group(replica, *args, **kwargs)
            raise _StateCreated

        setattr(replica, INIT_GROUP, init_and_stop)
        with suppress(_StateCreated), torch.no_grad():
            inspect.unwrap(type(replica).step)(replica)  # type: ignore
            if replica.state[parameter]:
                raise UnsupportedError(
                    f"{_class_name(self.optimizer)}.step does not call _init_group to create its state, so "
                    "its initial state is unknown; expected a known one: load a state, or create the state "
                    "in _init_group"
                )
        return replica.state[parameter]

    def _replica(self, groups: list[dict[str, Any]], state: Mapping[Tensor, dict[str, Any]]) -> Optimizer:
        """Return an optimizer of the same class and attributes, with other parameters and state."""
        replica = object.__new__(type(self.optimizer))
        vars(replica).update(vars(self.optimizer), param_groups=groups, state=defaultdict(dict, state))
        return replica

    @torch.no_grad()
    def __call__(
        self, parameters: Tensors, gradients: Mapping[str, Tensor], state: OptimizerState
    ) -> tuple[Tensors, OptimizerState]:
        """Return (new parameters, new state) for these gradients; parameters without a gradient do not change."""
        return dispatch_functionalize(self._update)(parameters, dict(gradients), state)

    def _update(self, parameters: Tensors, gradients: Tensors, state: OptimizerState) -> tuple[Tensors, OptimizerState]:
        """Run one step of a replica of the optimizer, and return the new parameters and state.

        The step writes to the tensors of `parameters` and `state` in place. `__call__` functionalizes these writes, so
        the caller's tensors do not change.
        """
        new_parameters, new_state = dict(parameters), {key: dict(entries) for key, entries in state.items()}
        groups, states = [], {}
        for index, names in self.groups.items():
            updated_names = [name for name in names if name in gradients]
            for name in updated_names:
                new_parameters[name].grad = gradients[name]
                # The replica counts the steps of each parameter, so each gets a copy of the count of its group.
                states[new_parameters[name]] = {
                    key: entry.clone() if owner == index else entry
                    for key, entry, owner in _entries_of_parameter(state, name, index)
                }
            group = self.optimizer.param_groups[int(index)]
            group_options = {**self.options[index], "params": [new_parameters[name] for name in updated_names]}
            group_options |= {key: value for key, value in _TRACEABLE.items() if key in group}
            groups.append(group_options | ({"lr": state["lr"][index]} if index in state["lr"] else {}))
        replica = self._replica(groups, states)
        step: Any = inspect.unwrap(type(replica).step)  # without the hooks and the profiling of torch
        with _numbers_are_tensors():
            _with_limits(step)(replica)
        for index, names in self.groups.items():
            for name in filter(gradients.__contains__, names):
                for key, _, owner in _entries_of_parameter(state, name, index):
                    new_state[key][owner] = replica.state[new_parameters[name]][key]
        return new_parameters, new_state


class _StateCreated(Exception):
    """Raised to stop a step after the optimizer has created its initial state."""


class _NumbersAreTensors(TorchFunctionMode):
    """Lets an optimizer compute with 0-d tensors where it reads numbers from tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch with 0-d tensors where torch expects Python numbers.

        `step.item()` returns the tensor `step`, so the number of steps is not a constant of the trace.
        """
        kwargs = dict(kwargs or {})
        if func is Tensor.item:
            return args[0]  # the 0-d tensor replaces the number
        if func is Tensor.square_:  # functionalize does not support it
            return args[0].mul_(args[0])
        factor = next((key for key in ("alpha", "value") if isinstance(kwargs.get(key), Tensor)), None)
        if factor:
            # torch accepts only numbers here. `x.add(y, alpha=f)` becomes `x.add(y * f)`.
            x, operand, *remaining = args
            operand = operand.to(torch.result_type(x, operand)) * kwargs.pop(factor)
            args = (x, operand, *remaining)
        return func(*args, **kwargs)


@contextmanager
def _numbers_are_tensors() -> Iterator[None]:
    """Let optimizers compute with 0-d tensors where they read numbers from tensors."""
    with compiling_flag(), _NumbersAreTensors():
        yield


def _with_limits(step: FunctionType) -> Callable[..., Any]:
    """Return a copy of `step` whose `max` and `min` accept 0-d tensors, also in functions of its file that it calls.

    Python's `max` and `min` need the truth value of a comparison, but a trace has no values.
    """
    names_in_step: dict[str, Any] = {**step.__globals__, "max": _limit(max, "min"), "min": _limit(min, "max")}
    for name, value in step.__globals__.items():
        function = inspect.unwrap(value) if inspect.isfunction(value) else None
        if function is not None and function.__globals__ is step.__globals__:
            names_in_step[name] = _copy(function, names_in_step)
    return _copy(step, names_in_step)


def _copy(function: FunctionType, global_names: dict[str, Any]) -> FunctionType:
    """Return a copy of a function with other global names."""
    copied = FunctionType(
        function.__code__, global_names, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _limit(builtin: Callable[..., Any], bound: Literal["min", "max"]) -> Callable[..., Any]:
    """Return a `max` or `min` that also accepts a 0-d tensor and a number.

    `max(tensor, 5)` becomes `clamp(tensor, min=5)`, so `max` has the bound "min".

    Args:
        builtin: Python's `max` or `min`.
        bound: the argument of `clamp` for the number.
    """

    def limit(*values: Any, **options: Any) -> Any:
        """Return the `max` or `min` of the values."""
        if len(values) != 2 or not any(isinstance(value, Tensor) for value in values):
            return builtin(*values, **options)
        number, tensor = sorted(values, key=lambda value: isinstance(value, Tensor))  # False, the number, comes first
        return torch.clamp(tensor, **{bound: number})

    return limit


def _entries_of_parameter(state: OptimizerState, name: str, index: str) -> Iterator[tuple[str, Tensor, str]]:
    """Yield (key, tensor, owner) for each entry of a parameter.

    Args:
        name: the parameter. It is the owner of its moments, such as `exp_avg`.
        index: the index of its group. It is the owner of the counts that all its parameters share, such as `step`.
    """
    for key, entries in state.items():
        owner = name if name in entries else index
        if key != "lr" and owner in entries:
            yield key, entries[owner], owner


def _shared_count(key: str, values: Mapping[str, Tensor]) -> Tensor | None:
    """Return the value of a count that is equal for all parameters of a group; None if it is not shared.

    Args:
        key: the name of the entry, such as `step`.
        values: FQN of a parameter → value of the entry.
    """
    if key not in _SHARED or any(value.is_meta for value in values.values()):
        return None
    first_value, *other_values = values.values()
    return first_value if all(torch.equal(first_value, other_value) for other_value in other_values) else None


def _check_optimizer(optimizer: Optimizer) -> None:
    """Raise UnsupportedError for an optimizer, a hook or an option that cannot be traced."""
    for refused, reason in _UNSUPPORTED.items():
        if isinstance(optimizer, refused):
            raise UnsupportedError(
                f"a training step cannot be made with {_class_name(optimizer)}, since {reason}; expected another "
                "optimizer, such as torch.optim.AdamW"
            )
    if has_step_hooks(optimizer):
        raise UnsupportedError(
            f"{_class_name(optimizer)} has step hooks, which a traced step does not call; expected no "
            "hooks: remove them"
        )
    for index, group in enumerate(optimizer.param_groups):
        for key in _options(group):
            numbers = group[key] if key == "betas" else (group[key],)  # betas are a pair of numbers
            if any(isinstance(number, Tensor) for number in numbers):
                raise UnsupportedError(
                    f"group {index} of the optimizer has {key} = {shown(group[key])}, a tensor; expected "
                    "numbers for all options but lr: pass a number"
                )


def _options(group: Mapping[str, Any]) -> list[str]:
    """Return the names of the options of a group that an update uses, without the learning rate."""
    return [key for key in group if key not in ("params", "lr", "initial_lr", "param_names", "swa_lr")]


def _device(value: Tensor) -> torch.device:
    """Return the device for the state of a parameter: the CPU if the parameter is on the meta device."""
    return torch.device("cpu") if value.is_meta else value.device


def _class_name(optimizer: Optimizer) -> str:
    """Return the name of the class of an optimizer, for errors."""
    return type(optimizer).__name__
