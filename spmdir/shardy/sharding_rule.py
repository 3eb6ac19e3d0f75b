"""Rules of ops in Shardy's form, so that Shardy propagates through ops of torch.

    spmdir  ([m, k], [k, n]) -> ([m, n]) {m = 4, k = 8, n = 6} sum {k} multilinear {self, mat2}
    Shardy  ([i, j], [j, k])->([i, k]) {i=4, j=8, k=6} reduction={j}, custom

Shardy has no counterpart of the clauses `multilinear` and `linear`, by which partial values pass an op. It has none of
`expand` and `local` either, by which a rank computes its part of an op such as softmax. Shardy treats the factors of
these clauses as any other factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spmdir.rules.op_rule import OpRule

_SYMBOLS = "ijklmnopqrstuvwxyz"


def sharding_rule(rule: OpRule) -> str | None:
    """Return the text of the rule of a call with operands, as in `<([i])->([i]) {i=8}>`; None if it runs replicated."""
    if rule.rule.replicated is not None:
        return None
    writer = _Writer(rule)
    call = rule.call
    operands = [writer.dims(dims, meta.shape) for dims, meta in zip(rule.operand_dims, call.operands, strict=True)]
    pairs = zip(rule.result_dims, call.results, strict=True)
    results = [writer.dims(dims, meta.shape) for dims, meta in pairs if dims is not None and meta is not None]
    sizes = ", ".join(f"{_symbol(index)}={size}" for index, size in enumerate(writer.sizes))
    text = f"<({', '.join(operands)})->({', '.join(results)}) {{{sizes}}}"
    for kind in ("reduction", "need_replication"):
        symbols = [_symbol(index) for index, kind_of_factor in enumerate(writer.kinds) if kind_of_factor == kind]
        if symbols:
            text += f" {kind}={{{', '.join(symbols)}}}"
    return f"{text}, custom>"


def _symbol(index: int) -> str:
    """Return Shardy's name of a factor: i to z, then z_1, z_2 and so on."""
    return _SYMBOLS[index] if index < len(_SYMBOLS) else f"z_{index - len(_SYMBOLS) + 1}"


class _Writer:
    """Numbers the factors of a call in the order of their first use.

    Attributes:
        sizes, kinds: of each factor.
    """

    def __init__(self, rule: OpRule):
        self.rule = rule
        self.sizes: list[int] = []
        self.kinds: list[str] = []
        self._indices: dict[int, int] = {}
        self._in_results: set[int] = set()
        for dims in rule.result_dims:
            self._in_results.update(*(dims or ()))

    def dims(self, dims: Sequence[tuple[int, ...]], shape: Sequence[int]) -> str:
        """Return the text of the dimensions of one tensor, as in `[i, jk]`."""
        return "[" + ", ".join(self._dim(factors, size) for factors, size in zip(dims, shape, strict=True)) + "]"

    def _dim(self, factors: tuple[int, ...], size: int) -> str:
        """Return the text of one dimension, the factors that it merges."""
        has_all = math.prod(self.rule.factors[factor].size for factor in factors) == size
        if not factors or not has_all or self.rule.repeated.intersection(factors):
            # A factor of Shardy has one size and occurs once in a tensor. Other dimensions must not be sharded.
            return _symbol(self._add(size, "need_replication"))
        return "".join(_symbol(self._factor(factor)) for factor in factors)

    def _factor(self, index: int) -> int:
        """Return the number that this writer gives to a factor of the rule."""
        if index not in self._indices:
            self._indices[index] = self._add(self.rule.factors[index].size, self._kind(index))
        return self._indices[index]

    def _add(self, size: int, kind: str) -> int:
        """Add a factor, and return its number."""
        self.sizes.append(size)
        self.kinds.append(kind)
        return len(self.sizes) - 1

    def _kind(self, index: int) -> str:
        """Return Shardy's kind of a factor of the rule."""
        kind = self.rule.factors[index].kind
        if kind == "unsharded":
            return "need_replication"
        # In Shardy, no result has a reduction factor. One of the gradients of a layer norm has it, another lacks it.
        is_reduced = kind not in ("plain", "same") and index not in self._in_results
        return "reduction" if is_reduced else "pass_through"
