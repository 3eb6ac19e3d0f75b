"""`training_step`: a training step as one function of tensors, for `make_fx`, `import_fx` and `parallelize`."""

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
from spmdir.runtime.dry_run import changed_form_error, is_like
from spmdir.runtime.module_checks import check_initialized
from spmdir.runtime.optimizers import Updates
from spmdir.runtime.traced_locations import record_locations
from spmdir.runtime.watch_step import watch_step
from spmdir.torch_interop import pytree
from spmdir.torch_interop.grouped_products import TracedGroupedProducts
from spmdir.transforms.stages.step_parts import ACCUMULATED, SUMS

TrainingState = dict[str, Any]
"""`parameters`, `buffers` and optimizer states such as `exp_avg`, each by FQN; `lr` and `step` by group."""

_STEP_ENTRIES = ("parameters", "grad_norm", *ACCUMULATED)
"""The entries of the state that do not belong to the optimizer."""

_POSITIVE = Kind(
    lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0, "a number above 0"
).optional
_COUNT = Kind(
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value > 0,
    "a number of micro-batches, 1 or more",
)
_FLOATING = Kind(
    lambda value: isinstance(value, torch.dtype) and value.is_floating_point, "a floating type, such as torch.bfloat16"
).optional


class _Objective(nn.Module):
    """A module that computes the loss and its gradients. `functional_call` replaces the parameters of its model.

    The backward runs inside this module, because checkpointed functions run again in it with the same parameters.
    The module returns the new buffers, because `functional_call` restores the old ones.

    Attributes:
        model: the model.
        loss: computes the loss of the model and a batch.
        micro_batches: the divisor of the loss before the backward, so that gradients add up to a mean.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor], micro_batches: int):
        super().__init__()
        self.model, self.loss, self.micro_batches = model, loss, micro_batches

    def forward(
        self, parameters: list[Tensor], buffers: Mapping[str, Tensor], args: tuple[Any, ...]
    ) -> tuple[Tensor, Sequence[Tensor | None], dict[str, Tensor]]:
        """Return (loss, gradients, name → new value of each buffer).

        The gradients are those of `parameters`, of the loss divided by the number of micro-batches. A parameter that
        the loss does not use has the gradient None.

        Args:
            parameters: the trained parameters; the model uses them.
            buffers: name → value before the forward.
            args: the arguments of the loss after the model.

        Raises:
            UnsupportedError: the loss is not a tensor with one element, or a buffer changes its form.
        """
        with torch.enable_grad(), TracedGroupedProducts(), record_locations(self.model):
            value = self.loss(self.model, *args)
            if not isinstance(value, Tensor) or (value.dim() and value.numel() != 1):
                kind = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise UnsupportedError(
                    f"the loss is {kind}; expected a 0-d tensor: reduce the loss, such as by mean() or sum()"
                )
            share = value / self.micro_batches if self.micro_batches > 1 else value
            if not _is_reentrant(share):
                gradients = torch.autograd.grad(share, parameters, allow_unused=True)
            else:
                share.backward()
                gradients = [parameter.grad for parameter in parameters]
        return value, gradients, {name: self._current_buffer(name, old) for name, old in buffers.items()}

    def _current_buffer(self, name: str, old_buffer: Tensor) -> Tensor:
        """Return the buffer `name` after the forward.

        Raises:
            UnsupportedError: the forward changed its shape or type.
        """
        module_path, _, buffer_name = name.rpartition(".")
        new_buffer = getattr(self.model.get_submodule(module_path), buffer_name)
        if not is_like(new_buffer, old_buffer):
            raise changed_form_error(name, old_buffer, new_buffer)
        return new_buffer.detach() if new_buffer.requires_grad else new_buffer


def _is_reentrant(loss: Tensor) -> bool:
    """Return whether `loss` depends on reentrant checkpointing. Such a loss supports `backward`, but not `grad`."""
    visited, nodes = set(), [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in visited:
            if node.name() == "CheckpointFunctionBackward":
                return True
            visited.add(node)
            nodes += [next_node for next_node, _ in node.next_functions]
    return False


@attrs.frozen(eq=False)
class TrainingStep:
    """A training step of a model as a pure function of its state and a batch. `training_step` returns it.

    Attributes:
        _objective: computes the loss and the gradients.
        _updates: the update of the optimizer.
        _names: id of a parameter of the model → its FQN.
        _gradients: the sharding of the gradients before the update; None if the compiler decides.
        _clip: the largest norm of all gradients together; None for no limit.
        _compute_dtype: the element type of the forward and backward; None for those of the model.
        micro_batches: the number of micro-batches in a batch.
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
        """Return the mean loss of the micro-batches, and the new state."""
        *earlier_batches, last_batch = self.split_batch(args)
        state = {**state, **pytree.tree_map(torch.zeros_like, {key: state[key] for key in SUMS if key in state})}
        for micro_batch in earlier_batches:
            new_state = self.micro_step(state, *micro_batch)[1]
            state = {key: new_state[key] if key in ACCUMULATED else entry for key, entry in state.items()}
        return self.micro_step(state, *last_batch)

    def micro_step(self, state: TrainingState, *args: Any) -> tuple[Tensor, TrainingState]:
        """Return the loss and the state after one micro-batch, with the update by the gradients summed so far.

        After a micro-batch that is not the last, the caller keeps only the entries for which `is_accumulated` is true.
        A step that does not accumulate has one micro-batch.
        """
        loss, gradients, buffers = self._differentiate(state, args)
        new_state: TrainingState = {**state, "buffers": buffers}
        if self.micro_batches > 1:
            new_state["loss"] = state["loss"] + loss / self.micro_batches
            loss = new_state["loss"].to(loss.dtype)
            sums = state["gradients"]
            gradients = {name: sums[name] + gradient for name, gradient in gradients.items()}
            new_state["gradients"] = {**sums, **gradients}
        if self._gradients is not None:
            gradients = {name: constrain(gradient, self._gradients) for name, gradient in gradients.items()}
        if self._clip is not None:
            new_state["grad_norm"] = _total_norm(gradients)
            gradients = _clip_gradients(gradients, new_state["grad_norm"], self._clip)
        optimizer_state = {key: entries for key, entries in state.items() if key not in _STEP_ENTRIES}
        trained = {name: state["parameters"][name] for name in self._updates.trained}
        trained, optimizer_state = self._updates(trained, gradients, optimizer_state)
        return loss, {**new_state, **optimizer_state, "parameters": {**state["parameters"], **trained}}

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self._objective.model

    @property
    def loss(self) -> Callable[..., Tensor]:
        """The loss of the model and a batch."""
        return self._objective.loss

    def split_batch(self, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return the micro-batches of a batch: equal parts of each tensor, along its first dimension.

        Raises:
            UnsupportedError: the number of micro-batches does not divide the first dimension of a tensor.
        """
        if self.micro_batches == 1:
            return [args]
        leaves, spec = pytree.tree_flatten(args)
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] % self.micro_batches:
                raise UnsupportedError(
                    f"argument {index} of the step has shape {list(leaf.shape)}; expected a first dimension that is a "
                    f"multiple of accumulate={self.micro_batches}: change the batch size or accumulate"
                )
        parts_of_leaves = []
        for leaf in leaves:
            is_cut = isinstance(leaf, Tensor) and leaf.dim()
            parts_of_leaves.append(leaf.chunk(self.micro_batches) if is_cut else [leaf] * self.micro_batches)
        return [pytree.tree_unflatten(list(parts), spec) for parts in zip(*parts_of_leaves, strict=True)]

    def is_accumulated(self, name: str) -> bool:
        """Return whether each micro-batch updates the tensor `name` of the state, not only the last one."""
        return name.partition(".")[0] in ACCUMULATED

    def is_sum(self, name: str) -> bool:
        """Return whether the tensor `name` of the state is a sum over micro-batches that starts at 0."""
        return self.micro_batches > 1 and name.partition(".")[0] in SUMS

    def rates(self) -> dict[str, float]:
        """Return name in the state → current learning rate of the optimizer, such as `lr.0` for group 0.

        Raises:
            UnsupportedError: another option of the optimizer has changed since the step was made.
        """
        return self._updates.rates()

    def set_rate(self, name: str, rate: float) -> None:
        """Set a learning rate of the optimizer; `name` is a key of `rates`."""
        self._updates.set_rate(name, rate)

    def _differentiate(self, state: TrainingState, args: tuple[Any, ...]) -> tuple[Tensor, dict[str, Tensor], Any]:
        """Return (loss, FQN → gradient, FQN → buffer after the forward) for one micro-batch.

        `_Objective` divides the gradients by the number of micro-batches. Parameters that the loss does not use have
        no entry.
        """
        parameters = {name: state["parameters"][name].detach().requires_grad_() for name in self._updates.trained}
        buffers = {name: value.clone() for name, value in state["buffers"].items()}
        model_parameters = {**state["parameters"], **parameters}
        with watch_step(self._names), ExitStack() as stack:
            if self._compute_dtype is not None:
                with torch.enable_grad():
                    model_parameters = _cast(model_parameters, self._compute_dtype)
                stack.enter_context(self._cast_inputs(self._compute_dtype))
            tensors = {f"model.{name}": value for name, value in {**model_parameters, **buffers}.items()}
            objective_args = list(parameters.values()), buffers, args
            loss, gradients, buffers = torch.func.functional_call(self._objective, tensors, objective_args)
        gradient_of_name = {
            name: gradient for name, gradient in zip(parameters, gradients, strict=True) if gradient is not None
        }
        return loss.detach(), gradient_of_name, buffers

    def _cast_inputs(self, dtype: torch.dtype) -> Any:
        """Return a context in which the model casts its floating inputs to `dtype`."""
        return self._objective.model.register_forward_pre_hook(
            lambda module, args, kwargs: _cast((args, kwargs), dtype), with_kwargs=True
        )


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    """Return a copy of a pytree in which floating-point tensors have the element type `dtype`."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, tree)


def _total_norm(gradients: Mapping[str, Tensor]) -> Tensor:
    """Return the 2-norm of all gradients from one sum of squares, because ranks then run one all-reduce for all."""
    wide = [gradient.float() if gradient.dtype.itemsize < 4 else gradient for gradient in gradients.values()]
    return torch.stack([gradient.square().sum() for gradient in wide]).sum().sqrt()


def _clip_gradients(gradients: Mapping[str, Tensor], norm: Tensor, max_norm: float) -> dict[str, Tensor]:
    """Return the gradients scaled as `torch.nn.utils.clip_grad_norm_` does."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return {name: gradient * factor.to(gradient.dtype) for name, gradient in gradients.items()}


@accepts(
    model=instance(nn.Module, expected="an nn.Module"),
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
    """Return one training step of `model` as a pure function, and its initial state.

    `step(state, *args) → (loss, new_state)` computes `loss(model, *args)`, the gradients and the update of the
    optimizer. It consists of pure tensor ops, so `make_fx(step)(state, *args)` traces forward, backward and update
    into one graph. `import_fx` names the tensors of the state by their path: `parameters.<FQN>`, `buffers.<FQN>`,
    `exp_avg.<FQN>`, … . A sharding for `<FQN>` applies to the parameter and to its entries in the optimizer state.
    `lr.N` and `step.N` are the learning rate and the number of updates of group N of the optimizer.

    The initial state contains the present state of the optimizer. `parallelize` reads the learning rates from the
    groups of the optimizer at each call, so schedulers work. Other options are constants. The optimizer itself does not
    change.

    Parameters that require no gradient, or that the optimizer does not have, do not change. Functions with activation
    checkpointing run again in the backward, and their random ops return the same values again.

    Args:
        model: the model to train; it does not change.
        loss: (model, *args) → 0-d tensor, such as `lambda model, x, y: (model(x) - y).square().mean()`.
        optimizer: an optimizer of torch.optim with parameters of the model.
        clip_grad_norm: the largest norm of all gradients together, as for torch.nn.utils.clip_grad_norm_. The entry
            `grad_norm` of the state is the norm before clipping.
        accumulate: the number of micro-batches in a batch, which is cut along the first dimension of its tensors. The
            gradients and the loss are means over the micro-batches: `(loss / accumulate).backward()` for each of them.
            Ranks run the same program for each micro-batch.
        compute_dtype: the element type of the forward and backward. Parameters keep their own type.
        gradients: the sharding of the gradients before the update, such as a placement that compresses them; if None,
            the compiler decides.

    Raises:
        UnsupportedError: the optimizer cannot be traced, has parameters of another model, or has nothing to train. The
            trace of a step raises it if the loss uses a parameter that is not from its argument `model`.

    Example:
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        >>> step, state = spmdir.training_step(model, lambda model, x, y: (model(x) - y).square().mean(), optimizer)
        >>> parallel = spmdir.parallelize(step, mesh, {"up.weight": "tp: S(0)"}, (x, y), state=state)
        >>> loss = parallel(x, y)
    """
    check_initialized(model)
    updates = Updates.of(optimizer, model)
    names = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    state: TrainingState = {
        "parameters": parameters,
        "buffers": {name: buffer.detach() for name, buffer in model.named_buffers()},
        **updates.initial(parameters),
    }
    if clip_grad_norm is not None:
        norm_type = torch.promote_types(torch.float32, parameters[updates.trained[0]].dtype)
        state["grad_norm"] = torch.zeros((), dtype=norm_type)
    if accumulate > 1:
        state["gradients"] = {name: torch.zeros_like(parameters[name]) for name in updates.trained}
        state["loss"] = torch.zeros((), dtype=torch.float64)
    objective = _Objective(model, loss, accumulate)
    return TrainingStep(objective, updates, names, gradients, clip_grad_norm, compute_dtype, accumulate), state
