"""Watch the trace of a step: repeat draws of checkpointed functions, and reject parameters outside the state."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, ExitStack
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from spmdir.core.errors import UnsupportedError
from spmdir.importer.locations import current_user_line
from spmdir.importer.running_statistics import written_leaves
from spmdir.torch_interop import pytree
from spmdir.torch_interop.dispatch import TorchDispatchMode
from spmdir.torch_interop.ops import OpOverload
from spmdir.torch_interop.schemas import is_mutable, is_random
from spmdir.torch_interop.tensors import has_storage

_aten = torch.ops.aten


def watch_step(parameters: Mapping[int, str]) -> AbstractContextManager[Any]:
    """Return the context in which to run a step. It has an effect only if a tracer runs the step.

    Activation checkpointing resets the generator with `set_rng_state`, and expects the same numbers again. A graph has
    no state of a generator. So inside the context, a random op that starts from an earlier state of the CPU generator
    returns the earlier values. The generator itself does not change.

    Args:
        parameters: id → FQN of the parameters that the state has tensors for.

    Raises:
        UnsupportedError: the step uses one of these parameters, which would become a constant of the trace. Or a random
            op starts from an earlier state of the generator, but the op or its arguments differ.
    """
    stack = ExitStack()
    if get_proxy_mode() is not None:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(_StepMode(parameters))
    return stack


_FIRST_SEED = 1 << 48
"""The seed of the first draw of a trace. It is unlikely that a model sets the same seed itself."""

_SHAPE_ONLY: frozenset[Any] = frozenset({
    _aten.bernoulli.p, _aten.bernoulli_.float, _aten.bernoulli_.Tensor, _aten.cauchy_.default,
    _aten.exponential_.default, _aten.geometric_.default, _aten.log_normal_.default, _aten.native_dropout.default,
    _aten.normal_.default, _aten.rand_like.default, _aten.randint_like.default, _aten.randint_like.low_dtype,
    _aten.randn_like.default, _aten.random_.default, getattr(_aten.random_, "from"), _aten.random_.to,
    _aten.uniform_.default,
})  # fmt: skip
"""Random ops whose draws depend on the shape of their first argument, but not on its elements."""


class _ValueNumbers:
    """Value numbers of tensors during a trace: tensors with equal numbers have equal elements.

    The number of a result is determined by its op and arguments. A tensor gets a new number if its memory was written
    to. Inputs, draws and other values that cannot be compared get new numbers too.
    """

    def __init__(self) -> None:
        self._new_numbers = count()
        self._number_of_result: dict[Hashable, int] = {}  # (call, index of the result) → value number
        self._write_counts: dict[Hashable, int] = {}  # storage → number of writes to it
        self._numbers = WeakTensorKeyDictionary()  # tensor → (value number, number of writes to its storage then)

    def number(self, value: Tensor) -> int:
        """Return the number of a tensor; a new one if it has none, or if its memory was written to since."""
        number, writes = self._numbers.get(value) or (-1, -1)  # -1 writes: never equal, so the tensor gets a number
        if writes != self._writes_to(value):
            number = next(self._new_numbers)
            self._set_number(value, number)
        return number

    def keys(self, args: Any, kwargs: Any) -> list[Hashable]:
        """Return the key of arguments: their structure, and the value number, or type and text, of each leaf."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        return [spec, *(self.number(leaf) if isinstance(leaf, Tensor) else (type(leaf), str(leaf)) for leaf in leaves)]

    def record(self, call: Hashable | None, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Number the results of a call, after its writes have made the numbers of written tensors invalid.

        Results of equal calls get equal numbers: for `a = x + 1` and later `b = x + 1`, b gets the number of a.

        Args:
            call: the key of the op and its arguments. If None, the results get new numbers.
            func, args, kwargs, result: the op, its arguments and its result.
        """
        for target in written_leaves(func, args, kwargs):
            if isinstance(target, Tensor):
                storage = _storage(target)
                self._write_counts[storage] = self._write_counts.get(storage, 0) + 1
        for index, leaf in enumerate(pytree.tree_leaves(result)):
            if isinstance(leaf, Tensor):
                number = next(self._new_numbers)
                if call is not None:
                    number = self._number_of_result.setdefault((call, index), number)
                self._set_number(leaf, number)

    def share_number(self, tensor: Tensor, source: Tensor) -> None:
        """Give `tensor` the number of `source`, which has equal elements."""
        self._set_number(tensor, self.number(source))

    def _set_number(self, value: Tensor, number: int) -> None:
        """Give a tensor a number, which is valid until its memory is written to."""
        self._numbers[value] = (number, self._writes_to(value))

    def _writes_to(self, value: Tensor) -> int:
        """Return the number of writes to the memory of a tensor so far."""
        return self._write_counts.get(_storage(value), 0)


def _storage(value: Tensor) -> Hashable:
    """Return a key of the memory of a tensor; of the tensor itself if it has no storage."""
    return StorageWeakRef(value.untyped_storage()) if has_storage(value) else id(value)


class _StepMode(TorchDispatchMode):
    """Repeats the draws that start from an earlier state of the generator.

    A state is identified by its seed, which is saved and restored with it. After each draw, the next seed is set. So a
    forward draws from the seeds 1000 and 1001, and a recomputation, which restores seed 1000, repeats the first draw.
    """

    supports_higher_order_operators = True

    def __init__(self, parameters: Mapping[int, str]):
        super().__init__()
        self._parameters = parameters
        self._values = _ValueNumbers()
        self._drawn: dict[int, tuple[Any, Any]] = {}  # seed → (call, clones of its results)
        torch.default_generator.manual_seed(_FIRST_SEED)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, and number its results. A random op may repeat an earlier draw; see `_draw`.

        Raises:
            UnsupportedError: the op reads an original parameter of the model.
        """
        kwargs = kwargs or {}
        for leaf in pytree.tree_leaves((args, kwargs)):
            if id(leaf) in self._parameters:
                raise UnsupportedError(
                    f"the loss uses the original parameter '{self._parameters[id(leaf)]}', which would be a "
                    "constant of the trace, without updates; expected parameters of its argument: use the "
                    "parameter of the argument `model` of the loss",
                    current_user_line(),
                )
        if is_random(func) and kwargs.get("generator") is None:
            return self._draw(func, args, kwargs)
        comparable = isinstance(func, OpOverload) and not is_random(func)
        call = (func, *self._values.keys(args, kwargs)) if comparable else None
        result = func(*args, **kwargs)
        if func in (_aten.detach.default, _aten.alias.default):
            self._values.share_number(result, args[0])
        else:
            self._values.record(call, func, args, kwargs, result)
        return result

    def _draw(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a random op, or repeat the draw that an earlier op made from the same seed.

        A checkpointed function restores the seed and runs again, so it gets the values of its first run.
        """
        seed = torch.random.initial_seed()
        keys = self._values.keys(args, kwargs)  # the structure of the arguments, then a key of each leaf
        call = (func, *keys)
        if func in _SHAPE_ONLY:  # the value number of the first argument has no effect
            spec, _, *other_keys = keys
            call = (func, spec, str(args[0].shape), args[0].dtype, args[0].device, *other_keys)
        if seed in self._drawn:
            previous_call, values = self._drawn[seed]
            if previous_call != call:
                forward = "on other values" if previous_call[0] is func else previous_call[0]
                raise UnsupportedError(
                    f"the recomputation draws {func} where the forward drew {forward}; expected the same "
                    "random ops on the same values in both runs: remove what changes between them from the "
                    "checkpointed function",
                    current_user_line(),
                )
            result = _repeat_draw(func, args, pytree.tree_map_only(Tensor, torch.clone, values))
        else:
            result = func(*args, **kwargs)
            # Clones, because the results may be written to. Clones of draws that are not repeated are dead code.
            self._drawn[seed] = call, pytree.tree_map_only(Tensor, torch.clone, result)
        self._values.record((seed, func, *keys), func, args, kwargs, result)
        # A trace draws no numbers, so the generator does not advance. The next seed means the state after it.
        torch.default_generator.manual_seed(seed + 1)
        return result


def _repeat_draw(func: Any, args: Any, values: Any) -> Any:
    """Return the results of `func` on `args` for random numbers that were drawn before.

    An op that writes to its first argument writes the earlier results into it. `native_dropout` applies the earlier
    mask to its present argument.

    Args:
        values: clones of the results of the earlier draw.

    Raises:
        UnsupportedError: the op writes to an argument on whose elements its draw depends.
    """
    if func is _aten.native_dropout.default:
        x, p, train = args
        mask = values[1]
        scale = 1.0 if train is False else 0.0 if p == 1 else 1 / (1 - p)
        return mask * x * scale, mask
    if not is_mutable(func):
        return values
    if func in _SHAPE_ONLY:
        return args[0].copy_(values)
    raise UnsupportedError(
        f"{func} draws again from an earlier state of the generator, and writes to its arguments; expected "
        "an op without side effects in a checkpointed function: use the op that returns a new tensor",
        current_user_line(),
    )
