"""A training step as one function of tensors: what `make_fx` traces and `import_fx` imports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from spmdir.core.arguments import CALLABLE, Kind, accepts, instance
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.sharding import Sharding
from spmdir.importer.constrain import constrain
from spmdir.runtime.module_checks import check_initialized
from spmdir.runtime.optimizers import Updates
from spmdir.runtime.rehearsal import changed_form, is_like
from spmdir.runtime.replay import watch_step
from spmdir.runtime.traced_places import traced_places
from spmdir.torch_interop import pytree

TrainingState = dict[str, Any]
"""`parameters`, `buffers` and what the optimizer keeps, such as `exp_avg`, by FQN; `lr` and `step` by group."""

_SUMS = ("gradients", "loss")
_ACCUMULATED = (*_SUMS, "buffers")
_OF_THE_STEP = ("parameters", "grad_norm", *_ACCUMULATED)
"""What the state has beside what the optimizer keeps."""

_POSITIVE = Kind(
    lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0, "a number above 0"
).optional
_COUNT = Kind(
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value > 0,
    "a number of micro-batches, 1 or more",
)
_FLOATING = Kind(
    lambda value: isinstance(value, torch.dtype) and value.is_floating_point, "a floating type, as torch.bfloat16"
).optional


class _Objective(nn.Module):
    """Loss and gradients as a module around the model, so that `functional_call` can give the model its parameters.

    The gradients are taken inside, for checkpointed functions run again then. So are the buffers, which the forward may
    assign: `functional_call` puts the old ones back.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(
        self, parameters: list[Tensor], buffers: Mapping[str, Tensor], args: tuple[Any, ...]
    ) -> tuple[Tensor, Sequence[Tensor | None], dict[str, Tensor]]:
        with torch.enable_grad(), traced_places(self.model):
            value = self.loss(self.model, *args)
            if not isinstance(value, Tensor) or (value.dim() and value.numel() != 1):
                found = f"of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise UnsupportedError(f"the loss is {found}; expected a 0-d tensor, as of mean() or sum()")
            if not _is_reentrant(value):
                gradients = torch.autograd.grad(value, parameters, allow_unused=True)
            else:
                value.backward()
                gradients = [parameter.grad for parameter in parameters]
        return value, gradients, {name: self._buffer(name, old) for name, old in buffers.items()}

    def _buffer(self, name: str, old: Tensor) -> Tensor:
        """Return the buffer that the model has now."""
        path, _, last = name.rpartition(".")
        new = getattr(self.model.get_submodule(path), last)
        if not is_like(new, old):
            raise changed_form(name, old, new)
        return new.detach() if new.requires_grad else new


