"""The values that expressions of a rule may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from spmdir.core.errors import RuleError
from spmdir.core.placement.call import Local
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.binding import Binding


@attrs.frozen
class Scope:
    """The values that an expression may use.

    Attributes:
        binding, operands, results: the parameters, and the types of operands and results, of the call.
        factors: reference → the shards of its factors, each a Local of kind "shard".
        dims: (tensor, references) → the dimensions of the tensor with these factors.
        parts: dimension → for an op that returns a list, the shard of each result along this dimension.
        inner: returns the padding that remains for the op if halos are exchanged; None if they are not.
        names: name → value assigned by an earlier statement.
        meta_of: value of `names` → its type.
    """

    binding: Binding
    operands: tuple[TensorMeta, ...]
    results: tuple[TensorMeta | None, ...]
    factors: Callable[[str], tuple[Local, ...]]
    dims: Callable[[str, tuple[str, ...]], tuple[int, ...]]
    parts: Callable[[int], tuple[Local, ...]] = lambda _: ()
    inner: Callable[[], tuple[int, ...] | None] = lambda: None
    names: Mapping[str, Any] = {}
    meta_of: Callable[[Any], TensorMeta] | None = None

    @property
    def result(self) -> TensorMeta | None:
        """The type of the first result; None if it is absent."""
        return self.results[0]

    def tensor(self, name: str) -> TensorMeta | None:
        """Return the type of tensor `name`; for "result" that of the first result, None if it is absent."""
        return self.result if name == "result" else self.meta(name)

    def meta(self, name: str) -> TensorMeta:
        """Return the type of the tensor that a statement assigned to `name`, else of the operand `name`."""
        if name in self.names and self.meta_of:
            return self.meta_of(self.names[name])
        return self.operand(name)

    def operand(self, name: str) -> TensorMeta:
        """Return the global type of the operand of parameter `name`, even if a statement assigned to this name."""
        return self.operands[self.binding.operands(name)[0]]

    def argument(self, name: str) -> Any:
        """Return literal argument `name`, or the number passed for this tensor parameter, else None."""
        return self.binding.arguments.get(name)

    def single_factor(self, function: str, reference: str) -> Local:
        """Return the shard of the factor of `reference`; RuleError if it has several factors or none."""
        shards = self.factors(reference)
        if len(shards) != 1:
            raise RuleError(f"{function}({reference}) refers to {len(shards)} factors; expected one factor: name it")
        return shards[0]

    def position(self, tensor: str, reference: str) -> int:
        """Return the dimension of `tensor` with the factor of `reference`; RuleError unless there is exactly one."""
        dims = self.dims(tensor, (reference,))
        if len(dims) != 1:
            raise RuleError(
                f"position({tensor}, {reference}) refers to {len(dims)} dimensions of {tensor}; "
                "expected one: name its factor"
            )
        return dims[0]


def rank_integer(kind: str, shard: Local) -> int | Local:
    """Return the `size`, `offset` or `end` of a rank's shard; a plain integer if no axis shards it."""
    return attrs.evolve(shard, kind=kind) if shard.axes else (0 if kind == "offset" else shard.extent)
