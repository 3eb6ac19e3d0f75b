"""Which factors make up which dimension of one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from spmdir.core.call import TensorMeta
from spmdir.core.errors import RuleError
from spmdir.rules.language.binding import Binding
from spmdir.rules.language.syntax_tree import Pattern, Rule
from spmdir.rules.shapes.shape_matching import fit
from spmdir.rules.shapes.sliding_windows import Window

Dims = tuple[tuple[int, ...], ...]
"""Per dimension, the factors that make it up, major first; none for a dimension of size 1 that no factor fills."""


class Layout:
    """The factors of one call, gathered while its patterns are fitted.

    Attributes:
        names, sizes: of each factor.
        whole: factors that may not be divided whatever the clauses say.
        operand_dims, result_dims: per operand and result; None for an absent result.
        sized: literal arguments that hold the sizes of the result.
        windows: factor of an output dimension → the window that slides along it; None if it may not be divided.
        paddings: the pixels that are added in front of each dimension that a window slides over.
        spreads: name of a spread → its factors.
        open_groups: (factors of a group, its size, what has it) where sizes of factors are still to be found.
        operand: the operand whose dimensions a map is asked for; None for a result.
        borders: factor of an output dimension → the bytes of the borders of one block along it, over all that slides.
    """

    def __init__(
        self,
        rule: Rule,
        binding: Binding,
        operands: tuple[TensorMeta, ...],
        results: tuple[TensorMeta | None, ...] | None,
        extents: Mapping[str, int],
    ):
        self.rule, self.binding, self.operands = rule, binding, operands
        self.given = results
        self.extents = extents
        self.names: list[str] = []
        self.sizes: list[int | None] = []
        self.whole: set[int] = set()
        self.sized: list[str] = []
        self.windows: dict[int, Window | None] = {}
        self.paddings: tuple[int, ...] = ()
        self.borders: dict[int, int] = {}
        self.spreads: dict[str, list[int]] = {}
        self._named: dict[str, int] = {}
        self._apart: dict[str, dict[int, list[int]]] = {}
        self.open_groups: list[tuple[tuple[int, ...], int, str]] = []
        self.operand: int | None = None
        self.operand_dims: list[Dims] = [()] * len(operands)
        self.result_dims: list[Dims | None] = []
        if results is not None and not rule.result_list and len(results) > len(rule.results):
            self.fail(f"{len(results)} results given, {len(rule.results)} expected")
        fit(self)

    def fail(self, message: str) -> NoReturn:
        raise RuleError(f"{self.rule.op}: {message}")

    def factor(self, name: str, size: int | None, whole: bool = False) -> int:
        """A new factor."""
        self.names.append(name)
        self.sizes.append(size)
        if whole:
            self.whole.add(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def letter(self, name: str, size: int, apart: str | None) -> int:
        """The factor of an einsum letter; `apart` names the equation if no result has it."""
        if name not in self._named:
            self._named[name] = self.factor(name, size)
            if apart is not None:
                self._apart.setdefault(apart, {})[len(self.sizes)] = [self._named[name]]
        return self._named[name]

    def set_apart(self, argument: str, position: int, dims: tuple[int, ...]) -> None:
        """Let `~argument` mean the factors `dims` of the dimension at `position`, whole unless a clause says more."""
        self._apart.setdefault(argument, {}).setdefault(position, []).extend(dims)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the one operand that fills parameter `name`."""
        return self.operands[self.binding.operands(name)[0]].shape

    def dims(self, name: str) -> Dims:
        """The dimensions of the one operand that fills parameter `name`."""
        return self.operand_dims[self.binding.operands(name)[0]]

    def argument(self, name: str) -> Any:
        return self.binding.arguments.get(name)

    def result_shape(self, index: int = 0) -> tuple[int, ...] | None:
        meta = self.given[index] if self.given and index < len(self.given) else None
        return None if meta is None else meta.shape

    def result_pattern(self, index: int) -> Pattern:
        """The pattern of result `index`; those of a list have one."""
        return self.rule.results[0 if self.rule.result_list else index].pattern

    def integers(self, name: str) -> tuple[int, ...]:
        """The numbers that literal argument `name` lists; it must be given."""
        value = self.argument(name)
        listed = (value,) if isinstance(value, int) else value
        if not isinstance(listed, tuple) or not all(isinstance(number, int) for number in listed):
            from spmdir.core.literals import print_literal  # only a wrong argument needs it

            self.fail(f"argument '{name}' is {'missing' if value is None else print_literal(value)}; expected integers")
        return listed

    def dimensions(self, argument: str, rank: int) -> tuple[int, ...]:
        """The dimensions that literal `argument` selects among `rank`, counted from 0; it must be given."""
        listed = self.integers(argument)
        for dim in listed:
            if not -max(rank, 1) <= dim < max(rank, 1):
                self.fail(f"argument '{argument}' selects dimension {dim} of a tensor of rank {rank}")
        found = tuple(dim % max(rank, 1) for dim in listed)
        if len(set(found)) != len(found):
            self.fail(f"argument '{argument}' selects a dimension twice: {list(listed)}")
        return found

    def dimension(self, argument: str, rank: int) -> int:
        """The one dimension that literal `argument` selects among `rank`."""
        found = self.dimensions(argument, rank)
        if len(found) != 1:
            self.fail(f"argument '{argument}' is {list(found)}; expected one dimension")
        return found[0]

    def positions(self, argument: str, rank: int) -> tuple[int, ...]:
        """The dimensions that literal `argument` selects among `rank`; all of them for none or an empty list."""
        if self.argument(argument) in (None, ()):
            return tuple(range(rank))
        return self.dimensions(argument, rank)[:rank]

    def refer(self, reference: str) -> tuple[int, ...]:
        """The factors that a clause means by `k`, `*b`, `dim`, `~dim` or `^shape`."""
        if reference.startswith("*"):
            return tuple(self.spreads.get(reference[1:], ()))
        if reference.startswith("~"):
            return tuple(f for fs in self._apart.get(reference[1:], {}).values() for f in fs)
        if reference.startswith("^"):
            spread = self.spreads.get(self._spread_of(reference[1:]), [])
            return tuple(spread[len(spread) - len(self.integers(reference[1:])) :])
        if reference in self._named:
            return (self._named[reference],)
        parameter = self.rule.parameter(reference)
        if parameter is not None and not parameter.is_tensor:
            spread = self.spreads.get(self._spread_of(reference), [])
            return tuple(spread[p] for p in self.positions(reference, len(spread)))
        return ()

    def _spread_of(self, argument: str) -> str:
        terms = [t for p in self.rule.tensors for t in p.pattern or ()] + [
            t for r in self.rule.results for t in r.pattern
        ]
        spreads = [t for t in terms if t.kind == "variadic"]
        chosen = [t for t in spreads if t.argument == argument] or spreads
        return chosen[0].names[0] if chosen else ""

    @property
    def apart(self) -> tuple[int, ...]:
        """The factors of dimensions that stand apart."""
        return tuple(f for positions in self._apart.values() for fs in positions.values() for f in fs)

    def same_rank(self, dims: Dims, shape: tuple[int, ...]) -> tuple[int, ...]:
        """`shape`, which must be that of a result with `dims`."""
        if len(dims) != len(shape):
            self.fail(f"the result has rank {len(shape)}, the rule gives {len(dims)}")
        return shape

    def apart_factor(self, argument: str, position: int, size: int) -> int:
        """Dimensions of one size that stand apart are one factor; different ones may not be divided."""
        factors = self._apart.setdefault(argument, {}).setdefault(position, [])
        for factor in factors:
            if self.sizes[factor] == size:
                return factor
        factors.append(self.factor(f"~{argument}" + (f"{len(factors)}" if factors else ""), size))
        if len(factors) > 1:
            self.whole.update(factors)
        return factors[-1]

    def named_factor(self, name: str) -> int:
        if name not in self._named:
            self._named[name] = self.factor(name, self.extents.get(name))
        return self._named[name]
