"""A walk over the Python state that executed code can read, which notes facts and writes their check."""

from __future__ import annotations

import argparse
import collections
import functools
import inspect
import sys
import threading
import types
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import attrs
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from spmdir.runtime.executed_code import ExecutedCode, global_names, is_library_module, is_users_module
from spmdir.runtime.state_check import CheckWriter
from spmdir.runtime.state_texts import COMPARED, SINGLETONS, abbreviated, class_name, code_digest, is_plain, text_of

_ATTRIBUTE_HOLDERS = (types.SimpleNamespace, argparse.Namespace, collections.UserDict, collections.UserList,
                      threading.local)  # fmt: skip
_MODULE_TABLES = frozenset({key for key in vars(nn.Module()) if key.startswith("_")} - {"_forward_hooks"})
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_UNSET = object()


@attrs.frozen(eq=False)
class Caches:
    """What keeps results of the code for later calls.

    Attributes:
        functions: those under `functools.cache` and the like.
        dicts: path → dict with fake tensors in it.
    """

    functions: list[Any] = attrs.field(factory=list)
    dicts: dict[str, dict[Any, Any]] = attrs.field(factory=dict)

    def remove_fakes(self) -> None:
        """Remove the fake tensors that a trace has left."""
        for function in self.functions:
            function.cache_clear()
        for table in self.dicts.values():
            for key in [key for key, value in table.items() if isinstance(value, FakeTensor)]:
                del table[key]


