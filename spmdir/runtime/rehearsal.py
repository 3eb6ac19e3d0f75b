"""Rehearse a forward before it is traced: run it twice on fake tensors, and see what it reads and changes.

A trace runs Python once and keeps what it saw, which is right if the second run would do the same. A table that the
first run builds and the second one finds is harmless: the ops on data are equal in both runs. A counter is not.
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
from spmdir.importer.running_statistics import written
from spmdir.runtime.copies import fake, fake_copy
from spmdir.runtime.executed_code import ExecutedCode, recorded_again, recorded_code, unrecorded
from spmdir.runtime.guards import Guards
from spmdir.runtime.known_outputs import PLAIN
from spmdir.runtime.op_record import OpRecord
from spmdir.runtime.result_caches import Caches
from spmdir.runtime.state_walk import StateWalk
from spmdir.torch_interop import pytree
from spmdir.torch_interop.dispatch import TorchDispatchMode
from spmdir.torch_interop.fake_tensors import FakeTensor, FakeTensorMode
from spmdir.torch_interop.joint_export import compiling
from spmdir.torch_interop.ops import OpOverload
from spmdir.torch_interop.schemas import is_random
from spmdir.torch_interop.tensors import has_storage, storage_key


@attrs.frozen(eq=False)
class Rehearsal:
    """What a forward does beside its ops.

    Attributes:
        code: what it executes.
        assigned: the buffers that it assigns, by name.
        caches: what keeps results for later calls, from which a trace removes its fakes in the end.
        facts: the Python state that it can read, as `Guards.facts`.
        output: what a module returns, on fake tensors; None if it raises, and for functions.
        ops: its ops, if they were recorded.
    """

    code: ExecutedCode
    assigned: tuple[str, ...]
    caches: Caches
    facts: Mapping[str, str]
    output: Any = None
    ops: OpRecord | None = None


def rehearse(
    roots: Mapping[str, Any],
    model: nn.Module | None,
    run: Callable[[], Any],
    data: Callable[[], list[Tensor]],
    *,
    record: OpRecord | None = None,
    is_repeated: bool = True,
) -> Rehearsal:
    """Run a forward twice, with its backward if that runs Python; return what it reads and which buffers it assigns.

    A run that executes code which those before it have not is followed by another one.

    Args:
        roots: what the forward is reached from, on fake tensors; the run may change it.
        model: the module among them whose buffers are state; None if there is none.
        run: runs the forward, and returns what it returns.
        data: the tensors of a call and the parameters: ops on them are compared.
        record: notes the ops of the first run.
        is_repeated: False to leave the second run to another process, in which the first one did the same.

    Raises:
        UnsupportedError: the forward changes Python state, assigns a parameter, registers a buffer, or reads state that
            cannot be compared.
    """
    tensors, code = _tensors(model), ExecutedCode()
    ops, ended = _run(run, data(), code, record)
    assigned = _assigned(model, *tensors)
    known, walk = code.size, StateWalk(code, roots)
    guards = Guards.of(walk, code, roots)
    facts, is_known = guards.facts, not is_repeated
    try:
        while not is_known:
            before, ended_before = ops, ended
            ops, ended = _run(run, data(), code)
            if change := guards.change(*roots.values()):
                raise _changed(change)
            if ended and ended_before and ops != before:
                raise UnsupportedError(
                    "the second call of the forward runs other ops, so it depends on Python state that it changes; "
                    "keep that state in buffers, or set it before the model is traced"
                )
            is_known = code.size == known
            if not is_known:
                known, walk = code.size, StateWalk(code, roots)
                guards = Guards.of(walk, code, roots)
    finally:
        caches = Caches.of(walk)
        if is_repeated:
            caches.remove_fakes()
    return Rehearsal(code, assigned, caches, facts, ops=record)


def rehearse_module(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    device: torch.device | None = None,
    *,
    is_recorded: bool = False,
    is_repeated: bool = True,
) -> Rehearsal:
    """Rehearse the forward of a copy of a module, on fake tensors.

    Args:
        is_recorded: whether its ops are recorded.
        is_repeated: as of `rehearse`.

    Raises:
        UnsupportedError: as `rehearse`.
    """
    say("running {} on fake tensors", type(model).__name__)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    copied = fake_copy(model, mode, device)
    args, kwargs = pytree.tree_map_only(Tensor, lambda tensor: fake(tensor, mode, device), (args, dict(kwargs)))
    inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]

    outputs: list[Any] = [None]
    buffers, parameters = _tensors(copied)
    named = {**parameters, **buffers, **{f"input {place}": tensor for place, tensor in enumerate(inputs)}}
    record = OpRecord(named) if is_recorded else None

    def run() -> Any:
        with mode:
            outputs[:] = [copied(*args, **kwargs)]
        return outputs[0]

    def data() -> list[Tensor]:
        return [*inputs, *copied.parameters()]

    with _objects_named(copied, args, kwargs):
        rehearsal = rehearse({"model": copied}, copied, run, data, record=record, is_repeated=is_repeated)
    return attrs.evolve(rehearsal, output=outputs[0])


@contextmanager
def _objects_named(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Let an error of the forward name the argument that holds an object, such as a cache, which it may change."""
    try:
        yield
    except UnsupportedError as error:
        arguments = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
        for name, value in arguments.items():
            for leaf in pytree.tree_leaves(value):
                if not isinstance(leaf, PLAIN):
                    raise UnsupportedError(
                        f"the argument '{name}' holds a {type(leaf).__name__}; expected tensors and plain values, as "
                        "a program changes no other objects: leave it out, as use_cache=False does with a cache of "
                        f"transformers ({error.message})",
                        error.location,
                    ) from error
        raise


