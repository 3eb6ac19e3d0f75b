"""The ranks of an edge as its lowering sees them: their collectives, on torch tensors."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor

from spmdir.core.errors import SpmdirError
from spmdir.core.placement.reductions import REDUCTIONS, group_reduction
from spmdir.lowering.partition import Cut, lay, split_even, spread
from spmdir.lowering.ranges import Positions, narrow
from spmdir.lowering.wire import check_reduced, packed

functional = torch.ops._c10d_functional


@attrs.frozen(cache_hash=True)
class Group:
    """The ranks along the axes of an edge.

    Attributes:
        name: of their process group; not asked for where there is one rank.
        size: how many ranks there are.
        index: the number of this rank among them, in mesh order.
        shape: of what this rank holds after the edge.
        cut: how the target of the edge cuts a dimension among them; None if it divides none.
    """

    name: str
    size: int
    index: int
    shape: tuple[int, ...]
    cut: Cut | None = None

    def all_gather(self, x: Tensor) -> Tensor:
        """What every rank has, by rank: [*shape] → [size, *shape]."""
        x = x.unsqueeze(0)
        return x if self.size == 1 else self._moved(functional.all_gather_into_tensor.default, x, self.size)

    def all_reduce(self, x: Tensor, op: str = "sum") -> Tensor:
        """The reduction of what the ranks have, by a key of `spmdir.core.placement.reductions.REDUCTIONS`."""
        return self._reduced(functional.all_reduce.default, x, op)

    def reduce_scatter(self, x: Tensor, op: str = "sum") -> Tensor:
        """The reduction of row `index` of what the ranks have: [size, *shape] → [*shape]."""
        self._check_rows("reduce_scatter", x)
        return self._reduced(functional.reduce_scatter_tensor.default, x, op, self.size).squeeze(0)

    def all_to_all(self, x: Tensor) -> Tensor:
        """Row i goes to rank i, and what comes from rank i is row i: [size, *shape] → [size, *shape]."""
        self._check_rows("all_to_all", x)
        ones = [1] * self.size
        return x if self.size == 1 else self._moved(functional.all_to_all_single.default, x, ones, ones)

    def broadcast(self, x: Tensor, source: int = 0) -> Tensor:
        """What rank `source` has; `x` of the others tells shape and type."""
        return x if self.size == 1 else self._moved(functional.broadcast.default, x, source)

    def split(self, x: Tensor) -> Tensor:
        """`x` as the target of the edge cuts it, by rank: [size, *block], padded with zeros to the longest piece.

        Raises:
            SpmdirError: the target divides no dimension.
        """
        cut = self._cut("split")
        block = (*x.shape[: cut.dim], cut.step, *x.shape[cut.dim + 1 :])
        rows = split_even(_call, spread(_call, lay(_call, x, cut), cut, x.dim()), cut, block)  # type: ignore[arg-type]
        return rows.reshape(self.size, *block)  # type: ignore[attr-defined]

    def keep(self, x: Tensor) -> Tensor:
        """A block of `split` without the padding behind the piece of this rank.

        Raises:
            SpmdirError: the target divides no dimension.
        """
        cut = self._cut("keep")
        own = cut.pieces[cut.by_rank[self.index]][1]
        return narrow(_call, x, cut.dim, 0, own, cut.step)  # type: ignore[return-value, arg-type]

    def _cut(self, method: str) -> Cut:
        if self.cut is None:
            raise SpmdirError(f"group.{method} cuts as the target does, but that divides no dimension")
        return self.cut

    def _check_rows(self, method: str, x: Tensor) -> None:
        if not x.dim() or x.shape[0] != self.size:
            raise SpmdirError(
                f"group.{method} takes one row a rank; expected [{self.size}, …], found the shape {[*x.shape]}"
            )

    def _reduced(self, collective: Any, x: Tensor, op: str, *arguments: Any) -> Tensor:
        if self.size == 1:
            return x
        check_reduced(op, x.dtype)
        if x.dtype != torch.bool:
            return self._run(collective, x, op, *arguments)
        name = group_reduction(op, True)
        if name is None:
            known = [name for name, reduction in REDUCTIONS.items() if reduction.of_bool]
            raise SpmdirError(f"reduces truth values by {op}; expected one of {', '.join(known)}")
        return self._run(collective, x.view(torch.uint8), name, *arguments).view(torch.bool)

    def _moved(self, collective: Any, x: Tensor, *arguments: Any) -> Tensor:
        sent, unpack = packed(_call, x, x.dtype)  # type: ignore[arg-type]
        return unpack(self._run(collective, sent, *arguments))  # type: ignore[arg-type, return-value]

    def _run(self, collective: Any, x: Tensor, *arguments: Any) -> Tensor:
        return functional.wait_tensor.default(collective(x.contiguous(), *arguments, self.name))


def _call(op: Any, *arguments: Any) -> Any:
    return op(*(argument.tensor() if isinstance(argument, Positions) else argument for argument in arguments))
