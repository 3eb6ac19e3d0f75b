"""What the expressions of a rule may look at."""

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
    """What an expression may look at.

    Attributes:
        binding, operands, results: of the call.
        factors: reference → the shards of the factors it means, each a Local of kind "shard".
        dims: (tensor, references) → the dimensions of the tensor that these factors make up.
        parts: dimension → the shard of each result along it, of results that a list has.
        inner: the padding that a local form leaves to the op, where halos are fetched; None where none are.
        names, meta_of: values that statements before it named, and the types of these.
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
        """Return the type of the first result; None if it is absent."""
        return self.results[0]

    def tensor(self, name: str) -> TensorMeta | None:
        """Return the type of tensor `name`, or of the first result, which may be absent, if that is `result`."""
        return self.result if name == "result" else self.meta(name)

    def meta(self, name: str) -> TensorMeta:
        """Return the type of the tensor that a statement named `name`, or else of that operand."""
        if name in self.names and self.meta_of:
            return self.meta_of(self.names[name])
        return self.operand(name)

    def operand(self, name: str) -> TensorMeta:
        """Return the global type of the operand of parameter `name`, even if statements gave that name to others."""
        return self.operands[self.binding.operands(name)[0]]

    def argument(self, name: str) -> Any:
        """Return literal argument `name`, or the number passed for that tensor parameter; else None."""
        return self.binding.arguments.get(name)

    def one(self, function: str, reference: str) -> Local:
        """Return the shard of the one factor that `reference` means; RuleError if it means several or none."""
        found = self.factors(reference)
        if len(found) != 1:
            raise RuleError(f"{function}({reference}) needs one factor, found {len(found)}")
        return found[0]

    def position(self, tensor: str, reference: str) -> int:
        """Return the dimension of `tensor` that `reference` means; RuleError if it means several or none."""
        found = self.dims(tensor, (reference,))
        if len(found) != 1:
            raise RuleError(f"position({tensor}, {reference}) needs one dimension, found {len(found)}")
        return found[0]


def rank_integer(kind: str, shard: Local) -> int | Local:
    """Return a rank's `size`, `offset` or `end` of `shard`; a plain integer where no axis shards it."""
    return attrs.evolve(shard, kind=kind) if shard.axes else (0 if kind == "offset" else shard.extent)
