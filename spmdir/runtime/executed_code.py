"""The Python code that a forward executes, and the names by which that code reads state."""

from __future__ import annotations

import dis
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from types import CodeType, FrameType, ModuleType
from typing import Any

import attrs
import torch

_STANDARD = tuple(os.path.realpath(sysconfig.get_path(key)) for key in ("stdlib", "platstdlib"))
_TORCH = os.path.dirname(os.path.realpath(torch.__file__))
_TORCH_MODULES = os.path.join(_TORCH, "nn", "modules")
_SPMDIR = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

_LIBRARIES = frozenset({"torch", "numpy", "sympy", "spmdir", "xdsl", "triton", "functorch", "torchgen", "attr", "attrs",
                        "typing_extensions"})  # fmt: skip
"""Packages whose state no program depends on, beside those of Python itself."""

_BUILDS_NAMES = frozenset({"BUILD_STRING", "FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC"})
_READS_BY_NAME = frozenset({"getattr", "hasattr", "attrgetter", "__getattribute__"})
_READS_ALL = frozenset({"vars", "__dict__"})


@lru_cache(maxsize=65536)
def is_library_file(file: str) -> bool:
    """Return whether a file belongs to Python, torch or spmdir; the modules of `torch.nn` do not count as torch."""
    if file.startswith("<"):
        return file.startswith(("<frozen", "<attrs", "<eval_with_key", "<__array_function__"))
    path = os.path.realpath(file)
    if path.startswith(_TORCH_MODULES + os.sep):
        return False
    if path.startswith((_TORCH + os.sep, _SPMDIR + os.sep)):
        return True
    return "site-packages" not in path and "dist-packages" not in path and path.startswith(_STANDARD)


@lru_cache(maxsize=65536)
def is_library_module(name: str) -> bool:
    """Return whether a Python module belongs to Python, torch or spmdir; those of `torch.nn.modules` do not."""
    if name.startswith("torch.nn.modules."):
        return name == "torch.nn.modules.module"
    top = name.partition(".")[0]
    return top in _LIBRARIES or top in sys.stdlib_module_names or top == "builtins"


@lru_cache(maxsize=65536)
def _is_torchs(code: CodeType) -> bool:
    return os.path.realpath(code.co_filename).startswith(_TORCH + os.sep)


def is_users_module(module: ModuleType) -> bool:
    """Return whether the attributes of a Python module may change a program."""
    return not is_library_module(module.__name__) or module.__name__ == "__main__"


@attrs.define(frozen=True, eq=False, slots=False)
class ExecutedCode:
    """The code objects of the user and of libraries on top of torch that a run executes.

    Attributes:
        globals: code object → the globals of the function that it was executed for.
    """

    globals: Mapping[CodeType, dict[str, Any]]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of attributes and keys in the code, also those of `getattr` with a literal."""
        return frozenset(name for code in self.globals for name in _names(code))

    @cached_property
    def users_names(self) -> frozenset[str]:
        """The names in code outside of torch."""
        return frozenset(name for code in self.globals if not _is_torchs(code) for name in code.co_names)

    @cached_property
    def reads_any_name(self) -> bool:
        """Whether some code may read attributes whose names it does not contain, as by `getattr(self, f"w{i}")`."""
        return any(map(_reads_any_name, self.globals))


@lru_cache(maxsize=65536)
def global_names(code: CodeType) -> frozenset[str]:
    """Return the names of the globals that a code object reads, and of the modules that it imports."""
    read = ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME")
    return frozenset(str(i.argval) for i in dis.get_instructions(code) if i.opname in read)


@lru_cache(maxsize=65536)
def _attribute_names(code: CodeType) -> frozenset[str]:
    return frozenset(
        str(i.argval) for i in dis.get_instructions(code) if i.opcode in dis.hasname and i.opname != "LOAD_GLOBAL"
    )


def _names(code: CodeType) -> Iterator[str]:
    yield from _attribute_names(code)
    waiting: list[Any] = [*code.co_consts]
    while waiting:
        constant = waiting.pop()
        if isinstance(constant, str) and constant.isidentifier():
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            waiting += constant
        elif isinstance(constant, CodeType):
            yield from _names(constant)


@lru_cache(maxsize=65536)
def _reads_any_name(code: CodeType) -> bool:
    if _is_torchs(code):
        return False
    names = set(code.co_names)
    if names & _READS_ALL:
        return True
    if not names & _READS_BY_NAME:
        return False
    return bool({"format", "join"} & names) or any(i.opname in _BUILDS_NAMES for i in dis.get_instructions(code))


@contextmanager
def recorded_code() -> Iterator[dict[CodeType, dict[str, Any]]]:
    """Record code objects that this thread executes inside, with their globals; `executed_code` selects among them."""
    recorded: dict[CodeType, dict[str, Any]] = {}

    def record(frame: FrameType, event: str, argument: Any) -> None:
        recorded.setdefault(frame.f_code, frame.f_globals)

    before = sys.gettrace()
    sys.settrace(record)
    try:
        yield recorded
    finally:
        sys.settrace(before)


def _is_librarys(values: Mapping[str, Any]) -> bool:
    """Return whether globals are those of a library, for code that was made without a file."""
    name = values.get("__name__")
    return isinstance(name, str) and name != "torch.nn.modules.module" and is_library_module(name)


def executed_code(recorded: Mapping[CodeType, dict[str, Any]]) -> ExecutedCode:
    """Return the code of the user among recorded code, with the backwards of its autograd functions."""
    chosen = {
        code: values
        for code, values in recorded.items()
        if not is_library_file(code.co_filename) and not _is_librarys(values)
    }
    for code, values in list(chosen.items()):
        for name in code.co_names:
            found = values.get(name)
            if inspect.isclass(found) and issubclass(found, torch.autograd.Function):
                function = inspect.unwrap(getattr(found, "backward", torch.autograd.Function.backward))
                if not is_library_file(function.__code__.co_filename):
                    chosen[function.__code__] = function.__globals__
    return ExecutedCode(chosen)
