"""The symbolic sizes of a program: their ranges and conditions, and their values for given shapes."""

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
    """A symbolic size of a program.

    Attributes:
        hint: an example, for which the compiler decides shardings.
        low, high: its range; `high` is None if there is no upper limit.
    """

    name: str
    hint: int
    low: int = 0
    high: int | None = None

    def __str__(self) -> str:
        return f"{self.name} = {self.hint} in {self.low}..{'' if self.high is None else self.high}"


@attrs.frozen(cache_hash=True)
class Sizes:
    """The symbolic sizes of a program, and the conditions between them."""

    symbols: tuple[Symbol, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Raise SpmdirError unless names are unique, and the examples of the sizes are in range and meet conditions."""
        names = [symbol.name for symbol in self.symbols]
        for symbol in self.symbols:
            if names.count(symbol.name) > 1:
                raise SpmdirError(f"size '{symbol.name}' is declared twice; expected one declaration: remove the other")
            if not symbol.low <= symbol.hint or (symbol.high is not None and symbol.hint > symbol.high):
                raise SpmdirError(
                    f"size {symbol}: the example {symbol.hint} is outside the range; expected an example in it: "
                    "change the example or the range"
                )
        for condition in self.conditions:
            for name in (*symbols(condition.left), *symbols(condition.right)):
                self.require(name)
            if not condition.holds(self.hints):
                raise SpmdirError(
                    f"the examples of the sizes violate '{condition}'; expected examples that satisfy it: "
                    "change the examples"
                )

    @property
    def hints(self) -> dict[str, int]:
        """Return name → example."""
        return {symbol.name: symbol.hint for symbol in self.symbols}

    def require(self, name: str) -> None:
        """Raise SpmdirError unless there is a size with the name `name`."""
        names = [symbol.name for symbol in self.symbols]
        if name not in names:
            listed = ", ".join(names) or "none"
            raise SpmdirError(f"there is no size '{name}'; expected one of {listed}{did_you_mean(name, names)}")

    def check(self, sizes: Mapping[str, int], places: Mapping[str, str] = NO_PLACES) -> None:
        """Raise ShardingError unless the program may run with these `sizes`.

        Args:
            places: name of a size → text of the dimension of an input that has this size, for messages.
        """
        for name in sizes:
            self.require(name)
        for symbol in self.symbols:
            if symbol.name not in sizes:
                raise ShardingError(
                    f"size '{symbol.name}' has no value; expected one, as in {symbol.name}={symbol.hint}"
                )
            number = sizes[symbol.name]
            if type(number) is not int or number < symbol.low or (symbol.high is not None and number > symbol.high):
                limits = f"{symbol.low} to {symbol.high}" if symbol.high is not None else f"at least {symbol.low}"
                subject = places.get(symbol.name, f"size '{symbol.name}'")
                raise ShardingError(
                    f"{subject} is {number}; expected {limits}, for which the program was traced: use a "
                    "size in this range, or trace the program for a larger range"
                )
        for condition in self.conditions:
            if not condition.holds(sizes):
                shown = ", ".join(f"{name} = {sizes[name]}" for name in _names(condition))
                dimensions = ", ".join(f"{name} is {places[name]}" for name in _names(condition) if name in places)
                raise ShardingError(
                    f"sizes {shown} violate '{condition}'; expected sizes that meet it, as in the trace: "
                    "change the sizes" + (f"; {dimensions}" if dimensions else "")
                )

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, (*self.symbols, *self.conditions))) + "}"


def _names(condition: Condition) -> tuple[str, ...]:
    """Return the symbols in a condition, each once."""
    return tuple(dict.fromkeys((*symbols(condition.left), *symbols(condition.right))))


def size_places(shapes: Iterable[tuple[str, tuple[int | Size, ...]]]) -> dict[str, tuple[str, int]]:
    """Return symbol → (tensor name, dimension): the first dimension whose size is exactly this symbol.

    Args:
        shapes: (name, shape) of each tensor.
    """
    first_dim_of_symbols: dict[str, tuple[str, int]] = {}
    for name, shape in shapes:
        for dim, size in enumerate(shape):
            is_single_symbol = str(size) in symbols(size)
            if is_single_symbol:
                first_dim_of_symbols.setdefault(str(size), (name, dim))
    return first_dim_of_symbols


def solve(solved: dict[str, int], shape: tuple[int | Size, ...], actual: tuple[int, ...], subject: str) -> None:
    """Solve for the symbols in `shape` from the `actual` shape of a tensor, and add them to `solved`.

    The shape (2*s0 + 1, 4) and the actual shape (7, 4) give s0 = 3. A size is skipped unless it has one unsolved symbol
    and is linear in this symbol.

    Args:
        subject: the name of the tensor, for messages.

    Raises:
        ShardingError: a size contradicts the solved symbols.
    """
    for dim, (expected, number) in enumerate(zip(shape, actual, strict=True)):
        unsolved = evaluate(expected, solved)
        names = symbols(unsolved)
        coefficients = dict(unsolved.terms) if isinstance(unsolved, Size) else {}
        # `names` is also the monomial of the symbol, and () that of the constant.
        is_linear = len(names) == 1 and coefficients.keys() <= {names, ()}  # factor * symbol + constant
        if is_linear:
            factor, constant = coefficients[names], coefficients.get((), 0)
            solution, remainder = divmod(number - constant, factor)
            if remainder or solution < 0:
                raise ShardingError(f"dimension {dim} of {subject} is {number}; expected a size of the form {unsolved}")
            solved[names[0]] = solution
        elif not names and unsolved != number:
            shown = f"{expected} = {unsolved}" if is_symbolic(expected) else f"{unsolved}"
            raise ShardingError(f"dimension {dim} of {subject} is {number}; expected {shown}")
