"""Fits a rule's dimension patterns to the shapes of one call: which factors make up which dimension."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from spmdir.call import TensorMeta
from spmdir.errors import RuleError
from spmdir.rules.binding import Binding
from spmdir.rules.syntax import Parameter, Pattern, Rule, Term
from spmdir.rules.windows import Window, size_outcomes

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
        self._named: dict[str, int] = {}
        self.spreads: dict[str, list[int]] = {}
        self._apart: dict[str, dict[int, list[int]]] = {}
        self._open_groups: list[tuple[tuple[int, ...], int, str]] = []
        self.operand: int | None = None
        self.operand_dims: list[Dims] = [()] * len(operands)
        self.result_dims: list[Dims | None] = []
        if results is not None and not rule.result_list and len(results) > len(rule.results):
            self.fail(f"{len(results)} results given, {len(rule.results)} expected")
        if rule.replicated is None:
            self._fit()
        else:
            self._leave_open(rule.replicated)

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

    def integers(self, name: str) -> tuple[int, ...]:
        """The numbers that literal argument `name` lists; it must be given."""
        value = self.argument(name)
        listed = (value,) if isinstance(value, int) else value
        if not isinstance(listed, tuple) or not all(isinstance(number, int) for number in listed):
            self.fail(f"argument '{name}' is {'missing' if value is None else repr(value)}; expected integers")
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
        spreads = [t for t in terms if t.kind == "spread"]
        chosen = [t for t in spreads if t.argument == argument] or spreads
        return chosen[0].names[0] if chosen else ""

    @property
    def apart(self) -> tuple[int, ...]:
        """The factors of dimensions that stand apart."""
        return tuple(f for positions in self._apart.values() for fs in positions.values() for f in fs)

    def _leave_open(self, reason: str) -> None:
        """No dimension is made up of factors, so none can be divided."""
        if self.given is None:
            self.fail(f"its results cannot be inferred, for it only runs replicated: {reason}")
        self.operand_dims = [((),) * meta.rank for meta in self.operands]
        self.result_dims = [None if meta is None else ((),) * meta.rank for meta in self.given]

    def _fit(self) -> None:
        operands: list[tuple[int, Parameter]] = [
            (index, p) for p in self.rule.tensors for index in self.binding.operands(p.name)
        ]
        self._size_spreads(operands)
        mapped = []
        for index, parameter in operands:
            pattern, shape = parameter.pattern or (), self.operands[index].shape
            if any(t.kind == "map" for t in pattern):
                mapped.append((index, parameter))
            else:
                self.operand_dims[index] = self._match(pattern, shape, f"operand '{parameter.name}'", operand=True)
        self._solve_groups()
        for index, parameter in mapped:
            assert parameter.pattern
            self.operand = index
            dims, shape = self._map(parameter.pattern[0]), self.operands[index].shape
            dims = ((),) * (len(shape) - len(dims)) + dims[max(0, len(dims) - len(shape)) :]
            self.operand_dims[index] = tuple(
                self._check(d, size, f"operand '{parameter.name}'", broadcast=True)
                for d, size in zip(dims, shape, strict=True)
            )
        self.operand = None
        if self.given is None:
            size_outcomes(self)
        count = len(self.given) if self.given is not None else len(self.rule.results)
        for index in range(count):
            pattern = self.rule.results[0 if self.rule.result_list else index].pattern
            shape = self.result_shape(index)
            if self.given is not None and shape is None:
                self.result_dims.append(None)
            elif pattern and pattern[0].kind == "map":
                dims = self._map(pattern[0])
                if shape is not None:
                    dims = tuple(
                        self._check(d, s, f"result {index}")
                        for d, s in zip(dims, self.same_rank(dims, shape), strict=True)
                    )
                self.result_dims.append(dims)
            else:
                self.result_dims.append(
                    self._predict(pattern)
                    if shape is None
                    else self._match(pattern, shape, f"result {index}", operand=False)
                )
        self._solve_groups()

    def same_rank(self, dims: Dims, shape: tuple[int, ...]) -> tuple[int, ...]:
        """`shape`, which must be that of a result with `dims`."""
        if len(dims) != len(shape):
            self.fail(f"the result has rank {len(shape)}, the rule gives {len(dims)}")
        return shape

    def _check(self, dims: tuple[int, ...], size: int, what: str, broadcast: bool = False) -> tuple[int, ...]:
        """`dims` if they make up `size`; nothing if a dimension of size 1 broadcasts against them."""
        product = math.prod(self.sizes[f] or 0 for f in dims)
        if broadcast and size == 1 and product != 1:
            return ()
        if product != size:
            names = " ".join(self.names[f] for f in dims) or "1"
            self.fail(f"{what} has a dimension of size {size} where {names} = {product} is expected")
        return dims

    def _map(self, term: Term) -> Dims:
        from spmdir.rules.maps import MAPS

        dims = MAPS[term.names[0]].build(self, *term.names[1:])
        if MAPS[term.names[0]].sized:
            self.sized.append(term.names[-1])
        return dims

    def _split(self, pattern: Pattern, shape: tuple[int, ...], what: str) -> list[tuple[Term, tuple[int, ...]]]:
        """Each term of `pattern` with the sizes it stands for."""
        free = len(shape) - sum(t.kind != "spread" for t in pattern)
        spreads = sum(t.kind == "spread" for t in pattern)
        if free < 0 or (free and not spreads):
            self.fail(
                f"{what} has rank {len(shape)}; expected the dimensions `{' '.join(map(str, pattern)) or 'scalar'}`"
            )
        pieces, at = [], 0
        for term in pattern:
            length = free if term.kind == "spread" else 1
            pieces.append((term, shape[at : at + length]))
            at += length
        return pieces

    def _size_spreads(self, operands: list[tuple[int, Parameter]]) -> None:
        """Ranks, sizes and factors of the spreads: plain operands decide, then those with a modifier, then results."""
        seen: list[tuple[int, Term, tuple[int, ...]]] = []
        for index, parameter in operands:
            pattern = parameter.pattern or ()
            if not any(t.kind == "map" for t in pattern):
                pieces = self._split(pattern, self.operands[index].shape, f"operand '{parameter.name}'")
                seen += [(0, t, s) for t, s in pieces if t.kind == "spread"]
        for index in range(len(self.given or ())):
            result = self.rule.results[0 if self.rule.result_list else min(index, len(self.rule.results) - 1)]
            shape = self.result_shape(index)
            if shape is not None and not any(t.kind == "map" for t in result.pattern):
                seen += [
                    (1, t, s) for t, s in self._split(result.pattern, shape, f"result {index}") if t.kind == "spread"
                ]
        seen.sort(key=lambda entry: 2 * entry[0] + (entry[1].modifier != ""))
        for name in dict.fromkeys(t.names[0] for _, t, _ in seen):
            mine = [(turn, t, s) for turn, t, s in seen if t.names[0] == name]
            sizes: list[int | None] = [None] * self._spread_rank(mine)
            for turn, term, shape in mine:
                for position, size in self._places(term, shape, len(sizes)):
                    apart = term.modifier == "~" and position in self.positions(term.argument, len(sizes))
                    known = sizes[position]
                    if apart or (term.modifier != "" and known is not None):
                        continue
                    if known is None or (known == 1 and turn == 0):
                        sizes[position] = size
                    elif size not in (1, known) and turn == 0:
                        self.fail(
                            f"operands disagree in dimension {position - len(sizes)} of *{name}: {known} and {size}"
                        )
            label = name or "d"
            self.spreads[name] = [self.factor(f"{label}{i}", size) for i, size in enumerate(sizes)]

    def _spread_rank(self, seen: list[tuple[int, Term, tuple[int, ...]]]) -> int:
        plain = [len(s) for turn, t, s in seen if t.modifier != "-" and turn == 0]
        if plain:
            return max(plain)
        whole = [len(s) for _, t, s in seen if t.modifier != "-"]
        if whole:
            return max(whole)
        _, term, shape = seen[0]
        value = self.argument(term.argument)
        return len(shape) + (len(value) if isinstance(value, tuple) else 1)

    def _places(self, term: Term, shape: tuple[int, ...], rank: int) -> list[tuple[int, int]]:
        """(position in the spread, size) of each dimension that `term` stands for, the kept size-1 ones left out."""
        if len(shape) > rank:
            self.fail(f"{len(shape)} dimensions given where `{term}` has {rank}")
        if term.modifier != "-":
            return list(enumerate(shape, rank - len(shape)))
        dropped = self.positions(term.argument, rank)
        if len(shape) == rank and self.argument("keepdim"):
            return [(p, size) for p, size in enumerate(shape) if p not in dropped]
        kept = [p for p in range(rank) if p not in dropped]
        if len(kept) != len(shape):
            self.fail(f"{len(shape)} dimensions given where `{term}` leaves {len(kept)}")
        return list(zip(kept, shape, strict=True))

    def _match(self, pattern: Pattern, shape: tuple[int, ...], what: str, operand: bool) -> Dims:
        dims: list[tuple[int, ...]] = []
        for term, sizes in self._split(pattern, shape, what):
            if term.kind == "spread":
                dims += self._match_spread(term, sizes, what, operand)
            elif term.kind == "one":
                if sizes[0] != 1:
                    self.fail(f"{what} has a dimension of size {sizes[0]} where 1 is expected")
                dims.append(())
            elif term.kind == "factor":
                index = self.named_factor(term.names[0])
                if self.sizes[index] is None:
                    self.sizes[index] = sizes[0]
                if self.sizes[index] != sizes[0]:
                    self.fail(f"{what} has {term.names[0]} = {sizes[0]}, but another operand has {self.sizes[index]}")
                dims.append((index,))
            else:
                group = tuple(self.named_factor(n) for n in term.names)
                self._open_groups.append((group, sizes[0], what))
                dims.append(group)
        return tuple(dims)

    def _match_spread(self, term: Term, shape: tuple[int, ...], what: str, operand: bool) -> list[tuple[int, ...]]:
        base = self.spreads[term.names[0]]
        if term.modifier == "-":
            places = dict(self._places(term, shape, len(base)))
            kept = len(shape) == len(base) and bool(self.argument("keepdim"))
            order = range(len(base)) if kept else places
            return [self._check((base[p],), places[p], what) if p in places else () for p in order]
        if not operand and len(shape) != len(base):
            self.fail(f"{what} has rank {len(shape)} where `{term}` has {len(base)}")
        dims: list[tuple[int, ...]] = []
        chosen = self.positions(term.argument, len(base)) if term.modifier == "~" else ()
        for position, size in self._places(term, shape, len(base)):
            factor = base[position]
            if position in chosen:
                dims.append((self._apart_factor(term.argument, position, size),))
            elif size == self.sizes[factor]:
                dims.append((factor,))
            elif size == 1 and operand and term.modifier == "":
                dims.append(())
            elif term.modifier == "~":
                self.whole.add(factor)
                dims.append((self.factor(f"~{self.names[factor]}", size, whole=True),))
            else:
                self.fail(f"{what} has size {size} where {self.names[factor]} = {self.sizes[factor]} is expected")
        return dims

    def _apart_factor(self, argument: str, position: int, size: int) -> int:
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

    def _solve_groups(self) -> None:
        for group, size, what in self._open_groups:
            unknown = [f for f in group if self.sizes[f] is None]
            known = math.prod(self.sizes[f] or 0 for f in group if self.sizes[f] is not None)
            if len(unknown) > 1 or (unknown and (not known or size % known)) or (not unknown and known != size):
                names = " ".join(self.names[f] for f in group)
                self.fail(f"{what} has a dimension of size {size} that does not factor into ({names})")
            for factor in unknown:
                self.sizes[factor] = size // known
        self._open_groups = []

    def _predict(self, pattern: Pattern) -> Dims:
        """The dimensions of a result whose shape is still to be inferred."""
        dims: list[tuple[int, ...]] = []
        for term in pattern:
            if term.kind == "spread":
                base = self.spreads.get(term.names[0])
                if base is None:
                    self.fail(f"the sizes of `{term}` cannot be inferred")
                chosen = self.positions(term.argument, len(base)) if term.modifier else ()
                if term.modifier == "~":
                    self.fail(f"the size of `{term}` cannot be inferred")
                keep = bool(self.argument("keepdim"))
                dims += [() if p in chosen else (f,) for p, f in enumerate(base) if p not in chosen or keep]
            else:
                dims.append(tuple(self.named_factor(n) for n in term.names) if term.kind != "one" else ())
        for factor in (f for d in dims for f in d):
            if self.sizes[factor] is None:
                self.fail(f"the size of {self.names[factor]} in the result cannot be inferred")
        return tuple(dims)