def _is_reentrant(value: Tensor) -> bool:
    """Return whether reentrant checkpointing is part of how `value` was made, which only `backward` differentiates."""
    found, nodes = set(), [value.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in found:
            if node.name() == "CheckpointFunctionBackward":
                return True
            found.add(node)
            nodes += [other for other, _ in node.next_functions]
    return False


@attrs.frozen(eq=False)
class TrainingStep:
    """A training step of a model as a pure function of its state and a batch, as `training_step` makes it.

    Attributes:
        micro_batches: into how many parts a batch is cut.
    """

    _objective: _Objective
    _updates: Updates
    _names: Mapping[int, str]
    _gradients: str | Sharding | Mapping[str, object] | None
    _clip: float | None
    _compute_dtype: torch.dtype | None
    micro_batches: int

    def __repr__(self) -> str:
        return f"<TrainingStep of {type(self.model).__name__}: micro_batches={self.micro_batches}>"

    def __call__(self, state: TrainingState, *args: Any) -> tuple[Tensor, TrainingState]:
        """Return the loss, the mean over micro-batches, and the new state."""
        *others, last = self.cut(args)
        state = {**state, **pytree.tree_map(torch.zeros_like, {key: state[key] for key in _SUMS if key in state})}
        for micro in others:
            new = self.micro_step(state, *micro)[1]
            state = {key: new[key] if key in _ACCUMULATED else entry for key, entry in state.items()}
        return self.micro_step(state, *last)

    def micro_step(self, state: TrainingState, *args: Any) -> tuple[Tensor, TrainingState]:
        """Return the loss and the state after a micro-batch and the update by what has been added up with it.

        Of all micro-batches but the last only what `is_accumulated` counts. There is one for a step that does not
        accumulate.
        """
        value, gradients, buffers = self._differentiated(state, args)
        new: TrainingState = {**state, "buffers": buffers}
        if self.micro_batches > 1:
            new["loss"] = state["loss"] + value / self.micro_batches
            value = new["loss"].to(value.dtype)
            gradients = {n: state["gradients"][n] + found / self.micro_batches for n, found in gradients.items()}
            new["gradients"] = {**state["gradients"], **gradients}
        if self._gradients is not None:
            gradients = {name: constrain(gradient, self._gradients) for name, gradient in gradients.items()}
        if self._clip is not None:
            new["grad_norm"] = _total_norm(gradients)
            gradients = _clipped(gradients, new["grad_norm"], self._clip)
        kept = {key: entries for key, entries in state.items() if key not in _OF_THE_STEP}
        trained = {name: state["parameters"][name] for name in self._updates.trained}
        trained, kept = self._updates(trained, gradients, kept)
        return value, {**new, **kept, "parameters": {**state["parameters"], **trained}}

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self._objective.model

    @property
    def loss(self) -> Callable[..., Tensor]:
        """The loss of the model and a batch."""
        return self._objective.loss

    def cut(self, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return the micro-batches of a batch: equal parts of each tensor, along its first dimension.

        Raises:
            UnsupportedError: it cannot be cut so.
        """
        if self.micro_batches == 1:
            return [args]
        leaves, spec = pytree.tree_flatten(args)
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] % self.micro_batches:
                raise UnsupportedError(
                    f"argument {place} of the step has shape {list(leaf.shape)}; expected a first dimension that "
                    f"accumulate={self.micro_batches} divides"
                )
        parts = [
            leaf.chunk(self.micro_batches) if isinstance(leaf, Tensor) and leaf.dim() else [leaf] * self.micro_batches
            for leaf in leaves
        ]
        return [pytree.tree_unflatten(list(part), spec) for part in zip(*parts, strict=True)]

    def is_accumulated(self, name: str) -> bool:
        """Return whether each micro-batch renews the tensor `name` of the state, not only the last one."""
        return name.partition(".")[0] in _ACCUMULATED

    def is_sum(self, name: str) -> bool:
        """Return whether the tensor `name` of the state is a sum over micro-batches, 0 before the first one."""
        return self.micro_batches > 1 and name.partition(".")[0] in _SUMS

    def rates(self) -> dict[str, float]:
        """Return the learning rates that the optimizer has, by the names of the state's tensors for them.

        Raises:
            UnsupportedError: another option of the optimizer is not what it was when the step was made.
        """
        return self._updates.rates()

    def set_rate(self, name: str, rate: float) -> None:
        """Give the optimizer a learning rate, by the name of the state's tensor for it."""
        self._updates.set_rate(name, rate)

    def _differentiated(self, state: TrainingState, args: tuple[Any, ...]) -> tuple[Tensor, dict[str, Tensor], Any]:
        """Return the loss, the gradients that there are, and the buffers after that."""
        parameters = {name: state["parameters"][name].detach().requires_grad_() for name in self._updates.trained}
        buffers = {name: value.clone() for name, value in state["buffers"].items()}
        held = {**state["parameters"], **parameters}
        with watch_step(self._names), ExitStack() as stack:
            if self._compute_dtype is not None:
                with torch.enable_grad():
                    held = _cast(held, self._compute_dtype)
                stack.enter_context(self._cast_inputs(self._compute_dtype))
            held = {f"model.{name}": value for name, value in {**held, **buffers}.items()}
            objective = list(parameters.values()), buffers, args
            value, found, buffers = torch.func.functional_call(self._objective, held, objective)
        gradients = {name: found for name, found in zip(parameters, found, strict=True) if found is not None}
        return value.detach(), gradients, buffers

    def _cast_inputs(self, dtype: torch.dtype) -> Any:
        """Return the context in which the model gets its floating inputs as `dtype`."""
        return self._objective.model.register_forward_pre_hook(
            lambda module, args, kwargs: _cast((args, kwargs), dtype), with_kwargs=True
        )


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map_only(Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, tree)


def _total_norm(gradients: Mapping[str, Tensor]) -> Tensor:
    """Return the 2-norm of all gradients, by one sum of squares: ranks add it up once, not once a gradient."""
    squares = [gradient.float() if gradient.dtype.itemsize < 4 else gradient for gradient in gradients.values()]
    return torch.stack([gradient.square().sum() for gradient in squares]).sum().sqrt()


def _clipped(gradients: Mapping[str, Tensor], norm: Tensor, most: float) -> dict[str, Tensor]:
    """Return the gradients scaled as `torch.nn.utils.clip_grad_norm_` does."""
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    return {name: gradient * factor.to(gradient.dtype) for name, gradient in gradients.items()}


@accepts(
    model=instance(nn.Module, expected="a nn.Module"),
    loss=CALLABLE,
    optimizer=instance(
        torch.optim.Optimizer, expected="an optimizer of torch.optim, as torch.optim.AdamW(model.parameters(), lr=1e-3)"
    ),
    clip_grad_norm=_POSITIVE,
    accumulate=_COUNT,
    compute_dtype=_FLOATING,
)
def training_step(
    model: nn.Module,
    loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    compute_dtype: torch.dtype | None = None,
    gradients: str | Sharding | Mapping[str, object] | None = None,
) -> tuple[TrainingStep, TrainingState]:
    """Return one training step of `model` as a pure function, and the state it begins with.

    `step(state, *args) → (loss, new_state)` computes `loss(model, *args)`, its gradients and the optimizer's
    update. It is made of pure tensor ops, so `make_fx(step)(state, *args)` traces forward, backward and update
    into one graph. `import_fx` names the state's tensors by their path: `parameters.<FQN>`, `buffers.<FQN>`,
    `exp_avg.<FQN>`, … ; a sharding given for `<FQN>` holds for the parameter and what the optimizer keeps for it.
    `lr.N` and `step.N` are the learning rate and the count of updates of the optimizer's group N.

    The update is that of the optimizer with its groups. What it has kept so far is what the state begins with.
    `parallelize` reads the learning rates from its groups at each call, so schedulers work; other options are
    constants. Nothing else of the optimizer changes.

    Parameters that require no gradient, or that the optimizer has not, stay as they are. Functions under activation
    checkpointing run again for the gradients, and their random ops give again what they gave.

    Args:
        model: whose parameters are trained; it is not changed.
        loss: (model, *args) → 0-d tensor, e.g. `lambda model, x, y: (model(x) - y).square().mean()`.
        optimizer: one of torch.optim, made with parameters of the model.
        clip_grad_norm: how long all gradients of the optimizer's parameters together may be, as for
            torch.nn.utils.clip_grad_norm_; the state's `grad_norm` is how long they were.
        accumulate: into how many micro-batches a batch is cut, along the first dimension of its tensors. The gradients
            are their mean, and so is the loss. Ranks run one program for each of them, which does not grow with it.
        compute_dtype: in which type model and gradients are computed, from parameters that stay in their own.
        gradients: how each gradient is laid out before it is used, such as by a placement that sends less of it; if
            None the compiler decides.

    Raises:
        UnsupportedError: an optimizer that cannot be traced, with parameters of another model, or with nothing to
            train. The trace of a step raises it where the loss uses a parameter that it did not get from its model.

    Example:
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        >>> step, state = spmdir.training_step(model, lambda model, x, y: (model(x) - y).square().mean(), optimizer)
        >>> parallel = spmdir.parallelize(step, mesh, {"up.weight": "tp: S(0)"}, (x, y), state=state)
        >>> loss = parallel(x, y)
    """
    check_initialized(model)
    updates = Updates.of(optimizer, model)
    names = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    state: TrainingState = {
        "parameters": parameters,
        "buffers": {name: b.detach() for name, b in model.named_buffers()},
        **updates.initial(parameters),
    }
    if clip_grad_norm is not None:
        wide = torch.promote_types(torch.float32, parameters[updates.trained[0]].dtype)
        state["grad_norm"] = torch.zeros((), dtype=wide)
    if accumulate > 1:
        state["gradients"] = {name: torch.zeros_like(parameters[name]) for name in updates.trained}
        state["loss"] = torch.zeros((), dtype=torch.float64)
    objective = _Objective(model, loss)
    return TrainingStep(objective, updates, names, gradients, clip_grad_norm, compute_dtype, accumulate), state
