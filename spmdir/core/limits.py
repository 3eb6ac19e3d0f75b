"""The limits of inputs: what is beyond one is an error at once, in place of a tool that says nothing for minutes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import attrs

from spmdir.core.errors import LimitError, Location, text_location


@attrs.frozen
class Limit:
    """The most that there may be of something.

    Attributes:
        what: what is counted, as in `ranks of a mesh`.
        most: the largest number that is accepted.
    """

    what: str
    most: int

    def check(self, found: int, where: Location | None = None) -> None:
        """Raise LimitError if `found` is more than the limit."""
        if found > self.most:
            raise self.error(found, where)

    def error(self, found: object, where: Location | None = None) -> LimitError:
        """Return the error of having `found`."""
        shown = found if not isinstance(found, int) or found < 10**30 else "a number of more than 30 digits"
        return LimitError(f"too many {self.what}: found {shown}, expected at most {self.most}", where)


CHARACTERS = Limit("bytes of text", 1 << 24)
RANKS = Limit("ranks of a mesh", 1 << 20)
SIMULATED = Limit("ranks of a simulation", 4096)
ENUMERATED = Limit("ranks of an axis that a placement is asked about one by one", 1 << 16)
EXCHANGED = Limit("ranks of an exchange", 64)
RING = Limit("ranks of a ring in a local form", 256)
AXES = Limit("axes of a mesh", 6)
DIMENSIONS = Limit("dimensions of a tensor", 64)
ELEMENTS = Limit("elements of a tensor", 2**63 // 16 - 1)
RANGES = Limit("separate ranges of a dimension in one shard", 1 << 18)
NESTING = Limit("brackets inside one another", 64)
OPERATORS = Limit("operators in one expression", 200)
DIGITS = Limit("digits of a number", 40)
TERMS = Limit("terms of a size", 1000)
FRAMES = Limit("places in one location", 256)
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
    """Raise LimitError if a tensor of these sizes is not a tensor of torch; negative sizes are not known yet."""
    sizes = tuple(shape)
    DIMENSIONS.check(len(sizes))
    ELEMENTS.check(math.prod(max(size, 1) for size in sizes))


def check_nesting(text: str, file: str, first_line: int = 1) -> None:
    """Raise LimitError, located, if brackets are nested too deeply or a number is too long to be read one by one."""
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
    """Raise LimitError, located, if a tensor type in `text` has too many dimensions."""
    if match := _WIDE_TYPE.search(text):
        found = text.count("x", match.start(), text.find(">", match.end()))
        raise DIMENSIONS.error(found, text_location(text, match.start(), file, first_line))
