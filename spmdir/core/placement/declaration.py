"""The declaration of a local map: the shardings of a user's function that each rank runs on its local shards.

A call of such a function is one op, `local_map.NAME([%q, %k]) {in_shardings = ["dp: S(0)", …], …}`. Its arguments
contain the shardings, so a text can be read, decided and localized without the function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs

from spmdir.core.errors import RuleError
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.core.placement.standard import Partial, R
from spmdir.core.placement.tensor import TensorMeta

NAMESPACE = "local_map"
"""The namespace of the ops of local maps."""

OPERANDS, IN_SHARDINGS, OUT_SHARDINGS = "operands", "in_shardings", "out_shardings"
"""The parameters of such an op: a list of tensors, and the sharding of each operand and of each result."""

MODULE, LITERALS, FLOPS = "module", "literals", "flops_per_element"
"""Further parameters: the module of the function, the text of its literals, and its cost, see `work_tensor`."""


SUM = Partial("sum")


def is_local_map(name: str) -> bool:
    """Return whether op `name` is the op of a local map."""
    return name.startswith(f"{NAMESPACE}.")


@attrs.frozen
class Declaration:
    """The shardings of the operands and results of a local map."""

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]

    @property
    def all(self) -> tuple[Sharding, ...]:
        """Return the shardings of the operands, then those of the results."""
        return self.operands + self.results

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the axes that some operand or result uses, in order."""
        return tuple(dict.fromkeys(axis for sharding in self.all for axis, _ in sharding.entries))

    @classmethod
    def parse(cls, operands: tuple[str, ...], results: tuple[str, ...]) -> Declaration:
        """Return the declaration that consists of these texts."""
        return _parse(operands, results)

    @property
    def texts(self) -> tuple[list[str], list[str]]:
        """Return the shardings of the operands, and those of the results, as texts."""
        return list(map(str, self.operands)), list(map(str, self.results))

    def of_gradients(self, results: Sequence[int], operands: Sequence[int]) -> Declaration:
        """Return the declaration of the gradient: its operands are those of the function and gradients of results.

        On an axis, a gradient of a shard is a shard, and that of a partial sum is replicated. The gradient of a
        replicated tensor is a partial sum if the axis shards another tensor or makes it partial: each rank uses the
        tensor for its own shards, and only the sum of the gradients of all ranks is the gradient.

            x: S(0), w: R -> y: S(0)            gradient of y: S(0)    gradients of x: S(0), of w: P(sum)
            x: S(1), w: S(0) -> y: P(sum)       gradient of y: R       gradients of x: S(1), of w: S(0)

        Args:
            results: the indices of the results whose gradients are operands.
            operands: the indices of the operands whose gradients are results.
        """
        axes = self.axes

        def of_gradient(sharding: Sharding) -> Sharding:
            """Return the sharding of the gradient of a tensor."""
            shards = [(axis, placement) for axis, placement in sharding.entries if placement.trait != "partial"]
            return Sharding([*shards, *((axis, SUM) for axis in axes if sharding[axis] == R)])

        return Declaration(
            (*self.operands, *(of_gradient(self.results[index]) for index in results)),
            tuple(of_gradient(self.operands[index]) for index in operands),
        )

    def work_tensor(self) -> int:
        """Return the index, in `all`, of the tensor that most axes shard; the first of several.

        The floating-point operations of a rank are `flops_per_element` × the elements of its shard of this tensor.
        """
        shard_counts = [sum(placement.trait == "shard" for _, placement in sharding.entries) for sharding in self.all]
        return shard_counts.index(max(shard_counts))


def declaration(arguments: Mapping[str, Any], operands: int, results: int) -> Declaration:
    """Return the declaration in the arguments of an op with so many operands and results.

    Raises:
        RuleError: an argument is missing, is no list of texts, or has the wrong length.
        ParseError, ShardingError: a text is not a sharding.
    """
    for name, count, noun in ((IN_SHARDINGS, operands, "operands"), (OUT_SHARDINGS, results, "results")):
        texts = arguments.get(name, ())
        if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
            raise RuleError(f"'{name}' is not a list of texts; expected one sharding for each of the {noun}")
        if len(texts) != count:
            raise RuleError(
                f"'{name}' has {len(texts)} shardings for {count} {noun}; expected one sharding for each of them"
            )
    return _parse(arguments.get(IN_SHARDINGS, ()), arguments.get(OUT_SHARDINGS, ()))


@lru_cache(maxsize=4096)
def _parse(operands: tuple[str, ...], results: tuple[str, ...]) -> Declaration:
    """Return the declaration that consists of these texts."""
    return Declaration(tuple(map(parse_sharding, operands)), tuple(map(parse_sharding, results)))


def work_elements(declared: Declaration, metas: tuple[TensorMeta | None, ...]) -> int:
    """Return the elements of the work tensor; 0 if it is absent.

    Args:
        metas: the types of the operands, then of the results.
    """
    meta = metas[declared.work_tensor()] if metas else None
    return meta.numel if meta is not None else 0
