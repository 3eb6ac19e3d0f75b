"""Plug-ins: files of rules, and Python files of passes and placements.

A Python plug-in is executed, once as long as it is not changed. Every `ModulePass` with a `name` that it defines
becomes a pass; placement types are known once their classes are made. If it defines `register(context)`, that is called
with the IR context, whose `rules` it may extend.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import TYPE_CHECKING

import attrs

from spmdir.core.errors import Location, ParseError, SpmdirError, SpmdirErrors
from spmdir.passes import PASSES, PassTable

if TYPE_CHECKING:
    from spmdir.dialects.syntax.context import IRContext

_PACKAGE = os.path.realpath(os.path.dirname(__file__))
_SOURCE = "__spmdir_source__"
"""The name under which a plug-in's module keeps the text that it was made from."""


@attrs.frozen
class Session:
    """What a run of the tool works with.

    Attributes:
        context: the IR context with the rules of all plug-ins.
        passes: the pass table with the passes of all plug-ins.
    """

    context: IRContext
    passes: PassTable


def load_plugins(paths: Sequence[str]) -> Session:
    """The standard context and pass table, extended by the plug-ins at `paths` in order.

    Raises:
        SpmdirError: a plug-in cannot be read, is malformed or fails; with the place in it.
    """
    from spmdir.dialects import ir

    context, passes = ir.context(), dict(PASSES)
    for path in dict.fromkeys(paths):
        if path.endswith(".rules"):
            context.rules = context.rules.with_file(path)
        elif path.endswith(".py"):
            passes |= _load_python(path, context)
        else:
            raise SpmdirError(f"'{path}' is no plug-in; expected a .rules or a .py file")
    return Session(context, passes)


def _load_python(path: str, context: IRContext) -> PassTable:
    from xdsl.passes import ModulePass

    module = load_module(path)
    if hasattr(module, "register"):
        _guarded(path, lambda: module.register(context))
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, ModulePass) and value.__module__ == module.__name__
    }
    for class_name, kind in found.items():
        if not isinstance(getattr(kind, "name", None), str):
            raise SpmdirError(f"the pass {class_name} of plug-in '{path}' has no name; give it a `name = …`")
    return {kind.name: kind for kind in found.values()}


def load_module(path: str) -> ModuleType:
    """The module of the Python file at `path`, its collectives known; executed if it is new, or has changed since.

    Raises:
        SpmdirError: the file cannot be read, is malformed or fails; with the place in it.
    """
    from spmdir.reshard.collectives import register_collectives

    module = _module(path)
    _guarded(path, lambda: register_collectives(module))
    return module


def _module(path: str) -> ModuleType:
    real = os.path.realpath(path)
    package, inside = os.path.split(_PACKAGE)[0] + os.sep, real.startswith(_PACKAGE + os.sep)
    if inside and os.path.isfile(real):
        return import_module(real.removeprefix(package).removesuffix(".py").replace(os.sep, "."))
    source, known = _read(path), _imported(real)
    if known is not None and vars(known).get(_SOURCE, source) == source:
        return known
    return _execute(path, real, source)


def _imported(real: str) -> ModuleType | None:
    """The module that was made from the file at `real`, by whomever."""
    named = ((m, getattr(m, "__file__", None) or "") for m in list(sys.modules.values()))
    alike = ((module, file) for module, file in named if os.path.basename(file) == os.path.basename(real))
    return next((module for module, file in alike if os.path.realpath(file) == real), None)


def _execute(path: str, real: str, source: bytes) -> ModuleType:
    spec = spec_from_file_location("spmdir_plugin_" + re.sub(r"\W", "_", real), real)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    # Dataclasses, and so passes, look their module up there while it is still being executed.
    sys.modules[spec.name] = module
    try:
        _guarded(path, lambda: exec(compile(source, real, "exec"), vars(module)))
    except SpmdirError:
        del sys.modules[spec.name]
        raise
    setattr(module, _SOURCE, source)
    return module


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise SpmdirError(f"cannot read plug-in '{path}': {error.strerror}") from None


def _guarded(path: str, body: Callable[[], object]) -> None:
    """Run `body`, code of the plug-in at `path`; what it raises becomes an error at the line in the plug-in."""
    try:
        body()
    except SyntaxError as error:
        raise ParseError(f"plug-in: {error.msg}", Location(path, error.lineno or 1, error.offset or 1)) from None
    except SpmdirError as error:
        if error.location is None and not isinstance(error, SpmdirErrors):
            error.location = Location(path, line_in(path, error) or 1, 1)
        raise
    except (Exception, SystemExit) as error:
        place = Location(path, line_in(path, error) or 1, 1)
        raise SpmdirError(f"plug-in failed: {type(error).__name__}: {error}", place) from error


def place_in_plugin(error: BaseException) -> Location | None:
    """The innermost line of a plug-in that `error` went through; None if it went through none."""
    frames = reversed(list(traceback.walk_tb(error.__traceback__)))
    places = (Location(f.f_code.co_filename, line, 1) for f, line in frames if _SOURCE in f.f_globals)
    return next(places, None)


def line_in(path: str, error: BaseException) -> int | None:
    """The innermost line of the file at `path` that `error` went through; None if it went through none."""
    frames, real = reversed(traceback.extract_tb(error.__traceback__)), os.path.realpath(path)
    return next((frame.lineno for frame in frames if frame.filename == real), None)
