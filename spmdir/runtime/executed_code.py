"""The Python code that a forward executes, and the names by which that code reads state."""

from __future__ import annotations

import dis
import functools
import importlib.machinery
import importlib.util
import operator
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

import attrs
import torch

_LIBRARIES = ("torch", "numpy", "sympy", "spmdir", "xdsl", "triton", "functorch", "torchgen", "attr", "attrs")
"""Packages whose objects and globals do not affect programs. Python's standard library counts as a library too."""

_LIBRARY_FILES = ("typing_extensions",)
"""Modules of one file that count as libraries. torch 2.11 executes `typing_extensions` during a lazy import."""

_STDLIB_FOLDERS = tuple(os.path.realpath(sysconfig.get_path(key)) + os.sep for key in ("stdlib", "platstdlib"))
_TORCH = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
_TORCH_MODULES = tuple(os.path.join(_TORCH, "nn", *part) for part in (("modules", ""), ("utils", ""), ("parallel", "")))

EVERY = "*"
"""The entry that means all names, in a set of names that are read."""

_GET_VARIABLE = type(os.environ).__getitem__.__code__
_LIST_VARIABLES = type(os.environ).__iter__.__code__
"""The code that runs when a program reads all names of environment variables; `_GET_VARIABLE` runs for one."""

_NAME_LOOKUP_FILES = (_TORCH, os.path.realpath(functools.__file__))
"""Files whose code reads a `__dict__` only by names that occur in it or that the code of the user passes."""

_ACCESSORS = {"getattr": getattr, "hasattr": hasattr, "setattr": setattr, "delattr": delattr}
ACCESSORS = (*_ACCESSORS.values(), vars, dir, operator.attrgetter, object.__getattribute__)
"""Functions that read attributes whose names are values."""

_READS_ALL = frozenset({"__dict__", "vars", "dir", "attrgetter", "__getattribute__", "__getstate__", "__reduce_ex__"})
"""Names of functions and attributes by which code may read any attribute of an object."""
_BUILTIN, _FROZEN = importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter
_LOOKUPS = frozenset({"__getattr__", "__getattribute__", "__setattr__", "__delattr__", "__setstate__"})
"""Methods that read `__dict__` only by the name of the attribute that their caller accesses."""


@lru_cache(maxsize=1)
def _library_paths() -> tuple[str, ...]:
    """Return the folders of packages and the files of modules that are libraries."""
    specs = [importlib.util.find_spec(name) for name in (*_LIBRARIES, *_LIBRARY_FILES)]
    origins = {spec.name: os.path.realpath(spec.origin) for spec in specs if spec and spec.origin}
    return tuple(
        origin if name in _LIBRARY_FILES else os.path.dirname(origin) + os.sep for name, origin in origins.items()
    )


@lru_cache(maxsize=65536)
def is_library_file(file: str) -> bool:
    """Return whether a file belongs to Python, torch or spmdir; the modules of `torch.nn` do not count as torch."""
    path = os.path.realpath(file)
    if path.startswith(_TORCH_MODULES):
        return path == os.path.join(_TORCH_MODULES[0], "module.py")
    if path.startswith(_library_paths()):
        return True
    return path.startswith(_STDLIB_FOLDERS) and not _is_in_packages(path)


def is_library_module(name: str) -> bool:
    """Return whether a Python module belongs to Python or a library, by the file that it was read from.

    A module without a file belongs to Python if it is built in or frozen.
    """
    file = _file_of_module(name)
    if file:
        return is_library_file(file)
    module = sys.modules.get(name)
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return loader in (_BUILTIN, _FROZEN)


def is_installed(name: str) -> bool:
    """Return whether a Python module belongs to an installed package, Python itself among these."""
    return is_library_module(name) or _is_in_packages(os.path.realpath(_file_of_module(name)))


def _is_in_packages(path: str) -> bool:
    """Return whether a path is in the folder of installed packages."""
    return "site-packages" in path or "dist-packages" in path


def _file_of_module(name: str) -> str:
    """Return the file of a Python module; for a part of an extension, that of the package around it; "" without one."""
    while name:
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and os.path.isabs(file):
            return file
        name = name.rpartition(".")[0]
    return ""


@attrs.frozen(eq=False)
class ExecutedCode:
    """The Python code that a run executes, without the kernels and tracers of torch.

    Attributes:
        globals: code object of the user, or of a library on top of torch → the globals that it was executed with.
        names: the names of attributes in all executed code, and the names passed to `getattr` and similar functions.
            Contains `EVERY` if some code reads attributes without their names, such as with `vars`.
        own_names: the names of attributes in the code of `globals`. They are equal on all ranks.
        users_names: the names in code outside of torch and Python.
        modules: the Python modules that functions import.
        called: all code objects.
        variables: the variables of the environment that are read; `EVERY` among them for all.
    """

    globals: dict[CodeType, dict[str, Any]] = attrs.field(factory=dict)
    names: set[str] = attrs.field(factory=lambda: {"training"})
    own_names: set[str] = attrs.field(factory=set)
    users_names: set[str] = attrs.field(factory=set)
    modules: set[str] = attrs.field(factory=set)
    called: set[CodeType] = attrs.field(factory=set)
    variables: set[str] = attrs.field(factory=set)

    @property
    def size(self) -> tuple[int, ...]:
        """The amount of recorded code, which only increases."""
        return len(self.globals), len(self.names), len(self.modules), len(self.variables)

    def add(self, code: CodeType, module_globals: dict[str, Any]) -> None:
        """Record a code object that is executed with the globals `module_globals`.

        Code of Python, torch and spmdir adds only its attribute names. Its globals and imports are not user state.
        """
        if code in self.called:
            return
        self.called.add(code)
        file = file_of(code, module_globals)
        self.names.update(attribute_names(code))
        if not file.startswith(_NAME_LOOKUP_FILES) and code.co_name not in _LOOKUPS and _reads_all(code):
            self.names.add(EVERY)
        if is_library_file(file):
            return
        self.globals[code] = module_globals
        self.own_names.update(attribute_names(code))
        if not file.startswith(_TORCH):
            self.users_names.update(code.co_names)
        self.modules.update(_imports(code, module_globals.get("__package__") or ""))


