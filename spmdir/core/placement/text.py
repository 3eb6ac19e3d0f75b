"""Print and parse placements by the text template of their class."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import attrs

from spmdir.core.errors import ParseError, ShardingError


@attrs.frozen
class FieldText:
    """How the text of a placement contains a field.

    Attributes:
        pattern: the regular expression of the text of a value.
        read: text → value.
        write: value → text.
    """

    pattern: str
    read: typing.Callable[[str], Any]
    write: typing.Callable[[Any], str]


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of `[2, 3]`."""
    return tuple(int(number) for number in text.strip("[] ").split(",") if number.strip())


def _float_text(value: float) -> str:
    """Return a float as text, whole numbers without `.0`."""
    return repr(float(value)).removesuffix(".0")


FIELD_TEXTS: dict[Any, FieldText] = {
    int: FieldText(r"-?[0-9]+", int, str),
    float: FieldText(r"-?(?:[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|inf)", float, _float_text),
    str: FieldText(r"[A-Za-z_]\w*", str, str),
    tuple[int, ...]: FieldText(r"\[[0-9\s,]*\]", _numbers, lambda value: "[" + ", ".join(map(str, value)) + "]"),
}
"""Type of a field → its text."""

_FIELD = re.compile(r"\{(\w+)\}")


@lru_cache(maxsize=4096)
def print_placement(placement: Any) -> str:
    """Return the text of a placement, by the template of its class."""
    texts = _field_texts(type(placement))
    values = {name: text.write(getattr(placement, name)) for name, text in texts.items()}
    return type(placement).text.format(**values)


@lru_cache(maxsize=4096)
def read_placement(kind: type, text: str) -> Any:
    """Return the placement of class `kind` with this text. If all fields have defaults, the name alone is valid.

    Raises:
        ParseError: the text does not fit the template.
        ShardingError: a validator of a field rejects its value.
    """
    head = head_of(kind.text)  # type: ignore[attr-defined]
    if text.strip() == head and all(field.default is not attrs.NOTHING for field in _fields(kind)):
        return kind()
    match = _pattern(kind).fullmatch(text.strip())
    if match is None:
        raise ParseError(f"'{' '.join(text.split())}' is not a {head}; expected {_expected(kind)}")
    texts = _field_texts(kind)
    try:
        return kind(**{name: texts[name].read(value) for name, value in match.groupdict().items()})
    except (TypeError, ValueError) as error:
        # Validators of attrs raise these errors with several arguments; the first is the message.
        raise ShardingError(f"'{' '.join(text.split())}': {error.args[0] if error.args else error}") from None


def head_of(text: str) -> str:
    """Return the name that a text or template begins with."""
    return text.partition("(")[0].strip()


def _expected(kind: Any) -> str:
    """Return the text of a kind of placement with its fields unbraced: `Cyclic(dim, block)`."""
    return _FIELD.sub(lambda field: field[1], kind.text)


def _fields(kind: Any) -> tuple[Any, ...]:
    """Return the fields that the constructor of a kind of placement takes."""
    return tuple(field for field in attrs.fields(kind) if field.init)


@cache
def field_types(kind: Any) -> Mapping[str, Any]:
    """Return name of a field → its type, in the order of the text of a placement."""
    types = typing.get_type_hints(kind)
    return {name: types[name] for name in _field_texts(kind)}


@cache
def _field_texts(kind: Any) -> Mapping[str, FieldText]:
    """Return name of a field → how the text contains it, in the order of the template.

    Raises:
        ParseError: the template omits a field, has an unknown one, or nothing between two; or the type of a field is
            not in FIELD_TEXTS.
    """
    types = typing.get_type_hints(kind)
    template_names, fields = _FIELD.findall(kind.text), [field.name for field in _fields(kind)]
    if sorted(template_names) != sorted(fields):
        raise ParseError(
            f"the text '{kind.text}' of {kind.__name__} names {template_names}; expected each of its fields {fields}"
        )
    parts = _FIELD.split(kind.text)
    # The names of fields are at odd indices, and the texts between them at even indices.
    for left, separator, right in zip(parts[1::2], parts[2::2], parts[3::2], strict=False):
        if not separator.strip():
            raise ParseError(
                f"the text '{kind.text}' of {kind.__name__} has nothing between '{left}' and '{right}', so that it "
                "can be read in several ways; expected a comma there"
            )
    for name in template_names:
        if types[name] not in FIELD_TEXTS:
            type_names = ", ".join(getattr(field_type, "__name__", str(field_type)) for field_type in FIELD_TEXTS)
            raise ParseError(
                f"field '{name}' of {kind.__name__} has the type {types[name]}; expected one of {type_names}"
            )
    return {name: FIELD_TEXTS[types[name]] for name in template_names}


@cache
def _pattern(kind: Any) -> re.Pattern[str]:
    """Return the regular expression of the texts of a kind of placement; it has a group per field."""
    texts = _field_texts(kind)
    # The split has literal texts at even indices and names of fields at odd indices.
    parts = _FIELD.split(kind.text)
    pattern = ""
    for index, part in enumerate(parts):
        pattern += rf"\s*(?P<{part}>{texts[part].pattern})\s*" if index % 2 else _spaced(part)
    return re.compile(pattern, re.ASCII)


def _spaced(text: str) -> str:
    """Return a pattern for literal text that allows spaces around punctuation."""
    return r"\s*".join(map(re.escape, re.findall(r"\w+|[^\w\s]", text)))
