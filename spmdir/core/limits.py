"""Limits of inputs: an input that exceeds one is an error at once, instead of minutes of computation."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import attrs

from spmdir.core.errors import LimitError, Location, text_location


@attrs.frozen
class Limit:
    """The largest accepted number of something.

    Attributes:
        quantity: the counted objects, such as "ranks of a mesh".
        most: the largest accepted number.
    """

    quantity: str
    most: int

    def check(self, count: int, where: Location | None = None) -> None:
        """Raise LimitError if `count` exceeds the limit."""
        if count > self.most:
            raise self.error(count, where)

    def error(self, count: object, where: Location | None = None) -> LimitError:
        """Return the error for a number that exceeds the limit."""
        shown = count if not isinstance(count, int) or count < 10**30 else "a number of more than 30 digits"
        return LimitError(f"too many {self.quantity}: found {shown}, expected at most {self.most}", where)


CHARACTERS = Limit("bytes of text", 1 << 24)
RANKS = Limit("ranks of a mesh", 1 << 20)
SIMULATED = Limit("ranks of a simulation", 4096)
ENUMERATED = Limit("ranks of an axis with a placement evaluated rank by rank", 1 << 16)
EXCHANGED = Limit("ranks of an exchange", 64)
RING = Limit("ranks of a ring in a local form", 256)
AXES = Limit("axes of a mesh", 6)
DIMENSIONS = Limit("dimensions of a tensor", 64)
ELEMENTS = Limit("elements of a tensor", 2**63 // 16 - 1)  # the bytes of elements of 16 bytes fit into 63 bits
RANGES = Limit("separate ranges of a dimension in one shard", 1 << 18)
NESTING = Limit("levels of nested brackets", 64)
OPERATORS = Limit("operators in one expression", 200)
DIGITS = Limit("digits of a number", 40)
TERMS = Limit("terms of a size", 1000)
FRAMES = Limit("positions in one location", 256)
MISTAKES = Limit("errors in rules", 100)
INLINED = Limit("ops after inlining", 1 << 18)

ALL = (
    CHARACTERS,
    RANKS,
    SIMULATED,
    ENUMERATED,
    EXCHANGED,
    RING,
    AXES,
    DIMENSIONS,
    ELEMENTS,
    RANGES,
    NESTING,
    OPERATORS,
    DIGITS,
    TERMS,
    FRAMES,
    MISTAKES,
    INLINED,
)

_TOKEN = re.compile(
    rf"""(?P<skipped>"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|#[^\n]*|//[^\n]*)|[()\[\]{{}}]"""
    rf"|(?<![\w.])[0-9]{{{DIGITS.most + 1},}}"
)
_WIDE_TYPE = re.compile(rf"tensor<(?:(?:[0-9]+|\?|\[[^\]]*\])x){{{DIMENSIONS.most + 1}}}")


def check_shape(shape: Iterable[int]) -> None:
    """Raise LimitError if a shape exceeds the limits of torch. Negative sizes are unknown and count as 1."""
    sizes = tuple(shape)
    DIMENSIONS.check(len(sizes))
    ELEMENTS.check(math.prod(max(size, 1) for size in sizes))


def check_nesting(text: str, file: str, first_line: int = 1) -> None:
    """Raise a located LimitError if brackets are nested too deeply or a number has too many digits.

    Strings and comments, which begin with `#` or `//`, are skipped.
    """
    depth = 0
    for match in _TOKEN.finditer(text):
        if match["skipped"]:
            continue
        if match[0][0].isdigit():
            raise DIGITS.error(len(match[0]), text_location(text, match.start(), file, first_line))
        depth += 1 if match[0] in "([{" else -1
        if depth > NESTING.most:
            raise NESTING.error(depth, text_location(text, match.start(), file, first_line))


def check_types(text: str, file: str, first_line: int = 1) -> None:
    """Raise a located LimitError if a tensor type in `text` has too many dimensions."""
    if match := _WIDE_TYPE.search(text):
        dimensions = text.count("x", match.start(), text.find(">", match.end()))
        raise DIMENSIONS.error(dimensions, text_location(text, match.start(), file, first_line))
