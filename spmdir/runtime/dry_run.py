"""Run a forward twice on fake tensors before it is traced, and record the Python state that it reads and changes.

A trace runs the Python code once, and its program repeats the recorded ops. So the program is right only if a second
run of the code has the same ops. A dry run checks this. For example, a table that the first run builds and the second
run reads is accepted, because both runs have the same ops on data. A counter that each run increments is an error.

*Data* are the tensors of a call, the parameters, and all tensors that share memory with them or are computed from them.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from spmdir.core.errors import UnsupportedError
from spmdir.core.progress import say
from spmdir.importer.running_statistics import written_leaves
from spmdir.runtime.executed_code import ExecutedCode, pause_recording, record_again, record_code
from spmdir.runtime.guards import Guards
from spmdir.runtime.model_copies import fake, fake_copy
from spmdir.runtime.op_record import OpRecord
from spmdir.runtime.output_trees import PLAIN
from spmdir.runtime.result_caches import Caches
from spmdir.runtime.state_walk import StateWalk
from spmdir.torch_interop import pytree
from spmdir.torch_interop.dispatch import TorchDispatchMode
from spmdir.torch_interop.fake_tensors import FakeTensor, FakeTensorMode
from spmdir.torch_interop.grouped_products import TracedGroupedProducts
from spmdir.torch_interop.joint_export import compiling
from spmdir.torch_interop.ops import OpOverload
from spmdir.torch_interop.schemas import is_random
from spmdir.torch_interop.tensors import has_storage, storage_key


@attrs.frozen(eq=False)
class DryRun:
    """The result of a dry run: the code that a forward executes, and the state that it reads and assigns.

    Attributes:
        code: the executed code.
        assigned: the names of the buffers that the forward replaces by other tensors, as by `self.buffer = x`.
        caches: caches of results for later calls. A trace must remove its fake tensors from them at its end.
        facts: path of a value that the forward can read → its text, as `Guards.facts`.
        output: the output of a module on fake tensors; None if the forward raises, and for functions.
        ops: the ops, if they were recorded.
    """

    code: ExecutedCode
    assigned: tuple[str, ...]
    caches: Caches
    facts: Mapping[str, str]
    output: Any = None
    ops: OpRecord | None = None


def perform_dry_run(
    roots: Mapping[str, Any],
    model: nn.Module | None,
    run: Callable[[], Any],
    data: Callable[[], list[Tensor]],
    *,
    record: OpRecord | None = None,
    is_repeated: bool = True,
) -> DryRun:
    """Run a forward twice on fake tensors, and raise an error unless both runs execute the same ops on equal state.

    A backward that runs Python, such as a hook, is part of each run. If the second run executes code that the first did
    not, a third run follows, and so on, until a run executes no new code: only then all state that the code can read
    has been compared. A forward that raises an exception is accepted here: the trace raises the same exception.

    Args:
        roots: name → an object that the forward starts from, with fake tensors. The run may change the object.
        model: the root whose buffers are state; None if there is none.
        run: runs the forward, and returns its output.
        data: returns the tensors of a call and the parameters. Ops on them are compared between runs.
        record: records the ops of the first run; None to record nothing.
        is_repeated: whether to run more than once. False if another process with an equal first run does this.

    Raises:
        UnsupportedError: the forward changes Python state, assigns a parameter, registers a buffer, or reads state that
            cannot be compared.
    """
    buffers, parameters = _buffers_and_parameters(model)
    code = ExecutedCode()
    ops, is_finished = _run(run, data(), code, record)  # the ops on data of the last run
    assigned = _find_assigned(model, buffers, parameters)
    code_size, walk = code.size, StateWalk(code, roots)
    guards = Guards.of(walk, code, roots)
    facts, is_complete = guards.facts, not is_repeated
    try:
        while not is_complete:
            earlier_ops, was_earlier_finished = ops, is_finished
            ops, is_finished = _run(run, data(), code)
            # The guards compare the state after this run with the state after the earlier run.
            change = guards.find_change(*roots.values())
            if change is not None:
                raise _state_change_error(change)
            if is_finished and was_earlier_finished and ops != earlier_ops:
                raise UnsupportedError(
                    "the second call of the forward runs other ops, so the forward changes Python state "
                    "and depends on it; expected the same ops in each call: keep that state in buffers, or "
                    "set it before the model is traced"
                )
            is_complete = code.size == code_size
            if not is_complete:
                code_size, walk = code.size, StateWalk(code, roots)
                guards = Guards.of(walk, code, roots)
    finally:
        caches = Caches.of(walk)
        if is_repeated:
            caches.remove_fakes()
    return DryRun(code, assigned, caches, facts, ops=record)


def dry_run_module(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    device: torch.device | None = None,
    *,
    is_recorded: bool = False,
    is_repeated: bool = True,
) -> DryRun:
    """Run the forward of a copy of a module on fake tensors; see `perform_dry_run`. The module does not change.

    Args:
        device: the device of the fake tensors; None to keep the device of each tensor.
        is_recorded: whether to record the ops.
        is_repeated: as for `perform_dry_run`.

    Raises:
        UnsupportedError: as `perform_dry_run`.
    """
    say("running {} on fake tensors", type(model).__name__)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model_copy = fake_copy(model, mode, device)
    args, kwargs = pytree.tree_map_only(Tensor, lambda tensor: fake(tensor, mode, device), (args, dict(kwargs)))
    inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]

    outputs: list[Any] = [None]  # the output of the last run
    buffers, parameters = _buffers_and_parameters(model_copy)
    tensor_of_name = {**parameters, **buffers, **{f"input {index}": tensor for index, tensor in enumerate(inputs)}}
    record = OpRecord(tensor_of_name) if is_recorded else None

    def run() -> Any:
        """Run the forward once, and keep its output."""
        with mode, TracedGroupedProducts():
            outputs[:] = [model_copy(*args, **kwargs)]
        return outputs[0]

    def data() -> list[Tensor]:
        return [*inputs, *model_copy.parameters()]

    with _name_object_argument(model_copy, args, kwargs):
        dry_run = perform_dry_run({"model": model_copy}, model_copy, run, data, record=record, is_repeated=is_repeated)
    return attrs.evolve(dry_run, output=outputs[0])


@contextmanager
def _name_object_argument(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """If the body raises an UnsupportedError, name in it the argument that contains an object, if there is one.

    The forward may change such an object, which is the likely cause of the error.
    """
    try:
        yield
    except UnsupportedError as error:
        arguments = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
        for name, value in arguments.items():
            for leaf in pytree.tree_leaves(value):
                if not isinstance(leaf, PLAIN):
                    raise UnsupportedError(
                        f"the argument '{name}' contains a {type(leaf).__name__}; expected tensors and plain values, "
                        "because a program cannot change other objects: omit it; for a cache of transformers, pass "
                        f"use_cache=False ({error.message})",
                        error.location,
                    ) from error
        raise


def dry_run_step(step: Callable[..., Any], state: Any, args: tuple[Any, ...], device: torch.device) -> DryRun:
    """Run a function `step(state, *args)` on fake tensors of `device`; see `perform_dry_run`.

    Raises:
        UnsupportedError: as `perform_dry_run`.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    state, args = pytree.tree_map_only(Tensor, lambda tensor: fake(tensor, mode, device), (state, args))
    data = [leaf for leaf in pytree.tree_leaves((state, args)) if isinstance(leaf, Tensor)]

    def run() -> Any:
        with mode, TracedGroupedProducts():  # the map copies containers, which the step may change
            return step(*pytree.tree_map(lambda leaf: leaf, (state, *args)))

    return perform_dry_run({"step": step}, None, run, lambda: data)


