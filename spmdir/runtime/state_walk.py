"""Walk over the Python state that executed code can read, and make a guard of each value.

State consists of the values that are reachable by names that the code reads: from the roots, such as a model and its
loss, and from the globals, classes and closures of the code. A guard has the source of two Python expressions: `read`
reads the present value, and `differs` is true if this value, `x`, is not the value that the trace read. Some of the
guards for `self.l(x) * self.config.k`:

    path             text                      variable  read                      differs
    model.config     a types.SimpleNamespace   v4        v3['config']              type(x) is not c7
    model.config.k   1.0                       v6        v5['k']                   x is not c8 and (… or x != c8)

The names c7 and c8 are constants of the check. Values of other kinds are compared by identity, and by the parts that
can be read.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import attrs
from torch import Tensor, nn

from spmdir.core.errors import UnsupportedError
from spmdir.runtime.executed_code import (
    ACCESSORS,
    EVERY,
    ExecutedCode,
    global_names,
    is_installed,
    is_library_file,
    is_library_module,
)
from spmdir.runtime.read_names import (
    NamesRead,
    base_in_c,
    describe_names_change,
    describe_values_change,
    executes,
    has_own_lookup,
    is_fixed,
    is_library_class,
    slots_of,
    table_of,
)
from spmdir.runtime.state_values import (
    IDENTICAL,
    PLAIN,
    class_name,
    content,
    is_plain,
    is_simple,
    key_content,
    reduced,
    text_of,
)
from spmdir.torch_interop.fake_tensors import FakeTensor
from spmdir.torch_interop.modules import HOOKS, TABLES, own_tables
from spmdir.torch_interop.tensors import version, version_code

_PRIVATE = frozenset(key for key in vars(nn.Module()) if key.startswith("_"))
_CONTAINERS = (dict, types.MappingProxyType, list, tuple, deque, set, frozenset)
_PARTS = ("__func__", "__self__", "func", "args", "keywords", "fget", "fset", "__wrapped__", "default_factory")
_WITH_PARTS = (types.MethodType, staticmethod, classmethod, property, functools.partial, functools.cached_property,
               functools.partialmethod, type(functools.cache(len)))  # fmt: skip
_UNSET = object()
_REPLACED_BY_COMPILE = tuple(f"{nn.Module.__module__}.Module.{name}" for name in ("__init__", "__setstate__"))
"""Functions that torch.compile replaces when a process uses it for the first time. They are not guarded."""


@attrs.frozen(eq=False)
class Guard:
    """A value that the code has read.

    Attributes:
        path: the path of the value, such as `model.config.k`.
        text: the value that the trace read, as text such as `1.0`; equal in all processes.
        variable: the variable of the present value in the check, such as `v6`.
        read: a Python expression for the present value, over the variables of earlier guards.
        differs: a Python expression, true if `x`, the present value, is not the value that the trace read.
        explain: returns a text for the change to a present value, if path and texts do not describe it.
        is_shared: whether ranks with equal models have equal texts. Loaded modules of libraries may differ.
    """

    path: str
    text: str
    variable: str
    read: str
    differs: str
    explain: Callable[[Any], str] | None = None
    is_shared: bool = True

    def change_to(self, value: Any) -> str:
        """Return a text for the change to a present value: `model.config.k was 1.0 and is 2.0`."""
        if self.explain is not None:
            return self.explain(value)
        text = text_of(value)
        return f"{self.path} was {self.text} and is {'another one' if text == self.text else text}"


class StateWalk:
    """Visits the state of code, and makes a guard for each value that the code can read.

    Attributes:
        guards: the guards, in an order in which their expressions can be evaluated.
        of_globals: the number of guards that do not depend on the roots; they come first.
        constants: name in the expressions → value.
        library_values: values of libraries that the code can reach, by id.
        functions: functions under `functools.cache` and the like that the code executes.
        dicts: path → dict that holds fake tensors.
    """

    def __init__(
        self,
        code: ExecutedCode,
        roots: Mapping[str, Any],
        omitted: frozenset[str] = frozenset(),
        caches: frozenset[str] = frozenset(),
    ):
        """Visit the state that `code` can read.

        Args:
            roots: name in messages → object that the code is called with.
            omitted: attributes and tables of hooks of the first root that are not part of the state.
            caches: paths of dicts whose entries are not part of the state.
        """
        self.guards: list[Guard] = []
        self.constants: dict[str, Any] = {
            "content": content, "key_content": key_content, "reduced": reduced, "table_of": table_of, "unset": _UNSET,
        }  # fmt: skip
        self.library_values: dict[int, Any] = {}
        self.functions: list[Any] = []
        self.dicts: dict[str, dict[Any, Any]] = {}
        self._names, self._executed, self._called = frozenset(code.names), code.globals.keys(), code.called
        self._own_names = code.own_names
        self._omitted, self._caches = omitted, caches
        self._constant_names: dict[int, str] = {}
        self._visited: dict[int, tuple[str, str]] = {}  # id of a value → (its variable in the check, its path)
        self._objects: list[str] = []  # variables of values whose identity matters
        self._is_shared = True  # `is_shared` of the guards that are being made
        self._referenced: list[Any] = []  # references, so that no id is reused
        self._root = next(iter(roots.values()))
        modules = [module for root in roots.values() if isinstance(root, nn.Module) for module in root.modules()]
        self._registered = {  # ids of parameters and buffers
            id(tensor) for module in modules for table in own_tables(module) for tensor in table.values()
        }
        self._visit_globals(code)
        self.of_globals = len(self.guards)
        for path, value in roots.items():
            self.visit(value, path, path)
        # The code can reach a function such as `getattr` under another name, and so may read any attribute.
        if any(id(accessor) in self.library_values for accessor in ACCESSORS):
            code.names.add(EVERY)
        # The trace read different objects; if two paths have one object now, this set of ids is smaller.
        ids = f"{{{', '.join(f'id({variable})' for variable in self._objects)}}}"
        self._add_guard(
            "the state", "objects", ids, f"len(x) != {len(self._objects)}", lambda ids: "two objects became one"
        )

    def _visit_globals(self, code: ExecutedCode) -> None:
        """Visit the globals that executed code reads, then the Python modules that functions import."""
        visited: set[tuple[int, str]] = set()
        for code_object, module_globals in sorted(code.globals.items(), key=lambda item: _code_position(item[0])):
            for name in sorted(global_names(code_object)):
                if (id(module_globals), name) not in visited and name in module_globals:
                    read = f"{self._constant_name(module_globals)}[{name!r}]"
                    self.visit(module_globals[name], read, f"{module_globals.get('__name__')}.{name}")
                visited.add((id(module_globals), name))
        for name in sorted(code.modules & sys.modules.keys()):
            self.visit(sys.modules[name], f"{self._constant_name(sys.modules)}[{name!r}]", name)

    def visit(self, value: Any, read: str, path: str) -> None:
        """Make the guards of `value`, and of all values that the code can reach from it.

        The value 1.0 at `model.config.k`, read by `v3['k']`, gives a guard that `v3['k']` is the float 1.0. A value
        that was visited before gives a guard that both paths have the same object.

        Args:
            read: the expression that reads the value in the check, such as `v3['k']`.
            path: the path of the value in errors, such as `model.config.k`.
        """
        if isinstance(value, PLAIN):
            self._guard_plain(value, read, path)
        elif id(value) in self._visited:
            variable, first_path = self._visited[id(value)]
            self._add_guard(path, f"the same as {first_path}", read, f"x is not {variable}")
        elif isinstance(value, IDENTICAL):
            self._guard_identity(value, read, path)
            owner = getattr(value, "__self__", None)
            if owner is not None and not isinstance(owner, (type, types.ModuleType)):  # of a bound method
                self.visit(owner, f"{self._constant_name(owner)}", path)
        elif isinstance(value, enum.Enum):
            self._visit_attributes(value, self._guard_identity(value, read, path), path)
        elif isinstance(value, type):
            self._guard_identity(value, read, path)
            self._visit_class(value)
        elif isinstance(value, types.ModuleType):
            self._guard_identity(value, read, path)
            self._visit_namespace(value, is_library_module(value.__name__), value.__name__)
        elif isinstance(value, ContextVar):
            self._guard_identity(value, read, path)
            self.visit(value.get(None), f"{self._constant_name(value)}.get(None)", path)
        elif isinstance(value, Tensor):
            self._guard_tensor(value, read, path)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, read, path)
        elif isinstance(value, nn.Module):
            self._visit_module(value, read, path)
        elif isinstance(value, _CONTAINERS):
            self._visit_container(value, read, path)
        elif isinstance(value, weakref.ref):
            variable = self._bind_guard(value, path, text_of(value), read, self._type_differs(value))
            self.visit(value(), f"{variable}()", path)
        else:
            self._visit_object(value, read, path)

    def _constant_name(self, value: Any) -> str:
        """Return the name, such as `c5`, of the constant of the check that holds `value`."""
        if id(value) not in self._constant_names:
            self._constant_names[id(value)] = name = f"c{len(self._constant_names)}"
            self.constants[name] = value
        return self._constant_names[id(value)]

    def _add_guard(self, path: str, text: str, read: str, differs: str, explain: Any = None) -> str:
        """Add a guard, and return the variable of its value. Arguments are those of `Guard`."""
        variable = f"v{len(self.guards)}"
        is_shared = self._is_shared and explain is None
        self.guards.append(Guard(path, text, variable, read, differs, explain, is_shared))
        return variable

    def _bind_guard(self, value: Any, path: str, text: str, read: str, differs: str) -> str:
        """Add the guard of a value, and return its variable. Later guards may refer to the value by the variable.

        If the value is reachable by a second path, the guard of that path requires the same object.
        """
        variable = self._add_guard(path, text, read, differs)
        self._visited[id(value)] = variable, path
        self._referenced.append(value)
        if not isinstance(value, (Tensor, types.FunctionType, types.MethodType)) and type(value) not in _CONTAINERS:
            self._objects.append(variable)
        return variable

    def _guard_identity(self, value: Any, read: str, path: str) -> str:
        """Add a guard that the value is the same object, and return the variable of the value."""
        self.library_values[id(value)] = value
        return self._add_guard(path, text_of(value), read, f"x is not {self._constant_name(value)}")

    def _type_differs(self, value: Any) -> str:
        """Return an expression that is true if the present value has another type than `value`."""
        return f"type(x) is not {self._constant_name(type(value))}"

    def _guard_plain(self, value: Any, read: str, path: str) -> None:
        """Add a guard that a plain value has the same type and content. Identity is compared first, as it is cheap."""
        if is_simple(value):
            constant = self._constant_name(value)
            differs = f"x is not {constant} and (type(x) is not {self._constant_name(type(value))} or x != {constant})"
        else:
            differs = f"content(x) != {self._constant_name(content(value))}"
        variable = self._add_guard(path, text_of(value), read, differs)
        if table_of(value) and not is_library_class(type(value)):
            self._visit_attributes(value, variable, path)

    def _guard_tensor(self, value: Tensor, read: str, path: str) -> None:
        """Add the guard of a tensor: it must be the same object, and must not have been written to.

        A registered parameter or buffer may be replaced or written to, because a program reads it at each call. Only
        its `requires_grad` is compared.
        """
        text = text_of(value)
        if id(value) in self._registered:
            text = f"{text} {'with' if value.requires_grad else 'without'} a gradient"
            differs = f"x is None or x.requires_grad is not {value.requires_grad}"
        else:
            differs = f"{self._constant_name(weakref.ref(value))}() is not x"
            differs += "" if value.is_inference() else f" or {version_code('x')} != {version(value)}"
        self._bind_guard(value, path, text, read, differs)

    def _visit_class(self, value: type) -> None:
        """Visit the namespaces of a class and its bases, except classes in C, whose attributes cannot be set."""
        for owner in value.__mro__:
            if id(owner) not in self._visited and not is_fixed(owner):
                self._visit_namespace(
                    owner, is_library_class(owner), f"{owner.__module__}.{owner.__qualname__}", is_class=True
                )

    def _visit_namespace(self, owner: Any, is_of_library: bool, path: str, is_class: bool = False) -> None:
        """Visit the values in the namespace of a class or Python module, unless it was visited before.

        Args:
            owner: the class or module.
            is_of_library: whether to compare its values only by identity, as for libraries.
        """
        if id(owner) in self._visited:
            return
        self._visited[id(owner)] = self._constant_name(owner), path
        if is_of_library:
            self._guard_library(vars(owner), self._constant_name(vars(owner)), path)
        else:
            name = owner.__module__ if is_class else owner.__name__
            reads_every = EVERY in self._names and not is_installed(name)
            self._visit_table(
                vars(owner), self._constant_name(vars(owner)), path, is_class=is_class, reads_every=reads_every
            )

    def _guard_library(self, table: Mapping[str, Any], read: str, path: str) -> None:
        """Compare the values of a namespace of a library by identity, in one guard; visit modules and plain values.

        Ranks do not compare these guards, because the loaded parts of libraries may differ between processes.
        """
        names: list[str] = []  # of the values that are compared by identity
        is_shared = self._is_shared
        self._is_shared = False
        for name in sorted(table.keys() & self._names):
            if f"{path}.{name}" in _REPLACED_BY_COMPILE:
                continue
            if isinstance(table[name], (types.ModuleType, *PLAIN)):
                self.visit(table[name], f"{read}[{name!r}]", f"{path}.{name}")
            else:
                names.append(name)
        if names:
            values = tuple(table[name] for name in names)
            get_values = self._constant_name(lambda table: tuple(map(table.__getitem__, names)))
            explain = functools.partial(describe_values_change, path, names, values)
            self._add_guard(
                f"{path}.__dict__", str(names), f"{get_values}({read})", f"x != {self._constant_name(values)}", explain
            )
        self._is_shared = is_shared

    def _visit_function(self, value: types.FunctionType, read: str, path: str) -> None:
        """Guard the code of a function; if the trace called it, visit its defaults and its closure.

        Functions of libraries are compared by identity, unless the trace called them and they have a closure.
        """
        is_called = value.__code__ in self._called
        reads_closure = is_called and bool(value.__closure__)
        if is_library_file(value.__code__.co_filename) and not reads_closure:
            self._guard_identity(value, read, path)
            return
        differs = f"{self._type_differs(value)} or x.__code__ is not {self._constant_name(value.__code__)}"
        defaults: dict[str, Any] = {}
        if is_called:
            defaults = {"__defaults__": value.__defaults__, "__kwdefaults__": value.__kwdefaults__}
        differs += "".join(f" or x.{name} is not None" for name, values in defaults.items() if values is None)
        variable = self._bind_guard(value, path, text_of(value), read, differs)
        if is_called:
            for name, values in defaults.items():
                if values is not None:
                    self.visit(values, f"{variable}.{name}", f"{path}.{name}")
            for index, (name, cell) in enumerate(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)):
                content = _cell_content(cell)
                if content is not _UNSET:
                    self.visit(content, f"{variable}.__closure__[{index}].cell_contents", f"{path}:{name}")
        if vars(value):
            omitted = frozenset({"__wrapped__"})
            self._visit_table(
                vars(value), f"{variable}.__dict__", path, omitted=omitted, reads_every=EVERY in self._names
            )

    def _visit_container(self, value: Any, read: str, path: str) -> None:
        """Guard the type and keys of a container in one guard, and visit its items.

        For {"k": 1.0, "m": module}, the guard compares the keys, and both items are visited. If all items are simple,
        as in {"k": 1.0}, the guard compares the items too, and none is visited. Keys that are objects are visited.
        """
        differs = self._type_differs(value)
        if path in self._caches:  # its entries are not part of the state
            self._bind_guard(value, path, f"a {type(value).__name__}", read, differs)
            return
        is_dict, is_set = isinstance(value, (dict, types.MappingProxyType)), isinstance(value, (set, frozenset))
        # A subclass of dict may override the methods, so those of dict read it.
        is_dict_subclass = isinstance(value, dict) and type(value) is not dict
        keys = [*dict.keys(value)] if isinstance(value, dict) else [*value]  # of a list or set, its elements
        if is_set:
            items, items_read = [], ""
            differs += " or " + self._elements_differ(keys)
        elif is_dict_subclass:
            items, items_read = [dict.get(value, key) for key in keys], "[*dict.values(x)]"
            differs += " or " + self._items_differ(keys, "[*dict.keys(x)]")
        elif is_dict:
            items, items_read = [value[key] for key in keys], "[*x.values()]"
            differs += " or " + self._items_differ(keys, "[*x.keys()]")
        else:
            items, items_read = keys, "[*x]"
            differs += f" or len(x) != {len(items)}"
        are_simple = all(map(is_simple, items))
        if are_simple and items:
            differs += " or " + self._items_differ(items, items_read)
        variable = self._bind_guard(value, path, text_of(value), read, differs)
        if isinstance(value, dict) and any(map(_holds_fakes, items)):
            self.dicts[path] = value
        object_keys = [key for key in keys if not is_plain(key)] if is_set or is_dict else []
        for key in sorted(object_keys, key=text_of):
            self.visit(key, self._constant_name(key), f"{path}{{{text_of(key)}}}")
        items_to_visit = [] if are_simple else items
        for index, item in enumerate(items_to_visit):
            key = keys[index] if is_dict else index
            key_text = repr(key) if type(key) in (str, int) else self._constant_name(key)
            item_read = f"dict.get({variable}, {key_text})" if is_dict_subclass else f"{variable}[{key_text}]"
            self.visit(item, item_read, f"{path}[{text_of(key)}]")
        if type(value) not in _CONTAINERS:
            self._visit_parts(value, variable, path)
            self._visit_attributes(value, variable, path)

    def _elements_differ(self, elements: list[Any]) -> str:
        """Return an expression that is true if the set `x` has other elements than `elements`.

        Texts and classes are compared by `==`, and other elements by `key_content`.
        """
        if all(type(element) is str or isinstance(element, type) for element in elements):
            return f"x != {self._constant_name(set(elements))}"
        return f"{{*map(key_content, x)}} != {self._constant_name({*map(key_content, elements)})}"

    def _items_differ(self, items: list[Any], read: str) -> str:
        """Return an expression that is true if the list `read` has other plain items or keys than `items`.

        For the items ["a", "b"] and `[*x.keys()]`, this is `[*x.keys()] != c0`, with the constant c0 = ["a", "b"].
        """
        if all(type(item) is str for item in items):
            return f"{read} != {self._constant_name(items)}"
        if all(map(is_simple, items)):
            types_differ = f"[*map(type, {read})] != {self._constant_name([*map(type, items)])}"
            return f"{read} != {self._constant_name(items)} or {types_differ}"
        return f"[*map(key_content, {read})] != {self._constant_name([*map(key_content, items)])}"

    def _visit_module(self, value: nn.Module, read: str, path: str) -> None:
        """Visit the attributes of a module, and its hooks, tensors and submodules.

        The tables of a module, such as `_parameters`, that are empty have one guard together: they stay empty.
        """
        is_root = value is self._root
        differs = "x is None" if is_root else self._type_differs(value)  # a sharded model is of a subclass
        variable = self._bind_guard(value, path, "a module" if is_root else text_of(value), read, differs)
        self._visit_class(type(value))
        omitted = self._omitted if is_root else frozenset[str]()
        attributes = vars(value)
        table = self._visit_table(
            attributes,
            f"{variable}.__dict__",
            path,
            omitted=_PRIVATE | omitted,
            reads_every=EVERY in self._names or has_own_lookup(type(value)),
        )
        keys = [key for key in TABLES if key not in omitted]
        empty = [key for key in keys if not attributes[key]]

        def explain(table_now: Mapping[str, Any]) -> str:
            """Return the text of the change, if a table of `table_now`, the present attributes, is no longer empty."""
            filled = next(key for key in empty if table_now[key])
            return f"{path}.{filled} was empty and is not"

        any_filled = " or ".join(f"x[{key!r}]" for key in empty) or "False"
        self._add_guard(path, f"nothing in {empty}", table, any_filled, explain)
        for key in keys:
            if attributes[key]:
                self._visit_members(key, attributes, table, path)

    def _visit_members(self, key: str, tables: Mapping[str, Any], variable: str, path: str) -> None:
        """Visit the hooks, tensors or submodules of a module.

        Args:
            key: the table of the module, such as `_parameters`, `_modules` or `_forward_hooks`.
            tables: the attributes of the module, which contain the table.
            variable: the variable of these attributes in the check.
            path: the path of the module in errors.
        """
        if key not in HOOKS:
            names = [*tables[key]]
            # Ranks compare each member by its own path, so this guard only explains changes.
            explain = functools.partial(describe_names_change, path, list, names)
            differs = f"[*x] != {self._constant_name(names)}"
            members = self._add_guard(f"{path}.{key}", str(names), f"{variable}[{key!r}]", differs, explain)
            for name, value in tables[key].items():
                self.visit(value, f"{members}[{name!r}]", f"{path}.{name}")
            return
        size, flags = len(tables[key]), HOOKS[key]
        hooks = self._add_guard(
            f"{path}.{key}", f"{size} hooks", f"[*{variable}[{key!r}].values()]", f"len(x) != {size}"
        )
        for index, value in enumerate(tables[key].values()):
            self.visit(value, f"{hooks}[{index}]", f"{path}.{key}[{index}]")
        if flags:
            with_kwargs = [hook in tables[flags] for hook in tables[key]]
            read = f"[hook in {variable}[{flags!r}] for hook in {variable}[{key!r}]]"
            self._add_guard(f"{path}.{flags}", str(with_kwargs), read, f"x != {self._constant_name(with_kwargs)}")

    def _visit_object(self, value: Any, read: str, path: str) -> None:
        """Guard the type of an object and visit its attributes; compare an object with hidden state by its pickle."""
        differs, kind = self._type_differs(value), type(value)
        if not isinstance(value, _WITH_PARTS) and _is_opaque(value):
            if hasattr(kind, "__next__"):
                raise UnsupportedError(
                    f"the forward reads {path} ({class_name(kind)}); spmdir cannot detect whether it "
                    "advances between calls; expected state that can be compared: use a list instead of an "
                    "iterator, or keep the index in a buffer"
                )
            self.library_values[id(value)] = value
            differs = f"x is not {self._constant_name(value)}"
            state = None if callable(value) else reduced(value)
            if state is not None:
                differs += f" or reduced(x) != {self._constant_name(state)}"
        variable = self._bind_guard(value, path, text_of(value), read, differs)
        self._visit_parts(value, variable, path)
        self._visit_attributes(value, variable, path)

    def _visit_parts(self, value: Any, variable: str, path: str) -> None:
        """Visit the parts of a method, a descriptor, a `functools` object or a dict with defaults.

        The parts of `functools.partial(f, 2)` are `func`, `args` and `keywords`. A function under `functools.cache`
        whose code is executed is added to `functions`.
        """
        if not isinstance(value, (*_WITH_PARTS, dict)):
            return
        for part in _PARTS:
            part_value = getattr(value, part, _UNSET)
            if part_value is not _UNSET and not (part == "__wrapped__" and hasattr(value, "__func__")):
                self.visit(part_value, f"{variable}.{part}", f"{path}.{part}" if part == "keywords" else path)
        if hasattr(value, "cache_info") and executes(vars(value).get("__wrapped__"), self._executed):
            self.functions.append(value)

    def _visit_attributes(self, value: Any, variable: str, path: str) -> None:
        """Visit the attributes of an object that the traced code may read, and those of its class.

        These are the attributes in `_names`, or all if `_names` contains EVERY. All are visited too if the object is a
        SimpleNamespace, or its class looks attributes up in its own way.

        Args:
            variable: Python source that evaluates to `value`.
            path: the name of `value` in messages.
        """
        kind = type(value)
        self._visit_class(kind)
        for slot in slots_of(kind):
            if slot in self._names or EVERY in self._names:
                self.visit(getattr(value, slot, _UNSET), f"getattr({variable}, {slot!r}, unset)", f"{path}.{slot}")
        table = table_of(value)
        if table is not None:
            reads_every = EVERY in self._names or isinstance(value, types.SimpleNamespace) or has_own_lookup(kind)
            self._visit_table(table, f"table_of({variable})", path, reads_every=reads_every)

    def _visit_table(
        self, table: Any, read: str, path: str, omitted: frozenset[str] = frozenset(), **options: bool
    ) -> str:
        """Visit the values of a namespace that the code reads, and return the variable of the namespace in the check.

        Args:
            table: name → value, such as the `__dict__` of an object.
            omitted: names that are not visited.
            options: as for `NamesRead`.
        """
        names_of = NamesRead(self._names, self._executed, omitted=omitted, **options)
        names = names_of(table)
        keys, find_names, expected = map(self._constant_name, ([*table], names_of, names))
        differs = f"[*x] != {keys} and {find_names}(x) != {expected}"  # comparing the keys is cheaper
        explain = functools.partial(describe_names_change, path, names_of, names)
        variable = self._add_guard(f"{path}.__dict__", str(names), read, differs, explain)
        is_shared = self._is_shared
        for name in names:
            self._is_shared = is_shared and name in self._own_names
            self.visit(table[name], f"{variable}[{name!r}]", f"{path}.{name}")
        self._is_shared = is_shared
        return variable


def _holds_fakes(value: Any) -> bool:
    """Return whether a value is a fake tensor, or a list or tuple that contains one."""
    return any(map(_holds_fakes, value)) if isinstance(value, (list, tuple)) else isinstance(value, FakeTensor)


def _code_position(code: types.CodeType) -> tuple[str, int, str]:
    """Return the sort key of a code object. It is equal on all ranks, so guards have the same order."""
    return code.co_filename, code.co_firstlineno, code.co_name


def _cell_content(cell: types.CellType) -> Any:
    """Return the value of a variable of a closure; `_UNSET` if the variable is not set yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return _UNSET


def _is_opaque(value: Any) -> bool:
    """Return whether an object has state that is not in its attributes."""
    base = base_in_c(type(value))
    if base is object:
        return table_of(value) is None and not any(True for _ in slots_of(type(value)))
    return base is not types.SimpleNamespace
