"""Programs of a rank in which one collective is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tests.read_back.rank_graphs import all_gather, all_reduce, reduce_scatter

OTHER = {"dp": "tp", "tp": "dp"}
KINDS = ("dropped", "doubled", "other axis", "other reduction", "maximum", "reversed", "scaled", "halved")


class Collectives:
    """The collectives of a program, of which call number `wrong` has a fault of `kind`."""

    def __init__(self, wrong: int | None = None, kind: str = ""):
        self.wrong, self.kind, self.calls = wrong, kind, 0

    def all_reduce(self, x: Tensor, axis: str, op: str = "sum") -> Tensor:
        return self._call(lambda x, axis, op: all_reduce(x, axis, op), lambda x: x.clone(), x, axis, op)

    def all_gather(self, x: Tensor, dim: int, axis: str) -> Tensor:
        return self._call(
            lambda x, axis, _: all_gather(x, dim, axis), lambda x: torch.cat([x, x], dim), x, axis, None, dim
        )

    def reduce_scatter(self, x: Tensor, dim: int, axis: str, op: str = "sum") -> Tensor:
        return self._call(
            lambda x, axis, op: reduce_scatter(x, dim, axis, op=op),
            lambda x: x.chunk(2, dim)[0].clone(),
            x,
            axis,
            op,
            dim,
        )

    def _call(
        self,
        call: Callable[..., Tensor],
        local: Callable[[Tensor], Tensor],
        x: Tensor,
        axis: str,
        op: str | None,
        dim: int = 0,
    ) -> Tensor:
        number, self.calls = self.calls, self.calls + 1
        if number != self.wrong:
            return call(x, axis, op)
        if self.kind == "dropped":
            return local(x)
        if self.kind == "doubled":
            return call(call(x, axis, op), axis, op)
        if self.kind == "other axis":
            return call(x, OTHER[axis], op)
        if self.kind == "other reduction":
            return call(x, axis, {"sum": "avg", "avg": "sum"}[op or ""])
        if self.kind == "maximum":
            return call(x, axis, "max")
        if self.kind == "reversed":
            if op is None:
                return torch.cat(call(x, axis, op).chunk(2, dim)[::-1], dim)
            return call(torch.cat(x.chunk(2, dim)[::-1], dim), axis, op)
        return call(x, axis, op) * {"scaled": 2.0, "halved": 0.5}[self.kind]


def mutations(program: Callable[..., Any], calls: list[str]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield (name, program with one fault) for each call, given as "gather", "scatter" or "reduce", and each kind."""
    for number, collective in enumerate(calls):
        for kind in KINDS:
            is_reduction = collective != "gather"
            if (kind in ("other reduction", "maximum") and not is_reduction) or (
                kind == "reversed" and collective == "reduce"
            ):
                continue
            yield f"{collective} {number} {kind}", lambda *args, n=number, k=kind: program(Collectives(n, k), *args)
