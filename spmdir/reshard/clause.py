"""Clauses: the keywords with values in the text of a collective, such as `on [tp]` and `dim 0`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from spmdir.core.arguments import Kind
from spmdir.core.declared_fields import caller_place, check_fields
from spmdir.core.errors import ShardingError


@attrs.frozen
class Clause:
    """A keyword with a value in the text of a collective, such as `dim 0`.

    Attributes:
        keyword: its name in the text.
        argument: the name of the op's argument.
        kind: "axes" (a list of mesh axes), "dim" (a dimension of the tensor), "reduction" (a key of
            `spmdir.core.placement.reductions.REDUCTIONS` or the text of a partial placement), "number" (an int from 0
            on), "rank" (the number of a rank in its group), "name" (an identifier) or "flag" (the keyword alone).
    """

    keyword: str
    argument: str
    kind: str

    def __attrs_post_init__(self) -> None:
        check_fields(self, _FIELDS)
        standard = _STANDARD_KINDS.get(self.argument, self.kind)
        if self.kind != standard:
            raise ShardingError(
                f"clause '{self.keyword}' has argument '{self.argument}' of kind '{self.kind}'; expected "
                f"'{standard}', the kind of this argument: change the kind or the argument of the clause",
                caller_place(),
            )

    def holds(self, value: object) -> bool:
        """Return whether `value` is valid for this kind of clause."""
        return _KINDS[self.kind][0](value)

    @property
    def expected(self) -> str:
        """Return a description of valid values, for error messages."""
        return _KINDS[self.kind][1]


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "axes": (
        lambda value: isinstance(value, tuple) and all(isinstance(axis, str) for axis in value),
        "the axes as a list of names, as in `on [dp, tp]`",
    ),
    "dim": (lambda value: type(value) is int, "a number for the dimension"),
    "reduction": (lambda value: isinstance(value, str), "the name of a reduction"),
    "number": (lambda value: type(value) is int and value >= 0, "a number from 0 on"),
    "rank": (lambda value: type(value) is int and value >= 0, "the number of a rank in its group"),
    "name": (lambda value: isinstance(value, str) and value.isidentifier(), "a name"),
    "flag": (lambda value: value is True, "the keyword alone"),
}
"""Kind of a clause → (whether a value is valid, a description of valid values for error messages)."""

IDENTIFIER = Kind(
    lambda value: isinstance(value, str) and value.isascii() and value.isidentifier(),
    "a name of letters, digits and '_', such as 'scatter'",
)
_FIELDS = {
    "keyword": IDENTIFIER,
    "argument": IDENTIFIER,
    "kind": Kind(lambda value: isinstance(value, str) and value in _KINDS, f"one of {', '.join(_KINDS)}"),
}
"""Field of a clause → valid values."""

_STANDARD_KINDS = {"axes": "axes", "dim": "dim", "to_dim": "dim", "reduction": "reduction", "stream": "name"}
"""Argument of the clauses below → the kind that its clauses must have."""

STANDARD_ARGUMENTS = ("axes", "dim", "to_dim", "reduction")
"""The arguments that are fields of `Step` and of ops. Others are stored by name."""

START = "_start"
"""The suffix of the op that starts a collective."""

ON = Clause("on", "axes", "axes")
DIM = Clause("dim", "dim", "dim")
FROM = Clause("from", "dim", "dim")
TO = Clause("to", "to_dim", "dim")
OP = Clause("op", "reduction", "reduction")
STREAM = Clause("stream", "stream", "name")
"""The name of the stream on which a started collective runs."""