class StateWalk:
    """Visits state, notes facts, and writes the lines of the check."""

    def __init__(
        self,
        code: ExecutedCode,
        names: set[str],
        roots: Mapping[str, Any],
        tensors: bool,
        omitted: frozenset[str],
        caches: frozenset[str],
    ):
        self._code, self._names, self._tensors = code, names, tensors
        self._omitted, self._omitted_caches = omitted, caches
        self.facts: dict[str, str] = {}
        self.tensors: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self.caches = Caches()
        self.names_in_values: set[str] = set()
        self._check = CheckWriter({"NAMES": frozenset(names), "get_dict": object.__getattribute__})
        self._visited: dict[int, str] = {}
        self._kept: list[Any] = []  # so that no id is used twice
        self._root = next(iter(roots.values()))
        modules = [module for root in roots.values() if isinstance(root, nn.Module) for module in root.modules()]
        self._registered = {id(t) for m in modules for t in (*m._parameters.values(), *m._buffers.values())}

    def add_globals(self) -> None:
        """Visit the globals that the code reads, and the Python modules that it imports."""
        done: set[tuple[int, str]] = set()
        for code, values in sorted(self._code.globals.items(), key=lambda item: _place(item[0])):
            for name in sorted(global_names(code)):
                if (id(values), name) in done:
                    continue
                done.add((id(values), name))
                if name in values:
                    path = f"{values.get('__name__', '?')}.{name}"
                    self._visit(values[name], f"{self._check.constant(values)}[{name!r}]", path)
                elif isinstance(sys.modules.get(name), types.ModuleType) and not is_library_module(name):
                    self._visit(sys.modules[name], f"{self._check.constant(sys.modules)}[{name!r}]", name)

    def add_roots(self, roots: Mapping[str, Any]) -> list[str]:
        """Visit the roots, and return the names of the arguments of the check."""
        arguments = [f"root{number}" for number in range(len(roots))]
        self._check.add(f"if {arguments[0]} is None: return True")
        for (path, value), argument in zip(roots.items(), arguments, strict=True):
            self._visit(value, argument, path)
        return arguments

    def compiled(self, arguments: list[str]) -> Callable[..., bool]:
        """Return the check of what has been visited."""
        return self._check.compiled(arguments)

    def _bind(self, expression: str, value: Any, path: str, fact: str) -> str | None:
        """Return a variable that holds `value` in the check; None if the value has been visited, which is compared."""
        if id(value) in self._visited:
            self.facts[path] = "the same object as elsewhere"
            self._check.fail_if(f"{expression} is not {self._visited[id(value)]}")
            return None
        self.facts[path] = fact
        variable = self._visited[id(value)] = f"v{len(self._visited)}"
        self._kept.append(value)
        self._check.add(f"{variable} = {expression}")
        return variable

    def _visit(self, value: Any, expression: str, path: str) -> None:
        kind = type(value)
        if isinstance(value, SINGLETONS):
            self._is(value, expression, path, repr(value))
        elif isinstance(value, COMPARED):
            self._equals(value, expression, path)
        elif isinstance(value, Tensor):
            self._tensor(value, expression, path)
        elif isinstance(value, types.ModuleType):
            self._python_module(value, expression, path)
        elif isinstance(value, type):
            self._class(value, expression, path)
        elif isinstance(value, types.FunctionType):
            self._function(value, expression, path)
        elif isinstance(value, (types.MethodType, functools.partial, staticmethod, classmethod, property)) or hasattr(
            kind, "cache_info"
        ):
            self._parts(value, expression, path)
        elif isinstance(value, nn.Module):
            self._module(value, expression, path)
        elif isinstance(value, (dict, types.MappingProxyType)):
            self._dict(value, expression, path)
        elif isinstance(value, (list, tuple, collections.deque)):
            self._sequence(value, expression, path)
        elif isinstance(value, (set, frozenset)):
            self._set(value, expression, path)
        elif isinstance(value, ContextVar):
            self._visit(value.get(None), f"{expression}.get(None)", path)
        else:
            self._object(value, expression, path)

    def _is(self, value: Any, expression: str, path: str, fact: str) -> None:
        self.facts[path] = fact
        self._check.fail_if(f"{expression} is not {self._check.constant(value)}")

    def _equals(self, value: Any, expression: str, path: str) -> None:
        if isinstance(value, str) and value.isidentifier():
            self.names_in_values.add(value)
        self.facts[path] = repr(value)
        same, kind = self._check.constant(value), self._check.constant(type(value))
        self._check.fail_if(f"(x := {expression}) is not {same} and (type(x) is not {kind} or x != {same})")

    def _tensor(self, value: Tensor, expression: str, path: str) -> None:
        if id(value) in self._registered:
            return
        fact = f"a tensor of {value.dtype} {list(value.shape)}"
        if not self._tensors:
            self.facts[path] = fact
        elif (variable := self._bind(expression, value, path, fact)) is not None:
            reference = weakref.ref(value)
            self.tensors[path], same = (reference, value._version), self._check.constant(reference)
            self._check.fail_if(f"{same}() is not {variable} or {variable}._version != {value._version}")

    def _python_module(self, value: types.ModuleType, expression: str, path: str) -> None:
        self._is(value, expression, path, f"module {value.__name__}")
        if is_users_module(value) and id(value) not in self._visited:
            self._visited[id(value)] = self._check.constant(value)
            self._attributes(value.__name__, vars(value), self._check.constant(vars(value)), False)

    def _class(self, value: type, expression: str, path: str) -> None:
        self._is(value, expression, path, f"class {value.__module__}.{value.__qualname__}")
        self._class_attributes(value)

    def _class_attributes(self, value: type) -> None:
        for owner in value.__mro__:
            if is_library_module(owner.__module__) or id(owner) in self._visited:
                continue
            self._visited[id(owner)] = self._check.constant(owner)
            path, table = f"{owner.__module__}.{owner.__qualname__}", vars(owner)
            variable = self._check.constant(table)
            for key, held in list(table.items()):
                if (key in self._names and not key.startswith("__")) or self._executes(held):
                    self._visit(held, f"{variable}[{key!r}]", f"{path}.{key}")
            self._no_new_names(table, variable)

    def _executes(self, value: Any) -> bool:
        code = getattr(
            inspect.unwrap(getattr(value, "__func__", value)) if callable(value) else value, "__code__", None
        )
        return code in self._code.globals

    def _function(self, value: types.FunctionType, expression: str, path: str) -> None:
        fact = f"function {value.__module__}.{value.__qualname__} {code_digest(value.__code__):08x}"
        variable = self._bind(expression, value, path, fact)
        if variable is None:
            return
        self._check.fail_if(f"{variable}.__code__ is not {self._check.constant(value.__code__)}")
        if value.__code__ not in self._code.globals:
            return
        for part in ("__defaults__", "__kwdefaults__"):
            if getattr(value, part):
                self._visit(getattr(value, part), f"{variable}.{part}", f"{path}.{part}")
        for index, (name, cell) in enumerate(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)):
            content = _content(cell)
            if content is not _UNSET:
                self._visit(content, f"{variable}.__closure__[{index}].cell_contents", f"{path}:{name}")
        if vars(value):
            self._attributes(path, vars(value), f"{variable}.__dict__", False, without={"__wrapped__"})

    def _parts(self, value: Any, expression: str, path: str) -> None:
        """Visit what a callable is made of."""
        variable = self._bind(expression, value, path, f"a {type(value).__name__}")
        if variable is None:
            return
        self._check.fail_if(f"type({variable}) is not {self._check.constant(type(value))}")
        for part in ("__func__", "__self__", "func", "args", "keywords", "fget"):
            if not isinstance(value, type) and hasattr(value, part):
                self._visit(
                    getattr(value, part), f"{variable}.{part}", path if part != "keywords" else f"{path}.keywords"
                )
        if hasattr(type(value), "cache_info"):
            self._visit(value.__wrapped__, f"{variable}.__wrapped__", path)
            self.caches.functions.extend([value] if self._executes(value) else [])

    def _module(self, value: nn.Module, expression: str, path: str) -> None:
        is_root = value is self._root
        variable = self._bind(expression, value, path, "a module" if is_root else class_name(value))
        if variable is None:
            return
        if not is_root:  # a sharded model is of a subclass
            self._check.fail_if(f"type({variable}) is not {self._check.constant(type(value))}")
        self._class_attributes(type(value))
        table = f"{variable}_d"
        self._check.add(f"{table} = {variable}.__dict__")
        without = {*_MODULE_TABLES, "_forward_hooks", *(self._omitted if is_root else ())}
        self._attributes(path, vars(value), table, _has_own_lookup(type(value)), without=without)
        if not is_root:  # the hooks of the root run around a program
            self._hooks(vars(value), table, path)
        for key in ("_parameters", "_buffers"):
            self._registered_tensors(vars(value)[key], f"{table}[{key!r}]", path)
        if not value._modules:
            self._check.fail_if(f"{table}['_modules']")
            return
        self._check.add(f"{variable}_m = {table}['_modules']")
        self._check.fail_if(f"[*{variable}_m] != {self._check.constant([*value._modules])}")
        for name, child in value._modules.items():
            self._visit(child, f"{variable}_m[{name!r}]", f"{path}.{name}")

    def _hooks(self, tables: Mapping[str, Any], variable: str, path: str) -> None:
        self._check.fail_if(" or ".join(f"{variable}[{key!r}]" for key in _HOOKS if not tables[key]) or "False")
        for key in (key for key in _HOOKS if tables[key]):
            self.facts[f"{path}.{key}"] = f"{len(tables[key])} hooks"
            hooks = f"h{self._check.place}"
            self._check.add(f"{hooks} = [*{variable}[{key!r}].values()]")
            self._check.fail_if(f"len({hooks}) != {len(tables[key])}")
            for index, hook in enumerate(tables[key].values()):
                self._visit(hook, f"{hooks}[{index}]", f"{path}.{key}[{index}]")

    def _registered_tensors(self, tensors: Mapping[str, Tensor | None], expression: str, path: str) -> None:
        if not tensors:
            self._check.fail_if(expression)
            return
        variable = f"t{self._check.place}"
        self._check.add(f"{variable} = {expression}")
        self._check.fail_if(f"len({variable}) != {len(tensors)}")
        for name, tensor in tensors.items():
            if tensor is None:
                self.facts[f"{path}.{name}"] = "None"
                self._check.fail_if(f"{variable}[{name!r}] is not None")
            else:
                self.facts[f"{path}.{name}.requires_grad"] = str(tensor.requires_grad)
                self._check.fail_if(f"{variable}[{name!r}].requires_grad is not {tensor.requires_grad}")

    def _dict(self, value: Any, expression: str, path: str) -> None:
        fact = f"a {type(value).__name__}" + (f" of {len(value)} keys" if path not in self._omitted_caches else "")
        variable = self._bind(expression, value, path, fact)
        if variable is None or path in self._omitted_caches:
            return
        self._check.fail_if(f"type({variable}) is not {self._check.constant(type(value))}")
        is_subclass = isinstance(value, dict) and type(value) is not dict
        read_keys = f"[*dict.keys({variable})]" if is_subclass else f"[*{variable}]"
        entries = dict(dict.items(value)) if isinstance(value, dict) else {**value}
        self._check.fail_if(f"{read_keys} != {self._check.constant([*entries])}")
        if not is_subclass and self._compares_at_once(f"{variable}.values()", [*entries.values()]):
            self.facts[path] = abbreviated(entries)
            return
        if isinstance(value, dict) and any(isinstance(held, FakeTensor) for held in entries.values()):
            self.caches.dicts[path] = value
        for key, held in entries.items():
            at = self._check.constant(key)
            read = f"dict.__getitem__({variable}, {at})" if is_subclass else f"{variable}[{at}]"
            self._visit(held, read, f"{path}[{text_of(key)}]")
        self._own_attributes(value, variable, path)

    def _sequence(self, value: Any, expression: str, path: str) -> None:
        variable = self._bind(expression, value, path, f"a {type(value).__name__} of {len(value)}")
        if variable is None:
            return
        self._check.fail_if(
            f"type({variable}) is not {self._check.constant(type(value))} or len({variable}) != {len(value)}"
        )
        if self._compares_at_once(variable, [*value]):
            self.facts[path] = abbreviated(value)
            return
        for index, each in enumerate(value):
            self._visit(each, f"{variable}[{index}]", f"{path}[{index}]")
        self._own_attributes(value, variable, path)

    def _compares_at_once(self, expression: str, values: list[Any]) -> bool:
        """Compare many plain values in one line, and return whether that was possible."""
        if not values or not all(isinstance(each, (*COMPARED, *SINGLETONS)) for each in values):
            return False
        self.names_in_values |= {each for each in values if isinstance(each, str) and each.isidentifier()}
        if all(type(each) is str for each in values):  # else 1, 1.0 and True would be the same
            self._check.fail_if(f"[*{expression}] != {self._check.constant(values)}")
        else:
            types_of = self._check.constant([type(each) for each in values])
            self._check.fail_if(
                f"(x := [*{expression}]) != {self._check.constant(values)} or [*map(type, x)] != {types_of}"
            )
        return True

    def _set(self, value: Any, expression: str, path: str) -> None:
        texts = sorted(map(text_of, value))
        variable = self._bind(expression, value, path, "{" + ", ".join(texts) + "}")
        if variable is not None:
            same, kind = self._check.constant(frozenset(value)), self._check.constant(type(value))
            self._check.fail_if(f"type({variable}) is not {kind} or {variable} != {same}")

    def _object(self, value: Any, expression: str, path: str) -> None:
        kind = type(value)
        if kind.__module__ == "numpy" and hasattr(value, "tobytes"):
            self.facts[path] = f"{class_name(value)} {zlib.crc32(value.tobytes()):08x}"
            same, kind_name = self._check.constant(value.tobytes()), self._check.constant(kind)
            self._check.fail_if(f"type(x := {expression}) is not {kind_name} or x.tobytes() != {same}")
            return
        if is_library_module(kind.__module__) and not isinstance(value, _ATTRIBUTE_HOLDERS):
            if callable(value):
                self._is(value, expression, path, f"{class_name(value)} {getattr(value, '__name__', '')}".strip())
            else:
                self.facts[path] = class_name(value)
                self._check.fail_if(f"type({expression}) is not {self._check.constant(kind)}")
            return
        variable = self._bind(expression, value, path, class_name(value))
        if variable is not None:
            self._check.fail_if(f"type({variable}) is not {self._check.constant(kind)}")
            self._own_attributes(value, variable, path)

    def _own_attributes(self, value: Any, variable: str, path: str) -> None:
        """Visit the attributes of an object and of its class."""
        kind = type(value)
        if not is_library_module(kind.__module__):
            self._class_attributes(kind)
            for slot in (name for owner in kind.__mro__ for name in _slots(owner)):
                if slot in self._names and (held := getattr(value, slot, _UNSET)) is not _UNSET:
                    self._visit(held, f"{variable}.{slot}", f"{path}.{slot}")
        table = _attribute_table(value)
        if table is not None:
            self._check.add(f"{variable}_d = get_dict({variable}, '__dict__')")
            self._attributes(path, table, f"{variable}_d", _has_own_lookup(kind))

    def _attributes(
        self, path: str, table: Mapping[str, Any], variable: str, all_plain: bool, without: Iterable[str] = ()
    ) -> None:
        """Visit the values of a namespace that the code names, or that are plain if it may read any name."""
        all_plain = all_plain or self._code.reads_any_name
        for key, held in list(table.items()):
            if isinstance(key, str) and key not in without and (key in self._names or (all_plain and is_plain(held))):
                self._visit(held, f"{variable}[{key!r}]", f"{path}.{key}")
        self._no_new_names(table, variable, frozenset(without))

    def _no_new_names(self, table: Mapping[str, Any], variable: str, without: frozenset[str] = frozenset()) -> None:
        """Fail if the namespace gets a name that the code has, which would shadow what is read now."""
        known = frozenset(table) | without
        names = self._check.constant(known)
        self._check.fail_if(f"len({variable}) != {len(table)} and not ({variable}.keys() & NAMES) <= {names}")


def _place(code: types.CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_name


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not set yet
        return _UNSET


def _slots(owner: type) -> tuple[str, ...]:
    slots = vars(owner).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _attribute_table(value: Any) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


@functools.lru_cache(maxsize=4096)
def _has_own_lookup(kind: type) -> bool:
    """Return whether a class computes attributes in Python, as a configuration that has other names for them."""
    return any(
        name in vars(owner)
        for owner in kind.__mro__
        if not is_library_module(owner.__module__)
        for name in ("__getattr__", "__getattribute__")
    )
