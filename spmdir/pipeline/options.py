"""Convert texts to passes and their options, by the types of dataclass fields, and back."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from importlib import import_module
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from spmdir.core.byte_size import Bytes
from spmdir.core.errors import ParseError, did_you_mean
from spmdir.core.number_text import integer, real
from spmdir.pipeline.pass_table import PASSES, PassTable

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

Count = Annotated[int, "from 0 on"]
"""The type of an option that is an integer of at least 0."""


Fraction = Annotated[float, "from 0 on"]
"""The type of an option that is a fraction of at least 0."""


class _Factor(float):
    """A number of at least 1, parsed from text or given as a number.

    Raises:
        ValueError: the text is not such a number.
    """

    def __new__(cls, value: str | float) -> _Factor:
        number = real(value) if isinstance(value, str) else value
        if not number >= 1:
            raise ValueError(value)
        return super().__new__(cls, number)


Factor = Annotated[_Factor, "from 1 on"]
"""The type of an option that is a factor of at least 1."""


def load_pass(name: str, passes: PassTable = PASSES) -> type[ModulePass]:
    """Return the class of the pass `name`. This may import its module.

    Raises:
        ParseError: the pass is unknown.
    """
    if name not in passes:
        raise ParseError(f"unknown pass '{name}'; expected one of {', '.join(passes)}{did_you_mean(name, passes)}")
    entry = passes[name]
    if not isinstance(entry, str):
        return entry
    module_name, _, class_name = entry.partition(":")
    return getattr(import_module(module_name), class_name)


def make_pass(name: str, options: Mapping[str, str], passes: PassTable = PASSES) -> ModulePass:
    """Return the pass `name` with its `options` given as texts. Dashes in option names are underscores of fields.

    Raises:
        ParseError: the pass or an option is unknown, or a value does not have the option's type.
    """
    kind = load_pass(name, passes)
    option_types = pass_options(kind)
    # A pass may have one option that is a dict. It collects all options that are not fields, such as sizes by name.
    mapping_field = next((field for field, hint in option_types.items() if get_origin(hint) is dict), None)
    values: dict[str, Any] = {}
    for key, text in options.items():
        field = key.replace("-", "_")
        if field not in option_types and mapping_field is not None:
            values.setdefault(mapping_field, {})[key] = _parse_number(name, key, text)
            continue
        if field not in option_types:
            option_names = [_dashed(option) for option in option_types]
            listed = ", ".join(option_names) or "no options"
            raise ParseError(
                f"pass '{name}' has no option '{key}'; expected {listed}{did_you_mean(_dashed(key), option_names)}"
            )
        try:
            values[field] = _convert(text, option_types[field])
        except ValueError:
            raise ParseError(
                f"option '{key}' of pass '{name}' cannot be '{text}'; expected {_type_text(option_types[field])}"
            ) from None
    return kind(**values)


def _dashed(option: str) -> str:
    return option.replace("_", "-")


def _parse_number(name: str, key: str, text: str) -> int:
    """Return the number of an entry of an option that is a dict; raise ParseError if the text is no number."""
    if not (text.isascii() and text.isdecimal()):
        raise ParseError(f"option '{key}' of pass '{name}' cannot be '{text}'; expected an integer")
    return int(text)


def pass_options(kind: type[ModulePass]) -> dict[str, Any]:
    """Return name → type of the options of a pass class."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def changed_options(pass_: ModulePass) -> tuple[tuple[str, str], ...]:
    """Return the options of a pass that differ from their defaults, with their values as texts."""
    fields = [field for field in dataclasses.fields(pass_) if getattr(pass_, field.name) != field.default]
    return tuple((_dashed(field.name), _text(getattr(pass_, field.name))) for field in fields)


def _text(value: Any) -> str:
    """Return the text of the value of an option, as in a pipeline."""
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "none"}[value]
    return str(value)


def describe(name: str, passes: PassTable = PASSES) -> tuple[str, list[str]]:
    """Return the first line of a pass's docstring, and lines with its stages and options.

    The line of an option has the form `option: type = default`. A pass that declares no stages has no line for them.
    """
    kind = load_pass(name, passes)
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    lines: list[str] = []
    requires, produces = (getattr(kind, attribute, None) for attribute in ("requires", "produces"))
    if requires:
        lines.append(f"stage {requires} → {produces}" if produces else f"from stage {requires} on")
    for option, hint in pass_options(kind).items():
        if get_origin(hint) is dict:  # its keys are names, such as those of sizes
            lines.append("NAME: int")
        else:
            lines.append(f"{_dashed(option)}: {_type_text(hint)} = {defaults[option]}")
    return (kind.__doc__ or "").strip().partition("\n")[0], lines


def _convert(text: str, kind: Any) -> Any:
    """Convert `text` to a value of type `kind`; raise ValueError if that is impossible.

    For a union, the first member that accepts the text converts it.
    """
    origin, members = get_origin(kind), get_args(kind)
    if origin is Annotated:  # Count, Fraction or Factor; a Factor checks its lower bound itself
        value = _convert(text, members[0])
        if not 0 <= value < math.inf:
            raise ValueError(text)
        return value
    if origin is tuple:
        return tuple(_convert(part, members[0]) for part in filter(None, text.split(",")))
    if origin is Literal:
        return members[[str(member) for member in members].index(text)]
    if origin in (Union, UnionType):
        for member in members:
            with contextlib.suppress(ValueError):
                return _convert(text, member)
        raise ValueError(text)
    if kind is bool:
        return ("false", "true").index(text) == 1
    if kind is NoneType:
        if text != "none":
            raise ValueError(text)
        return None
    return {int: integer, float: real}.get(kind, kind)(text)


def _type_text(kind: Any) -> str:
    """Return the text of the type of an option, for errors and help."""
    origin, members = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return f"{_type_text(members[0])} {members[1]}"
    if origin is dict:
        return "each by its name, as in {s0=8 s1=5}"
    if origin is tuple:
        return f"{_type_text(members[0])},…"
    if origin is Literal:
        return "|".join(map(str, members))
    if origin in (Union, UnionType):
        return "|".join(map(_type_text, members))
    return {bool: "true|false", NoneType: "none", Bytes: "a size", _Factor: "a number"}.get(kind) or kind.__name__
