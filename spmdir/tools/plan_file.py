"""Plan files: the shardings that a user gives a model, as TOML.

out_shardings = ["dp: S(0)", "?"]

[shardings]
x = "dp: S(0)"
"model.layers.*.mlp.up_proj.weight" = "tp: S(0)"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from spmdir.errors import Location, ParseError, SpmdirError, did_you_mean
from spmdir.limits import check_nesting
from spmdir.mesh import Mesh
from spmdir.sharding import Sharding, as_sharding

_KEYS = ("out_shardings", "shardings")
_INDENT = 80
"""How many blanks a key may have around it to be found."""

_OPEN = "?"


@attrs.frozen
class Plan:
    """What a plan file says.

    Attributes:
        shardings: input name, parameter name or glob → sharding, in the order of the file.
        out_shardings: one entry an output, None where it is left open; None if the file gives none.
    """

    shardings: Mapping[str, Sharding]
    out_shardings: tuple[Sharding | None, ...] | None


def read_plan(text: str, file: str, mesh: Mesh) -> Plan:
    """The plan that `text` spells for `mesh`.

    Raises:
        ParseError, ShardingError: the text is no plan, or a sharding does not fit the mesh; with its place.
    """
    check_nesting(text, file)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _toml_refusal(error, text, file) from None
    for key in document:
        if key not in _KEYS:
            known = " and ".join(_KEYS)
            raise ParseError(
                f"a plan has no '{key}'; it has {known}{did_you_mean(key, _KEYS)}", _place(text, file, key)
            )
    shardings, outputs = document.get("shardings", {}), document.get("out_shardings")
    if not isinstance(shardings, dict):
        raise ParseError("'shardings' is no table; write it as [shardings]", _place(text, file, "shardings"))
    if outputs is not None and not isinstance(outputs, list):
        raise ParseError("'out_shardings' is no list; write [\"dp: S(0)\", …]", _place(text, file, "out_shardings"))
    return Plan(
        {name: _sharding(value, mesh, partial(_place, text, file, name, value)) for name, value in _flat(shardings)},
        None if outputs is None else tuple(
            None if value == _OPEN else _sharding(value, mesh, partial(_place, text, file, "out_shardings", value))
            for value in outputs
        ),
    )  # fmt: skip


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name → value: TOML reads an unquoted `a.b = …` as a table in a table."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _sharding(value: Any, mesh: Mesh, place: Callable[[], Location]) -> Sharding:
    if not isinstance(value, str):
        raise ParseError(f'{value!r} is no sharding; expected text such as "dp: S(0), tp: R"', place())
    try:
        return as_sharding(value, mesh)
    except SpmdirError as error:
        raise type(error)(error.message, place()) from None


def _place(text: str, file: str, key: str, value: Any = None) -> Location:
    """Where `value` stands behind `key`, or else where `key` stands."""
    for name in (key, key.rpartition(".")[2]):
        start = text.find(name)
        while start >= 0 and not _is_key(text, start, start + len(name)):
            start = text.find(name, start + 1)
        if start >= 0:
            found = text.find(value, start + len(name)) if isinstance(value, str) else -1
            line = text.rfind("\n", 0, start) + 1
            own = start - len(text[line:start].lstrip())
            return _location(text, file, own if found < 0 else found)
    return Location(file, 1, 1)


def _is_key(text: str, start: int, end: int) -> bool:
    """Whether what stands from `start` to `end` of a TOML text begins its line, and an equals sign or ] follows."""
    before = text[max(text.rfind("\n", 0, start), start - _INDENT) + 1 : start]
    after = text[end : end + _INDENT].lstrip("\"' \t")
    return not before.strip("[\"' \t\r") and after.startswith(("=", "]"))


def _location(text: str, file: str, position: int) -> Location:
    return Location(file, text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position))


def _toml_refusal(error: tomllib.TOMLDecodeError, text: str, file: str) -> ParseError:
    message = str(error)
    at = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)\Z", message)
    if at is None or at[1] is None:
        place = _location(text, file, len(text))
    else:
        place = Location(file, int(at[1]), int(at[2]))
    return ParseError(message[: at.start()] if at else message, place)
