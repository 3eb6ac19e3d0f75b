"""Values of Python state: texts that are equal in all processes, and keys by which values are compared."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import enum
import fractions
import hashlib
import io
import logging
import math
import os
import pathlib
import pickle
import random
import re
import struct
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spmdir.torch_interop.ops import OpOverload, OpOverloadPacket

IDENTICAL = (type(None), bool, torch.dtype, torch.layout, torch.memory_format, type(NotImplemented), type(Ellipsis),
             types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
             types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType, io.IOBase,
             OpOverload, OpOverloadPacket, type(os.environ))  # fmt: skip
"""Types of values that are compared only by identity: they do not change, or the part that changes is not read."""

PLAIN = (int, float, complex, str, bytes, bytearray, array.array, range, slice, torch.device, torch.Size,
         pathlib.PurePath, decimal.Decimal, fractions.Fraction, datetime.date, datetime.time, datetime.timedelta,
         datetime.tzinfo, re.Pattern, np.ndarray, np.generic, np.dtype, np.random.RandomState,
         np.random.Generator, random.Random, logging.Logger)  # fmt: skip
"""Types of values that are compared by type and `content`."""

_CONTENTS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (np.ndarray, lambda value: (value.dtype.str, value.shape, _elements(value))),
    (np.generic, lambda value: (value.dtype.str, value.tobytes())),
    (float, lambda value: struct.pack("d", value)),
    (complex, lambda value: struct.pack("dd", value.real, value.imag)),
    (int, int.__int__),
    (str, str.__str__),
    (bytes, bytes),
    ((bytearray, array.array), lambda value: (getattr(value, "typecode", ""), bytes(value))),
    (re.Pattern, lambda value: (value.pattern, value.flags)),
    (np.random.RandomState, lambda value: repr(value.get_state())),
    (np.random.Generator, lambda value: repr(value.bit_generator.state)),
    (random.Random, lambda value: value.getstate()),
    (logging.Logger, lambda value: (value.name, value.getEffectiveLevel(), value.disabled)),
)  # fmt: skip

"""Type → a function that returns the content of its values. Other plain values have their `repr`."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def _elements(value: np.ndarray) -> Any:
    """Return the elements of an array as bytes; for an array of objects, as nested lists."""
    return value.tolist() if value.dtype.hasobject else value.tobytes()


def content(value: Any) -> Any:
    """Return a key of a value of a type in PLAIN: equal keys mean the same type and the same bits.

    So 0.0 and -0.0 have different keys, and a NaN has the key of its bits. Types without an entry use their `repr`.
    """
    for kinds, read in _CONTENTS:
        if isinstance(value, kinds):
            return type(value), read(value)
    return type(value), repr(value)


def is_simple(value: Any) -> bool:
    """Return whether `==` distinguishes a value from all other values of its type."""
    if type(value) is float:
        return not math.isnan(value) and value != 0  # NaN != NaN, and 0.0 == -0.0
    return type(value) in (int, str, bool, bytes, type(None))


def reduced(value: Any) -> Any:
    """Return the state of an object implemented in C, for comparisons.

    This is its pickle, or else the text of what its `__reduce_ex__` returns. It is None if both fail.
    """
    for read in (pickle.dumps, lambda value: repr(value.__reduce_ex__(4))):
        with suppress(Exception):
            return read(value)
    return None


def key_content(value: Any) -> Any:
    """Return the key that identifies a key of a dict or an element of a set: its content, or its id for an object."""
    if isinstance(value, (tuple, frozenset)):
        return type(value), type(value)(map(key_content, value))
    if isinstance(value, PLAIN):
        return content(value)
    return id(value)


def is_plain(value: Any, depth: int = 4) -> bool:
    """Return whether a value is of a type in IDENTICAL or PLAIN, or a container of such values up to `depth` levels."""
    if type(value) is dict:
        return depth > 0 and all(is_plain(key, 0) and is_plain(item, depth - 1) for key, item in value.items())
    if type(value) in (list, tuple, set, frozenset):
        return depth > 0 and all(is_plain(item, depth - 1) for item in value)
    return isinstance(value, (*IDENTICAL, *PLAIN))


def text_of(value: Any) -> str:
    """Return a text of a value that is equal in all processes; for an object, the name of its class."""
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} {list(value.shape)}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, (type, types.FunctionType)):
        return f"{'class' if isinstance(value, type) else 'function'} {value.__module__}.{value.__qualname__}"
    if isinstance(value, type(os.environ)):
        return "the environment"
    if isinstance(value, np.ndarray):
        digest = hashlib.blake2b(repr(content(value)).encode(), digest_size=8).hexdigest()
        return f"an array of {value.dtype} {list(value.shape)} with the digest {digest}"
    if isinstance(value, logging.Logger):  # levels may differ between ranks
        return f"the logger {value.name}"
    if type(value) in (set, frozenset) and is_plain(value):
        return "{" + ", ".join(sorted(map(text_of, value))) + "}"
    if is_plain(value) or isinstance(value, enum.Enum):
        return _ADDRESS.sub("", repr(value))
    size = f" of {len(value)}" if isinstance(value, (dict, list, tuple, set, frozenset, collections.deque)) else ""
    return f"a {class_name(type(value))}{size}"


def class_name(kind: type) -> str:
    """Return the name of a class with its module; without it for builtins."""
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
