"""Plan files: the user annotations of a model, as TOML.

out_shardings = ["dp: S(0)", "?"]

[shardings]
x = "dp: S(0)"
"model.layers.*.mlp.up_proj.weight" = "tp: S(0)"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from spmdir.core.errors import Location, ParseError, SpmdirError, did_you_mean
from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding, as_sharding
from spmdir.core.toml_text import located_key, place_of, read_toml

_KEYS = ("out_shardings", "shardings")
_OPEN = "?"


@attrs.frozen
class PlanFile:
    """The contents of a plan file.

    Attributes:
        shardings: input name, parameter name or glob → sharding, in the order of the file.
        out_shardings: one entry an output, None where it is left open; None if the file gives none.
    """

    shardings: Mapping[str, Sharding]
    out_shardings: tuple[Sharding | None, ...] | None


def read_plan(text: str, file: str, mesh: Mesh) -> PlanFile:
    """Return the plan that `text` spells for `mesh`.

    Raises:
        ParseError, ShardingError: the text is not a plan, or a sharding does not fit the mesh; with its place.
    """
    document = read_toml(text, file)
    for key in document:
        if key not in _KEYS:
            known = " and ".join(_KEYS)
            raise ParseError(
                f"a plan has no '{key}'; it has {known}{did_you_mean(key, _KEYS)}", place_of(text, file, key)
            )
    shardings, outputs = document.get("shardings", {}), document.get("out_shardings")
    if not isinstance(shardings, dict):
        raise ParseError("'shardings' is not a table; write it as [shardings]", place_of(text, file, "shardings"))
    if outputs is not None and not isinstance(outputs, list):
        raise ParseError(
            "'out_shardings' is not a list; write [\"dp: S(0)\", …]", place_of(text, file, "out_shardings")
        )
    return PlanFile(
        {
            located_key(text, file, name): _sharding(value, mesh, partial(place_of, text, file, name, value))
            for name, value in _flat(shardings)
        },
        None if outputs is None else tuple(
            None if value == _OPEN else _sharding(value, mesh, partial(place_of, text, file, "out_shardings", value))
            for value in outputs
        ),
    )  # fmt: skip


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted name and value: TOML reads an unquoted `a.b = …` as a table in a table."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _sharding(value: Any, mesh: Mesh, place: Callable[[], Location]) -> Sharding:
    if not isinstance(value, str):
        raise ParseError(f'{value!r} is not a sharding; expected text such as "dp: S(0), tp: R"', place())
    try:
        return as_sharding(value, mesh)
    except SpmdirError as error:
        raise type(error)(error.message, place()) from None
