"""The update of a torch.optim optimizer as a function of tensors, and the state that it begins with.

The optimizer's own code runs on a copy of it whose parameters and state are those of the caller, so the optimizer is
not changed and any of its formulas can be traced. The learning rate and counts of steps are 0-d tensors in double
precision there, which is what Python counts in.
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
"""Name of what is kept → parameter's FQN, or the group's index for what all of a group share, → tensor."""

_SHARED = ("step", "mu_product", "eta", "mu")
"""What optimizers keep for each parameter though it depends on the number of updates only."""

_TRACEABLE = {"capturable": True, "foreach": False, "fused": False, "differentiable": False}
"""Options that choose among forms of one update the one made of single tensor ops, without reading a tensor."""

_UNSUPPORTED = {
    torch.optim.LBFGS: "it evaluates the loss as often as the values ask for",
    torch.optim.SparseAdam: "it takes sparse gradients",
}


@attrs.frozen(eq=False)
class Updates:
    """What an optimizer does to the parameters of a model.

    Attributes:
        optimizer: never changed; its learning rates are read by `rates`.
        groups: index of a group → the FQNs of its parameters that require a gradient; without groups that have none.
        options: index of a group → its options when this was made, which a trace keeps.
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
        _check(optimizer)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        groups, options = {}, {}
        for index, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                if id(parameter) not in names:
                    raise UnsupportedError(
                        f"parameter {place} of group {index} of the optimizer, of shape {list(parameter.shape)}, is "
                        "none of the model's; make the optimizer of model.parameters()"
                    )
            trained = tuple(names[id(parameter)] for parameter in group["params"] if parameter.requires_grad)
            if trained:
                groups[str(index)] = trained
                options[str(index)] = {key: copy.copy(group[key]) for key in _options(group)}
        if not groups:
            raise UnsupportedError(
                "no parameter of the optimizer requires a gradient; set requires_grad where it is to learn"
            )
        return cls(optimizer, groups, options)

    @property
    def trained(self) -> list[str]:
        return [name for names in self.groups.values() for name in names]

    def rates(self) -> dict[str, float]:
        """Return what the groups have as their learning rates, by the names that the state has for them.

        Raises:
            UnsupportedError: another option of a group is not what it was when this was made.
        """
        found = {}
        note_step(self.optimizer)
        for index, options in self.options.items():
            group = self.optimizer.param_groups[int(index)]
            for key, value in options.items():
                if group[key] != value:
                    raise UnsupportedError(
                        f"group {index} of the optimizer has {key} = {shown(group[key])}; the step has been made with "
                        f"{shown(value)} and keeps all options but lr: make another step"
                    )
            if "lr" in group:
                found[f"lr.{index}"] = float(group["lr"])
        return found

    def set_rate(self, name: str, rate: float) -> None:
        """Give the group that `name` stands for, as in `rates`, a learning rate."""
        group = self.optimizer.param_groups[int(name.removeprefix("lr."))]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

    def initial(self, parameters: Mapping[str, Tensor]) -> OptimizerState:
        """Return the learning rates and what the optimizer keeps: what it has, or what it makes for its first update.

        Raises:
            UnsupportedError: it is not known what it begins with, or it is not made of tensors.
        """
        found: OptimizerState = {"lr": {}}
        for index, names in self.groups.items():
            device = _device(parameters[names[0]])
            group = self.optimizer.param_groups[int(index)]
            if "lr" in group:
                found["lr"][index] = torch.tensor(float(group["lr"]), dtype=torch.float64, device=device)
            own = [parameter for parameter in group["params"] if parameter.requires_grad]
            states = {n: self._first(parameters[n], p, group) for n, p in zip(names, own, strict=True)}
            for key in dict.fromkeys(key for state in states.values() for key in state):
                values = {name: state[key] for name, state in states.items() if key in state}
                shared = _common(key, values)
                if shared is not None:
                    values = {index: shared.to(device=device, dtype=torch.float64)}
                found.setdefault(key, {}).update(values)
        return found

    def _first(self, value: Tensor, parameter: Tensor, group: Mapping[str, Any]) -> Tensors:
        """Return what is kept for one parameter before the next update."""
        kept = self.optimizer.state.get(parameter) or self._made(value, group)
        for key, entry in kept.items():
            if entry is not None and not isinstance(entry, Tensor):
                raise UnsupportedError(
                    f"{_name(self.optimizer)} keeps {key} = {shown(entry)}; expected tensors in its state, since a "
                    "traced step would keep a number for ever"
                )
        tensors = {key: entry.detach() for key, entry in kept.items() if entry is not None}
        if isinstance(self.optimizer, torch.optim.SGD) and group["momentum"] and not tensors:
            if group["dampening"]:
                raise UnsupportedError(
                    f"SGD has dampening = {group['dampening']}, and its first update is another than those after it; "
                    "expected dampening = 0, or an optimizer whose state has been loaded"
                )
            tensors = {"momentum_buffer": torch.zeros_like(value)}
        return tensors

    def _made(self, value: Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `_init_group` of the optimizer makes of a parameter of that value."""
        begin = getattr(type(self.optimizer), INIT_GROUP, None)
        if begin is None:
            raise UnsupportedError(
                f"{_name(self.optimizer)} has no state, and no _init_group that makes it; load a state, or derive it "
                "from an optimizer of torch.optim"
            )
        parameter = value.detach().requires_grad_()
        parameter.grad = torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape)
        single = {"foreach": False, "fused": False, "params": [parameter]}
        replica = self._replica([{**group, **{key: single[key] for key in single if key in group}}], {})

        def begun(*args: Any, **kwargs: Any) -> None:
            begin(replica, *args, **kwargs)
            raise _Begun

        setattr(replica, INIT_GROUP, begun)
        with suppress(_Begun):
            inspect.unwrap(type(replica).step)(replica)  # type: ignore
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
        """Return the new values of parameters and state; parameters without gradient stay as they are."""
        return dispatch_functionalize(self._update)(parameters, dict(gradients), state)

    def _update(self, parameters: Tensors, gradients: Tensors, state: OptimizerState) -> tuple[Tensors, OptimizerState]:
        new, kept = dict(parameters), {key: dict(entries) for key, entries in state.items()}
        groups, states = [], {}
        for index, names in self.groups.items():
            trained = [name for name in names if name in gradients]
            for name in trained:
                new[name].grad = gradients[name]
                states[new[name]] = {
                    key: entry.clone() if entry_of == index else entry
                    for key, entry, entry_of in _entries(state, name, index)
                }
            group = self.optimizer.param_groups[int(index)]
            own = {**self.options[index], "params": [new[name] for name in trained]}
            own |= {key: value for key, value in _TRACEABLE.items() if key in group}
            groups.append(own | ({"lr": state["lr"][index]} if index in state["lr"] else {}))
        replica = self._replica(groups, states)
        step: Any = inspect.unwrap(type(replica).step)
        with _numbers_are_tensors():
            _with_limits(step)(replica)
        for index, names in self.groups.items():
            for name in names:
                for key, _, place in _entries(state, name, index) if name in gradients else ():
                    kept[key][place] = replica.state[new[name]][key]
        return new, kept


class _Begun(Exception):
    """What an optimizer begins with has been made."""


class _NumbersAreTensors(TorchFunctionMode):
    """Computes with 0-d tensors what an optimizer computes with numbers that it reads from tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.item:
            return args[0]
        if func is Tensor.square_:  # functionalize has no form of it
            return args[0].mul_(args[0])
        factor = next((key for key in ("alpha", "value") if isinstance(kwargs.get(key), Tensor)), None)
        if factor:
            x, first, *others = args
            first = first.to(torch.result_type(x, first)) * kwargs.pop(factor)
            args = (x, first, *others)
        return func(*args, **kwargs)


@contextmanager
def _numbers_are_tensors() -> Iterator[None]:
    """Let optimizers compute with tensors what they compute with numbers."""
    with compiling_flag(), _NumbersAreTensors():
        yield


def _with_limits(step: FunctionType) -> Callable[..., Any]:
    """Return a step that takes `max` and `min` of tensors, and so do the functions of its file that it calls.

    Python's own compare by the truth of a tensor. The file itself is left as it is: these are copies.
    """
    own: dict[str, Any] = {**step.__globals__, "max": _limit(max, "min"), "min": _limit(min, "max")}
    for name, one in step.__globals__.items():
        plain = inspect.unwrap(one) if inspect.isfunction(one) else None
        if plain is not None and plain.__globals__ is step.__globals__:
            own[name] = _copy(plain, own)
    return _copy(step, own)


def _copy(function: FunctionType, own: dict[str, Any]) -> FunctionType:
    """Return a function with other global names."""
    made = FunctionType(function.__code__, own, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _limit(builtin: Callable[..., Any], bound: Literal["min", "max"]) -> Callable[..., Any]:
    """Return what `max` or `min` is where one of two numbers may be a tensor; `bound` is what clamp calls the other."""

    def limit(*given: Any, **options: Any) -> Any:
        if len(given) != 2 or not any(isinstance(one, Tensor) for one in given):
            return builtin(*given, **options)
        other, tensor = sorted(given, key=lambda one: isinstance(one, Tensor))
        return torch.clamp(tensor, **{bound: other})

    return limit


def _entries(state: OptimizerState, name: str, index: str) -> Iterator[tuple[str, Tensor, str]]:
    """Yield (key, tensor, its place under the key) of what is kept for a parameter of a group."""
    for key, entries in state.items():
        place = name if name in entries else index
        if key != "lr" and place in entries:
            yield key, entries[place], place


def _common(key: str, values: Mapping[str, Tensor]) -> Tensor | None:
    """Return the value of a count that is the same for all parameters of a group."""
    first, *others = values.values()
    alike = key in _SHARED and not any(value.is_meta for value in values.values())
    return first if alike and all(torch.equal(first, other) for other in others) else None


def _check(optimizer: Optimizer) -> None:
    for refused, reason in _UNSUPPORTED.items():
        if isinstance(optimizer, refused):
            raise UnsupportedError(
                f"a training step cannot be made with {_name(optimizer)}, since {reason}; expected another optimizer, "
                "such as torch.optim.AdamW"
            )
    if has_step_hooks(optimizer):
        raise UnsupportedError(
            f"{_name(optimizer)} has hooks of its step, which a traced step does not call; remove them"
        )
    for index, group in enumerate(optimizer.param_groups):
        for key in _options(group):
            if any(isinstance(value, Tensor) for value in (group[key] if key == "betas" else (group[key],))):
                raise UnsupportedError(
                    f"group {index} of the optimizer has {key} = {shown(group[key])}, a tensor; expected numbers for "
                    "all options but lr"
                )


def _options(group: Mapping[str, Any]) -> list[str]:
    """Return the names of the options of a group that an update is made with."""
    return [key for key in group if key not in ("params", "lr", "initial_lr", "param_names", "swa_lr")]


def _device(value: Tensor) -> torch.device:
    return torch.device("cpu") if value.is_meta else value.device


def _name(optimizer: Optimizer) -> str:
    return type(optimizer).__name__