def dry_run_loss(model: nn.Module, loss: Callable[..., Any], args: tuple[Any, ...], device: torch.device) -> DryRun:
    """Run `loss(model, *args)` on a copy of the model with fake tensors of `device`; see `perform_dry_run`.

    Raises:
        UnsupportedError: as `perform_dry_run`.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model_copy = fake_copy(model, mode, device)
    args = pytree.tree_map_only(Tensor, lambda tensor: fake(tensor, mode, device), args)
    inputs = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]

    def run() -> Any:
        with mode, torch.enable_grad(), TracedGroupedProducts():
            return loss(model_copy, *args)

    return perform_dry_run(
        {"model": model_copy, "loss": loss}, model_copy, run, lambda: [*inputs, *model_copy.parameters()]
    )


@contextmanager
def write_assignments(model: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Turn assignments to buffers in the forward of `model` into in-place writes, which tracers record.

    Within the context, a hook before the forward replaces each buffer by a clone. A hook after it copies the assigned
    tensor into the original buffer, and restores the original.

    Args:
        names: the names of the buffers that the forward assigns.
    """
    if not names:
        yield
        return
    owners_and_names = [(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names]
    old_values: list[Tensor] = []

    def assign_clones(*_: Any) -> None:
        """Before the forward: remember the buffers, and replace them by clones."""
        old_values[:] = [getattr(owner, buffer_name) for owner, buffer_name in owners_and_names]
        for (owner, buffer_name), old_value in zip(owners_and_names, old_values, strict=True):
            setattr(owner, buffer_name, old_value.clone())  # outputs that alias the old value keep it

    def write_back(*_: Any) -> None:
        """After the forward: copy the assigned values into the original buffers, and restore these."""
        for (owner, buffer_name), old_value in zip(owners_and_names, old_values, strict=True):
            with torch.no_grad():
                old_value.copy_(getattr(owner, buffer_name))
            setattr(owner, buffer_name, old_value)

    hooks = [model.register_forward_pre_hook(assign_clones), model.register_forward_hook(write_back)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _state_change_error(change: str) -> UnsupportedError:
    """Return the error of a forward that changes Python state; `change` is a text of `Guards.find_change`."""
    path, _, values = change.partition(" was ")
    name = path.rpartition(".")[2]
    if values.startswith("a tensor"):
        advice = "return it, or register a buffer of its shape and assign that"
    elif path.startswith("model.") and name.isidentifier():
        advice = f'keep it in a buffer, as by self.register_buffer("{name}", torch.zeros(()))'
    else:
        advice = "keep it in a buffer of the model, or change it outside the forward"
    problem = f"the forward changes {path}, which was {values}" if values else f"the forward changes state: {change}"
    return UnsupportedError(f"{problem}; expected unchanged state, since a program does not run Python again: {advice}")


def _buffers_and_parameters(model: nn.Module | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return (name → buffer, name → parameter) of a module, with all names of tied tensors; empty dicts for None."""
    if model is None:
        return {}, {}
    return dict(model.named_buffers(remove_duplicate=False)), dict(model.named_parameters(remove_duplicate=False))


def _find_assigned(
    model: nn.Module | None, buffers: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """Return the names of the buffers that a run has assigned.

    Args:
        buffers, parameters: the tensors of the model before the run, by name.

    Raises:
        UnsupportedError: the run has assigned a parameter, registered or removed a buffer, or assigned a tensor of
            another shape or element type to a buffer.
    """
    buffers_after, parameters_after = _buffers_and_parameters(model)
    for name in sorted({*parameters, *parameters_after}):
        if parameters.get(name) is not parameters_after.get(name):
            raise UnsupportedError(
                f"the forward assigns the parameter '{name}'; expected parameters that only an optimizer changes: keep "
                "values that the forward changes in a buffer"
            )
    for name in sorted({*buffers, *buffers_after}):
        if name not in buffers or name not in buffers_after:
            action = "removes" if name in buffers else "registers"
            raise UnsupportedError(
                f"the forward {action} the buffer '{name}'; expected the same buffers after each call: register it in "
                "__init__, with its final shape, and assign it in the forward"
            )
    assigned = tuple(name for name, tensor in buffers.items() if buffers_after[name] is not tensor)
    for name in assigned:
        if not is_like(buffers_after[name], buffers[name]):
            raise changed_form_error(name, buffers[name], buffers_after[name])
    return assigned


def is_like(new: Tensor, old: Tensor) -> bool:
    """Return whether a buffer `old` may be assigned `new`: they have equal shapes and element types."""
    return new.shape == old.shape and new.dtype == old.dtype


def changed_form_error(name: str, old: Tensor, new: Tensor) -> UnsupportedError:
    """Return the error of a forward that replaces the buffer `name`, `old`, by a tensor `new` of another form."""
    return UnsupportedError(
        f"the forward assigns the buffer '{name}', a tensor of {old.dtype} {list(old.shape)}, a tensor of {new.dtype} "
        f"{list(new.shape)}; expected the same type and shape in every call"
    )


def _run(
    run: Callable[[], Any], data: list[Tensor], code: ExecutedCode, record: OpRecord | None = None
) -> tuple[list[Any], bool]:
    """Run a forward, and its backward if the backward runs Python.

    An exception of the forward or backward is suppressed.

    Args:
        data: the tensors of a call and the parameters.
        code: receives the executed code.
        record: records all ops of the forward; None to record nothing.

    Returns: (the ops of the forward on data, whether no exception was raised).

    Raises:
        UnsupportedError: the forward draws numbers from a generator of Python or NumPy.
    """
    ops: list[Any] = []
    is_finished = False
    cache_was_enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # else the second run has no op to cast weights that the first run has cast
    generators = [get_state() for get_state, _ in _GENERATORS.values()]
    try:
        # The trace raises the same error, for the user.
        with suppress(Exception), compiling():
            with _DataOpRecorder(data, ops, record), record_code(code):
                output = run()
            if not _BACKWARD.isdisjoint(code.names) or torch.autograd.Function.apply.__code__ in code.called:
                with _DataOpRecorder([], [], None), record_code(code):
                    _run_backward(output, data)
            is_finished = True
    finally:
        torch.set_autocast_cache_enabled(cache_was_enabled)
    for state_before, (name, (get_state, set_state)) in zip(generators, _GENERATORS.items(), strict=True):
        if get_state() != state_before:
            set_state(state_before)
            raise _state_change_error(f"the generator of {name} drew numbers")
    return ops, is_finished


def _numpy_state() -> tuple[Any, ...]:
    """Return the state of NumPy's generator as a value that `==` compares."""
    name, keys, *position_and_cache = np.random.get_state()
    return name, tuple(keys), *position_and_cache


_GENERATORS = {
    "Python's `random`": (random.getstate, random.setstate),
    "`numpy.random`": (_numpy_state, np.random.set_state),
}
"""Generators whose numbers are constants in a program → (function that reads, function that sets the state)."""

_BACKWARD = frozenset({
    "register_hook", "register_prehook", "register_post_accumulate_grad_hook", "register_multi_grad_hook",
    "saved_tensors_hooks",
})  # fmt: skip
"""Names of functions that let a backward run Python, in addition to autograd functions."""


def _run_backward(output: Any, data: list[Tensor]) -> None:
    """Run the backward from all tensors of an output to the parameters and inputs in `data`."""
    returned = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    inputs = [tensor for tensor in data if tensor.requires_grad and tensor.is_leaf]
    if returned and inputs:
        with torch.autograd.set_multithreading_enabled(False):  # the code of another thread would not be recorded
            torch.autograd.grad(returned, inputs, list(map(torch.ones_like, returned)), allow_unused=True)


class _DataOpRecorder(TorchDispatchMode):
    """Records ops on data, on values computed from data, and ops that draw random numbers."""

    supports_higher_order_operators = True

    def __init__(self, data: list[Tensor], ops: list[Any], record: OpRecord | None):
        super().__init__()
        self._ops, self._record = ops, record
        self._storages: dict[int, Any] = {}
        self._note(data)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, and append (op, key of each argument) to `ops` if it reads data or draws random numbers.

        The results and the arguments that it writes count as data from then on. `record_code` is paused, except while
        an op that is not from torch runs its kernel, because that kernel may be the user's code.
        """
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].device  # shortcut: kernels call this op twice as often as all others
        kwargs = kwargs or {}
        with pause_recording() as recording:
            if func.namespace == "prim":  # reads the device or layout of a tensor
                return func(*args, **kwargs)
            leaves = pytree.leaves_of((*args, *kwargs.values()))
            if _is_torch_op(func):
                result = func(*args, **kwargs)
            else:
                with record_again(recording):
                    result = func(*args, **kwargs)
            results = pytree.leaves_of((result,))
            if self._record is not None:
                self._record.note(func, leaves, results)
            if is_random(func) or any(isinstance(leaf, Tensor) and self._is_data(leaf) for leaf in leaves):
                self._ops.append((func, *map(_leaf_key, leaves)))
                self._note(results)
                self._note(list(written_leaves(func, args, kwargs)))
        return result

    def _note(self, values: list[Any]) -> None:
        """Treat the memory of the tensors in `values` as data from now on."""
        for value in values:
            if isinstance(value, Tensor) and has_storage(value):
                storage = value.untyped_storage()
                self._storages[storage_key(storage)] = storage  # a reference, so that no address is reused

    def _is_data(self, value: Tensor) -> bool:
        """Return whether a tensor shares memory with data, or with values computed from data."""
        return has_storage(value) and storage_key(value.untyped_storage()) in self._storages


def _is_torch_op(func: Any) -> bool:
    """Return whether an op is from torch, so its kernel for fake tensors executes no code of the user."""
    return isinstance(func, OpOverload) and func.namespace in ("aten", "prims")


def _leaf_key(leaf: Any) -> Any:
    """Return a key of an argument of an op: (element type, shape) of a tensor, (type, text) of any other value.

    Two runs of one op with equal arguments have equal keys.
    """
    return (leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, Tensor) else (type(leaf), str(leaf))