def rehearse_step(step: Callable[..., Any], state: Any, args: tuple[Any, ...], device: torch.device) -> Rehearsal:
    """Rehearse a function `step(state, *args)` on fake tensors.

    Raises:
        UnsupportedError: as `rehearse`.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    state, args = pytree.tree_map_only(Tensor, lambda tensor: fake(tensor, mode, device), (state, args))
    data = [leaf for leaf in pytree.tree_leaves((state, args)) if isinstance(leaf, Tensor)]

    def run() -> Any:
        with mode:
            return step(*pytree.tree_map(lambda leaf: leaf, (state, *args)))

    return rehearse({"step": step}, None, run, lambda: data)


def rehearse_loss(model: nn.Module, loss: Callable[..., Any], args: tuple[Any, ...], device: torch.device) -> Rehearsal:
    """Rehearse `loss(model, *args)` on a copy of the model with fake tensors.

    Raises:
        UnsupportedError: as `rehearse`.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    copied = fake_copy(model, mode, device)
    args = pytree.tree_map_only(Tensor, lambda tensor: fake(tensor, mode, device), args)
    inputs = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]

    def run() -> Any:
        with mode, torch.enable_grad():
            return loss(copied, *args)

    return rehearse({"model": copied, "loss": loss}, copied, run, lambda: [*inputs, *copied.parameters()])


