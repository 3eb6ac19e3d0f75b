"""What a program leaves open: its symbolic sizes, the numbers they may have, and how shapes tell them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import attrs

from spmdir.core.errors import ShardingError, SpmdirError, did_you_mean
from spmdir.core.symbolic.conditions import Condition
from spmdir.core.symbolic.expressions import Size, evaluate, is_symbolic, symbols

NO_PLACES: Mapping[str, str] = MappingProxyType({})


@attrs.frozen(cache_hash=True)
class Symbol:
    """A size that the program leaves open.

    Attributes:
        hint: an example, for which decisions are made.
        low, high: the sizes that it may have; `high` is None for any.
    """

    name: str
    hint: int
    low: int = 0
    high: int | None = None

    def __str__(self) -> str:
        return f"{self.name} = {self.hint} in {self.low}..{'' if self.high is None else self.high}"


@attrs.frozen(cache_hash=True)
class Sizes:
    """The sizes that a program leaves open, and what must hold between them."""

    symbols: tuple[Symbol, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def __attrs_post_init__(self) -> None:
        names = [one.name for one in self.symbols]
        for one in self.symbols:
            if names.count(one.name) > 1:
                raise SpmdirError(f"size '{one.name}' is declared twice")
            if not one.low <= one.hint or (one.high is not None and one.hint > one.high):
                raise SpmdirError(f"size {one}: the example is out of the range")
        for condition in self.conditions:
            for name in (*symbols(condition.left), *symbols(condition.right)):
                self.require(name)
            if not condition.holds(self.hints):
                raise SpmdirError(f"the examples of the sizes contradict '{condition}'")

    @property
    def hints(self) -> dict[str, int]:
        """Return name → example."""
        return {one.name: one.hint for one in self.symbols}

    def require(self, name: str) -> None:
        """Raise SpmdirError unless a size is called `name`."""
        names = [one.name for one in self.symbols]
        if name not in names:
            known = ", ".join(names) or "none"
            raise SpmdirError(f"there is no size '{name}'; the program leaves open {known}{did_you_mean(name, names)}")

    def check(self, given: Mapping[str, int], places: Mapping[str, str] = NO_PLACES) -> None:
        """Raise ShardingError unless the program may run at the sizes `given`.

        Args:
            places: size → the dimension that users know it as.
        """
        for name in given:
            self.require(name)
        for one in self.symbols:
            if one.name not in given:
                raise ShardingError(f"no number is given for size '{one.name}'; give one, as in {one.name}={one.hint}")
            number = given[one.name]
            if type(number) is not int or number < one.low or (one.high is not None and number > one.high):
                limits = f"{one.low} to {one.high}" if one.high is not None else f"at least {one.low}"
                what = places.get(one.name, f"size '{one.name}'")
                raise ShardingError(f"{what} is {number}; the program was traced for {limits}")
        for condition in self.conditions:
            if not condition.holds(given):
                shown = ", ".join(f"{name} = {given[name]}" for name in _names(condition))
                known = ", ".join(f"{name} is {places[name]}" for name in _names(condition) if name in places)
                raise ShardingError(
                    f"sizes {shown} contradict '{condition}', which the program was traced for"
                    + (f"; {known}" if known else "")
                )

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, (*self.symbols, *self.conditions))) + "}"


def _names(condition: Condition) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*symbols(condition.left), *symbols(condition.right))))


def size_places(shapes: Iterable[tuple[str, tuple[int | Size, ...]]]) -> dict[str, tuple[str, int]]:
    """Return size → (tensor, dimension): the first dimension of that size, of tensors by name and shape."""
    found: dict[str, tuple[str, int]] = {}
    for name, shape in shapes:
        for dim, size in enumerate(shape):
            if str(size) in symbols(size):
                found.setdefault(str(size), (name, dim))
    return found


def solve(known: dict[str, int], shape: tuple[int | Size, ...], found: tuple[int, ...], what: str) -> None:
    """Add to `known` what the sizes of a tensor tell: `found` are those of a tensor that the program has as `shape`.

    Raises:
        ShardingError: a size contradicts what is known.
    """
    for dim, (expected, number) in enumerate(zip(shape, found, strict=True)):
        rest = evaluate(expected, known)
        names = symbols(rest)
        if len(names) == 1 and len(rest.terms) <= 2 and rest.terms[0][0] == names:
            factor, constant = rest.terms[0][1], dict(rest.terms).get((), 0)
            if (number - constant) % factor or (number - constant) // factor < 0:
                raise ShardingError(f"dimension {dim} of {what} is {number}; expected a size of the form {rest}")
            known[names[0]] = (number - constant) // factor
        elif not names and rest != number:
            shown = f"{expected} = {rest}" if is_symbolic(expected) else f"{rest}"
            raise ShardingError(f"dimension {dim} of {what} is {number}; expected {shown}")
