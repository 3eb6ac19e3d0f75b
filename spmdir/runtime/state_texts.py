"""Texts of Python values that are the same in every process, for facts about state."""

from __future__ import annotations

import decimal
import enum
import fractions
import pathlib
import types
import zlib
from typing import Any

import torch

COMPARED = (int, float, complex, str, bytes, torch.device, torch.Size, range, slice, pathlib.PurePath,
             decimal.Decimal, fractions.Fraction)  # fmt: skip
SINGLETONS = (type(None), bool, enum.Enum, torch.dtype, torch.layout, torch.memory_format, type(NotImplemented),
               type(Ellipsis))  # fmt: skip
"""Types of plain values that are compared by identity; those above by type and value."""


def code_digest(code: types.CodeType) -> int:
    """Return a checksum of a code object that is the same in all processes of one Python version."""
    nested = tuple(code_digest(each) if isinstance(each, types.CodeType) else text_of(each) for each in code.co_consts)
    return zlib.crc32(repr((code.co_code, code.co_names, nested)).encode())


def class_name(value: Any) -> str:
    """Return `a MODULE.CLASS` of a value."""
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def text_of(value: Any) -> str:
    """Return a text of a key or element that has no addresses in it."""
    if isinstance(value, (frozenset, set)):
        return "{" + ", ".join(sorted(map(text_of, value))) + "}"
    return repr(value) if isinstance(value, (*COMPARED, *SINGLETONS, tuple)) else class_name(value)


def abbreviated(values: Any) -> str:
    """Return a text of a container of plain values: a checksum stands for the rest of many."""
    text = ", ".join(map(text_of, values)) if isinstance(values, (set, frozenset)) else repr(values)
    return text if len(text) <= 200 else f"{text[:200]}… {zlib.crc32(text.encode()):08x}"


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, text, flag or the like, or a list of these."""
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return isinstance(value, (*SINGLETONS, *COMPARED))
