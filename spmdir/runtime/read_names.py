"""Select the names of a namespace that executed code reads, and describe changes of the namespace as text."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import attrs
from torch import nn

from spmdir.runtime.executed_code import is_library_module
from spmdir.runtime.state_values import text_of

_DOCUMENTATION = frozenset({
    "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__",
    "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__", "__firstlineno__", "__module__",
    "__orig_bases__", "__parameters__", "__qualname__", "__slotnames__", "__slots__", "__static_attributes__",
    "__weakref__", "_abc_impl",
})  # fmt: skip
"""Attributes of classes that do not affect the behaviour of objects."""


@attrs.frozen(eq=False)
class NamesRead:
    """Selects from a namespace the names that code reads.

    Attributes:
        names: the names of attributes that the code reads.
        code: the executed code objects.
        reads_every: whether the code reads all names.
        is_class: whether the namespace is that of a class. Operators and calls read further names of it.
        omitted: names that are left out.
    """

    names: Set[str]
    code: Set[types.CodeType]
    reads_every: bool = False
    is_class: bool = False
    omitted: frozenset[str] = frozenset()

    def __call__(self, table: Mapping[str, Any]) -> list[str]:
        """Return the names of a namespace that are read, in alphabetic order."""
        if not self.is_class and not self.reads_every:
            return sorted((table.keys() & self.names) - self.omitted)
        return sorted(name for name in table if isinstance(name, str) and self._reads(name, table[name]))

    def _reads(self, name: str, value: Any) -> bool:
        """Return whether the code may read the attribute `name`, which has this value."""
        if self.is_class:
            # Python itself calls special methods, so they count as read.
            is_read = name.startswith("__") or name in self.names or executes(value, self.code)
            return (is_read or self.reads_every) and name not in _DOCUMENTATION
        return name not in self.omitted


def executes(value: Any, code: Set[types.CodeType]) -> bool:
    """Return whether the code of a function, method or property is in `code`."""
    value = getattr(value, "fget", None) if isinstance(value, property) else getattr(value, "__func__", value)
    return isinstance(value, types.FunctionType) and inspect.unwrap(value).__code__ in code


def describe_names_change(
    path: str, read: Callable[[Mapping[str, Any]], list[str]], before: list[str], table: Mapping[str, Any]
) -> str:
    """Return a text for the first name of a namespace that was added or removed, else for a change of their order.

    Args:
        path: the path of the object with this namespace.
        read: namespace → the names in it that the code reads.
        before: these names during the trace.
        table: the present namespace.
    """
    names_now = read(table)
    for name in names_now:
        if name not in before:
            return f"{path}.{name} was absent and is {text_of(table[name])}"
    for name in before:
        if name not in names_now:
            return f"{path}.{name} was there and is gone"
    return f"the order of names in {path} was {before} and is {names_now}"


def describe_values_change(path: str, names: list[str], before: tuple[Any, ...], values_now: tuple[Any, ...]) -> str:
    """Return a text for the first value of a namespace that is another object now.

    Args:
        path: the path of the object with this namespace.
        names: the names of the values.
        before, values_now: the values during the trace and at present.
    """
    name, old_value, new_value = names[0], before[0], values_now[0]
    for candidate, candidate_before, candidate_now in zip(names, before, values_now, strict=True):
        if candidate_before is not candidate_now:
            name, old_value, new_value = candidate, candidate_before, candidate_now
            break
    old_text, new_text = text_of(old_value), text_of(new_value)
    return f"{path}.{name} was {old_text} and is {'another one' if old_text == new_text else new_text}"


def is_library_class(kind: type) -> bool:
    """Return whether a class belongs to Python, torch or spmdir."""
    return is_library_module(str(vars(kind).get("__module__", "builtins")))


def slots_of(kind: type) -> Iterator[str]:
    """Yield the names of the attributes in `__slots__` of a class and its bases, as Python stores private names."""
    for owner in kind.__mro__:
        slots = vars(owner).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                is_private = name.startswith("__") and not name.endswith("__")  # Python adds the name of the class
                yield f"_{owner.__name__.lstrip('_')}{name}" if is_private else name


def table_of(value: Any) -> Any:
    """Return the namespace of an object, None if it has none."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


@functools.lru_cache(maxsize=4096)
def has_own_lookup(kind: type) -> bool:
    """Return whether a class computes attributes in Python, such as a configuration with aliases."""
    return any(
        name in vars(owner)
        for owner in kind.__mro__
        if owner is not nn.Module and not is_library_class(owner)
        for name in ("__getattr__", "__getattribute__")
    )


def is_fixed(kind: type) -> bool:
    """Return whether a class is implemented in C. Attributes of such a class cannot be set."""
    return not kind.__flags__ & _HEAP or bool(kind.__flags__ & _IMMUTABLE)


@functools.lru_cache(maxsize=4096)
def base_in_c(kind: type) -> type:
    """Return the base class implemented in C that defines the internal state of objects of `kind`."""
    return next(owner for owner in kind.__mro__ if is_fixed(owner) or _has_own_new(owner))


def _has_own_new(owner: type) -> bool:
    """Return whether a class defines `__new__` in C, and does not inherit it."""
    new = vars(owner).get("__new__")
    return isinstance(new, types.BuiltinFunctionType) and new.__self__ is owner


_HEAP, _IMMUTABLE = 1 << 9, 1 << 8
"""Flags of classes, as CPython's `Py_TPFLAGS_HEAPTYPE` and `Py_TPFLAGS_IMMUTABLETYPE`."""
