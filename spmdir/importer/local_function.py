"""Run a user's function of a local map, and its gradient, and reject side effects."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import attrs
import torch
from torch import Tensor

from spmdir.core.errors import Location, UnsupportedError
from spmdir.torch_interop import pytree
from spmdir.torch_interop.dispatch import TorchDispatchMode, allowing_transforms
from spmdir.torch_interop.fake_tensors import FakeTensor
from spmdir.torch_interop.ops import schema_of
from spmdir.torch_interop.schemas import is_mutable, is_random
from spmdir.torch_interop.tensors import storage_key, version

_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem")
"""The namespaces of torch's collectives."""


@attrs.frozen(eq=False)
class LocalFunction:
    """A user's function that ranks run on their local shards.

    Attributes:
        function: takes tensors and literals, and returns a tensor or a tuple of tensors.
        name: the name of its op, without the namespace.
        module: the file or module that defines the function, for errors.
        tensors: for each argument, whether it is a tensor.
        result_count: the number of results.
        flops: the floating-point operations on one rank: a number, or a function of the local shapes; None to count.
        location: the definition of the function.
    """

    function: Callable[..., Any]
    name: str
    module: str
    tensors: tuple[bool, ...]
    result_count: int
    flops: float | Callable[..., float] | None
    location: Location | None

    def run(self, operands: Sequence[Tensor], literals: str, *_: object) -> list[Tensor]:
        """Return the results of the function. A result that shares the memory of an operand is copied.

        Args:
            literals: the arguments that are not tensors, as the text of a tuple.
            _: the further arguments of the op, such as shardings, which the run does not need.

        Raises:
            UnsupportedError: the function writes to an operand, or does not return tensors in the declared number. On
                tensors without values, also if it calls a collective or draws random numbers.
        """
        versions = [_version(operand) for operand in operands]
        if any(isinstance(operand, FakeTensor) or operand.is_meta for operand in operands):
            with allowing_transforms(), _RejectedOps(self, operands):
                outcome = self._call(operands, literals)
        else:
            outcome = self._call(operands, literals)
        for index, (operand, earlier_version) in enumerate(zip(operands, versions, strict=True)):
            if _version(operand) != earlier_version:
                raise self.write_error(index)
        results = list(outcome) if isinstance(outcome, (tuple, list)) else [outcome]
        if len(results) != self.result_count:
            raise self.error(f"returns {len(results)} values; expected {self.result_count}, one for each out_sharding")
        for index, result in enumerate(results):
            if not isinstance(result, Tensor):
                raise self.error(
                    f"returns a {type(result).__name__} as result {index}; expected a tensor: compute other "
                    "values outside of it"
                )
        return [_copy_if_shared(result, operands) for result in results]

    def run_backward(
        self, operands: Sequence[Tensor], literals: str, _in: Any, _out: Any, _module: Any, _flops: Any, wanted: Any
    ) -> list[Tensor]:
        """Return the gradients of the tensor arguments `wanted`.

        Args:
            operands: the tensor arguments, then the gradient of each floating-point result.
            literals: the arguments that are not tensors, as the text of a tuple.
            _in, _out, _module, _flops: the further arguments of the op, which the run does not need.
            wanted: the indices of the tensor arguments whose gradients are computed.
        """
        count = sum(self.tensors)
        with torch.inference_mode(False), torch.enable_grad():
            copies = [operand.clone() if operand.is_inference() else operand.detach() for operand in operands]
            inputs, gradients = copies[:count], copies[count:]
            for index in wanted:
                inputs[index].requires_grad_()
            results = [result for result in self.run(inputs, literals) if is_inexact(result.dtype)]
            pairs = [pair for pair in zip(results, gradients, strict=True) if pair[0].requires_grad]
            wanted_inputs = [inputs[index] for index in wanted]
            if not pairs:
                return [torch.zeros_like(tensor).detach() for tensor in wanted_inputs]
            input_gradients = torch.autograd.grad(
                [result for result, _ in pairs],
                wanted_inputs,
                [gradient for _, gradient in pairs],
                allow_unused=True,
                materialize_grads=True,
            )
        return [_copy_if_shared(gradient.detach(), operands) for gradient in input_gradients]

    def error(self, fault: str) -> UnsupportedError:
        """Return an error at the definition of the function; `fault` continues its name."""
        name = getattr(self.function, "__qualname__", self.name)
        return UnsupportedError(f"the function '{name}' of a local map {fault}", self.location)

    def write_error(self, index: int) -> UnsupportedError:
        """Return the error for a write to a tensor argument."""
        return self.error(
            f"writes to its tensor argument {index}; expected a function without side effects: copy the argument "
            "first, as in x = x.clone()"
        )

    def _call(self, operands: Sequence[Tensor], literals: str) -> Any:
        """Call the function with tensors from `operands` and values from the text `literals`, each in its position."""
        tensors, values = iter(operands), iter(_read_literals(literals))
        return self.function(*(next(tensors) if is_tensor else next(values) for is_tensor in self.tensors))


@cache
def _read_literals(text: str) -> tuple[Any, ...]:
    """Return the literal arguments, from their text."""
    return ast.literal_eval(text)


def is_inexact(dtype: torch.dtype) -> bool:
    """Return whether tensors of this element type have gradients."""
    return dtype.is_floating_point or dtype.is_complex


def _version(tensor: Tensor) -> int:
    """Return the number of writes to the memory of a tensor; 0 for tensors of inference mode, which do not count."""
    return 0 if tensor.is_inference() else version(tensor)


def _copy_if_shared(result: Tensor, operands: Sequence[Tensor]) -> Tensor:
    """Return `result`, or a copy if it shares memory with an operand, because results of custom ops must not."""
    return result.clone() if _find_shared(result, operands) is not None else result


def _find_shared(tensor: Tensor, operands: Sequence[Tensor]) -> int | None:
    """Return the index of the operand that shares memory with `tensor`; None if there is none."""
    storages = [storage_key(operand.untyped_storage()) for operand in operands]
    storage = storage_key(tensor.untyped_storage())
    return storages.index(storage) if storage in storages else None


class _RejectedOps(TorchDispatchMode):
    """Rejects collectives, random numbers and writes to operands inside a local function."""

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Return True, as torch.compile inside the function requires of all active modes."""
        return True

    def __init__(self, local: LocalFunction, operands: Sequence[Tensor]):
        super().__init__()
        self.local, self.operands = local, operands

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op; raise UnsupportedError if it is a collective, is random, or writes to an operand."""
        name = str(func).removesuffix(".default")
        if name.partition(".")[0] in _COLLECTIVES:
            raise self.local.error(
                f"calls the collective {name}; expected ops on the shards of one rank: declare a P(sum) result, or "
                "another sharding, and the passes insert the collective"
            )
        if is_random(func):
            raise self.local.error(
                f"draws random numbers with {name}; expected a deterministic function: pass the random tensor as an "
                "argument"
            )
        if is_mutable(func):
            self._reject_writes(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _reject_writes(self, func: Any, args: Any, kwargs: Any) -> None:
        """Raise UnsupportedError if a call writes to an operand, as the schema of `func` declares.

        `LocalFunction.run` compares version counters instead, but tensors without values do not count their writes.
        """
        for index, argument in enumerate(schema_of(func).arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            for tensor in pytree.tree_leaves(value):
                operand = _find_shared(tensor, self.operands) if isinstance(tensor, Tensor) else None
                if operand is not None:
                    raise self.local.write_error(operand)