def file_of(code: CodeType, module_globals: dict[str, Any]) -> str:
    """Return the file of a code object; for code compiled from a string, the file of its module."""
    file = code.co_filename if not code.co_filename.startswith("<") else module_globals.get("__file__")
    return file if isinstance(file, str) else ""


@lru_cache(maxsize=65536)
def global_names(code: CodeType) -> frozenset[str]:
    """Return the names of the globals that a code object reads."""
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


@lru_cache(maxsize=65536)
def attribute_names(code: CodeType) -> frozenset[str]:
    """Return the names of the attributes that a code object reads or sets. Names of imports are among them."""
    instructions = dis.get_instructions(code)
    return frozenset(str(i.argval) for i in instructions if i.opcode in dis.hasname and i.opname != "LOAD_GLOBAL")


@lru_cache(maxsize=65536)
def _reads_all(code: CodeType) -> bool:
    """Return whether a code object may read any attribute, because the names in it do not show which ones."""
    # A class pattern in `match` reads the attributes in the `__match_args__` of the class.
    calls_reader = not _READS_ALL.isdisjoint(code.co_names)
    return calls_reader or any(i.opname == "MATCH_CLASS" for i in dis.get_instructions(code))


def _imports(code: CodeType, package: str) -> Iterator[str]:
    """Yield the Python modules that a code object imports, their packages, and names that may be modules.

    `from a.b import c` yields a, a.b and a.b.c.

    Args:
        package: the package of the code, for relative imports.
    """
    # Every second byte of the code is an opcode. This test is quicker than decoding all instructions.
    instructions = list(dis.get_instructions(code)) if any(op == _IMPORT for op in code.co_code[::2]) else []
    for position, instruction in enumerate(instructions):
        if instruction.opcode == _IMPORT:
            # Python pushes the number of leading dots and the imported names before it imports the module.
            dot_count, imported_names = instructions[position - 2].argval, instructions[position - 1].argval or ()
            module = instruction.argval
            if dot_count:
                module = importlib.util.resolve_name("." * dot_count + module, package)
            name_parts = module.split(".")
            yield from (".".join(name_parts[:length]) for length in range(1, len(name_parts) + 1))
            yield from (f"{module}.{name}" for name in imported_names)


_IMPORT = dis.opmap["IMPORT_NAME"]


@contextmanager
def record_code(code: ExecutedCode) -> Iterator[None]:
    """Record the Python code that this thread executes inside.

    To record the names that the code passes to `getattr` and similar functions, replacements of these functions are
    inserted into the globals of the code that refers to them.
    """
    inserted: list[tuple[dict[str, Any], str]] = []
    recorded_codes: set[CodeType] = set()
    accessors = {name: _record_names(function, code.names) for name, function in _ACCESSORS.items()}

    def record(frame: FrameType, event: str, argument: Any) -> None:
        """Record the code of a frame that is entered; a trace function of `sys.settrace`."""
        frame_code, module_globals = frame.f_code, frame.f_globals
        if frame_code is _GET_VARIABLE:
            code.variables.add(str(frame.f_locals["key"]))
        elif frame_code is _LIST_VARIABLES:
            code.variables.add(EVERY)
        if frame_code in recorded_codes:
            return
        recorded_codes.add(frame_code)
        if str(module_globals.get("__name__")).startswith("spmdir."):
            return
        code.add(frame_code, module_globals)
        for name in accessors.keys() & set(frame_code.co_names):
            if name not in module_globals:
                module_globals[name] = accessors[name]
                inserted.append((module_globals, name))

    previous_trace = sys.gettrace()
    sys.settrace(record)
    try:
        yield
    finally:
        sys.settrace(previous_trace)
        for module_globals, name in inserted:
            module_globals.pop(name, None)


@contextmanager
def pause_recording() -> Iterator[Any]:
    """Record no code inside; yields the trace function of `record_code`, which is the argument of `record_again`."""
    previous_trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield previous_trace
    finally:
        sys.settrace(previous_trace)


@contextmanager
def record_again(before: Any) -> Iterator[None]:
    """Record the code inside again; `before` is the value that `pause_recording` yielded."""
    sys.settrace(before)
    try:
        yield
    finally:
        sys.settrace(None)


def _record_names(function: Callable[..., Any], names: set[str]) -> Callable[..., Any]:
    """Return a replacement of `function`, an accessor such as `getattr`, that adds the names it gets to `names`.

    For names such as `__dict__`, by which code may read any attribute, it also adds `EVERY`.
    """

    @functools.wraps(function)
    def access(value: Any, name: str, *default: Any) -> Any:
        """Call `function` with these arguments, and record `name`."""
        names.add(name)
        if name in _READS_ALL:
            names.add(EVERY)
        return function(value, name, *default)

    return access