@contextmanager
def assignments_written(model: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Write what the forward of `model` assigns to buffers into the buffers that it had, which tracers record."""
    if not names:
        yield
        return
    places = [(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names]
    before: list[Tensor] = []

    def replace(*_: Any) -> None:
        before[:] = [getattr(owner, last) for owner, last in places]
        for (owner, last), old in zip(places, before, strict=True):
            setattr(owner, last, old.clone())  # what the forward returns of the old values stays as it is

    def write(*_: Any) -> None:
        for (owner, last), old in zip(places, before, strict=True):
            with torch.no_grad():
                old.copy_(getattr(owner, last))
            setattr(owner, last, old)

    hooks = [model.register_forward_pre_hook(replace), model.register_forward_hook(write)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _changed(change: str) -> UnsupportedError:
    path, _, values = change.partition(" was ")
    name = path.rpartition(".")[2]
    if values.startswith("a tensor"):
        advice = "return it, or register a buffer of its shape and assign that"
    elif path.startswith("model.") and name.isidentifier():
        advice = f'keep it in a buffer, as by self.register_buffer("{name}", torch.zeros(()))'
    else:
        advice = "keep it in a buffer of the model, or leave it to what calls the model"
    found = f"the forward changes {path}, which was {values}" if values else f"the forward changes state: {change}"
    return UnsupportedError(f"{found}; a program does not run Python again: {advice}")


def _tensors(model: nn.Module | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the buffers and the parameters of a module by name."""
    if model is None:
        return {}, {}
    return dict(model.named_buffers(remove_duplicate=False)), dict(model.named_parameters(remove_duplicate=False))


def _assigned(
    model: nn.Module | None, buffers: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """Return the buffers that a run has replaced.

    Raises:
        UnsupportedError: it has replaced or registered something else.
    """
    now, parameters_now = _tensors(model)
    for name in sorted({*parameters, *parameters_now}):
        if parameters.get(name) is not parameters_now.get(name):
            raise UnsupportedError(
                f"the forward assigns the parameter '{name}'; expected parameters that only an optimizer changes: keep "
                "what the forward changes in a buffer"
            )
    for name in sorted({*buffers, *now}):
        if name not in buffers or name not in now:
            what = "removes" if name in buffers else "registers"
            raise UnsupportedError(
                f"the forward {what} the buffer '{name}'; expected the same buffers after each call: register it in "
                "__init__, with the shape that it gets, and assign it in the forward"
            )
    assigned = tuple(name for name, tensor in buffers.items() if now[name] is not tensor)
    for name in assigned:
        if not is_like(now[name], buffers[name]):
            raise changed_form(name, buffers[name], now[name])
    return assigned


def is_like(new: Tensor, old: Tensor) -> bool:
    """Return whether a buffer may become `new`."""
    return new.shape == old.shape and new.dtype == old.dtype


def changed_form(name: str, old: Tensor, new: Tensor) -> UnsupportedError:
    return UnsupportedError(
        f"the forward assigns the buffer '{name}', a tensor of {old.dtype} {list(old.shape)}, a tensor of {new.dtype} "
        f"{list(new.shape)}; expected the same type and shape in every call"
    )


def _run(
    run: Callable[[], Any], data: list[Tensor], code: ExecutedCode, record: OpRecord | None = None
) -> tuple[list[Any], bool]:
    """Run a forward, and its backward if that runs Python; return its ops on data, and whether it came to its end.

    Raises:
        UnsupportedError: it draws numbers from a generator of Python.
    """
    ops: list[Any] = []
    ended = False
    caches = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # the second run would find the weights that the first one casts
    generators = [read() for read, _ in _GENERATORS.values()]
    try:
        # The trace raises what a user should read.
        with suppress(Exception), compiling():
            with _DataOps(data, ops, record), recorded_code(code):
                output = run()
            if not _BACKWARD.isdisjoint(code.names) or torch.autograd.Function.apply.__code__ in code.called:
                with _DataOps([], [], None), recorded_code(code):
                    _backward(output, data)
            ended = True
    finally:
        torch.set_autocast_cache_enabled(caches)
    for before, (name, (read, restore)) in zip(generators, _GENERATORS.items(), strict=True):
        if read() != before:
            restore(before)
            raise _changed(f"the generator of {name} drew numbers")
    return ops, ended


def _numpy_state() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()
    return name, tuple(keys), *rest


_GENERATORS = {
    "Python's `random`": (random.getstate, random.setstate),
    "`numpy.random`": (_numpy_state, np.random.set_state),
}
"""Generators whose numbers are constants in a program → (how to read, how to set their state)."""

_BACKWARD = frozenset({
    "register_hook", "register_prehook", "register_post_accumulate_grad_hook", "register_multi_grad_hook",
    "saved_tensors_hooks",
})  # fmt: skip
"""Names of what lets a backward run Python, beside autograd functions."""


def _backward(output: Any, data: list[Tensor]) -> None:
    returned = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    asked = [tensor for tensor in data if tensor.requires_grad and tensor.is_leaf]
    if returned and asked:
        with torch.autograd.set_multithreading_enabled(False):  # the code of another thread would not be recorded
            torch.autograd.grad(returned, asked, list(map(torch.ones_like, returned)), allow_unused=True)


class _DataOps(TorchDispatchMode):
    """Records ops on data, on what was made of data, and on random numbers."""

    supports_higher_order_operators = True

    def __init__(self, data: list[Tensor], ops: list[Any], record: OpRecord | None):
        super().__init__()
        self._ops, self._record = ops, record
        self._storages: dict[int, Any] = {}
        self._note(data)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].device  # what the op would return; kernels ask for it twice as often as they run ops
        kwargs = kwargs or {}
        with unrecorded() as recording:
            if func.namespace == "prim":  # asks for the device or layout of a tensor, which Python may keep
                return func(*args, **kwargs)
            leaves = pytree.leaves_of((*args, *kwargs.values()))
            if _is_torchs(func):
                result = func(*args, **kwargs)
            else:
                with recorded_again(recording):
                    result = func(*args, **kwargs)
            results = pytree.leaves_of((result,))
            if self._record is not None:
                self._record.note(func, leaves, results)
            if is_random(func) or any(isinstance(leaf, Tensor) and self._is_data(leaf) for leaf in leaves):
                self._ops.append((func, *map(_form, leaves)))
                self._note(results)
                self._note(list(written(func, args, kwargs)))
        return result

    def _note(self, values: list[Any]) -> None:
        for value in values:
            if isinstance(value, Tensor) and has_storage(value):
                storage = value.untyped_storage()
                self._storages[storage_key(storage)] = storage  # kept, so that no address is used twice

    def _is_data(self, value: Tensor) -> bool:
        return has_storage(value) and storage_key(value.untyped_storage()) in self._storages


def _is_torchs(func: Any) -> bool:
    """Return whether an op is one of torch's, whose kernels for fake tensors execute no code of the user."""
    return isinstance(func, OpOverload) and func.namespace in ("aten", "prims")


def _form(leaf: Any) -> Any:
    return (leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, Tensor) else (type(leaf), str(leaf))
