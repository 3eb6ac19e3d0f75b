"""Plug-ins: files of rules, and Python files of passes.

A Python plug-in is executed; every `ModulePass` with a `name` that it defines becomes a pass. If it defines
`register(context)`, that is called with the IR context, whose `rules` it may extend.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING

import attrs

from spmdir.errors import Location, ParseError, SpmdirError
from spmdir.passes import PASSES, PassTable

if TYPE_CHECKING:
    from spmdir.dialects.syntax import IRContext


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

    spec = spec_from_file_location("spmdir_plugin_" + re.sub(r"\W", "_", path), path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    # Dataclasses, and so passes, look their module up there while it is still being executed.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        if hasattr(module, "register"):
            module.register(context)
    except SpmdirError:
        raise
    except OSError as error:
        raise SpmdirError(f"cannot read plug-in '{path}': {error.strerror}") from None
    except SyntaxError as error:
        raise ParseError(f"plug-in: {error.msg}", Location(path, error.lineno or 1, error.offset or 1)) from None
    except (Exception, SystemExit) as error:
        frames = reversed(traceback.extract_tb(error.__traceback__))
        line = next((frame.lineno for frame in frames if frame.filename == spec.origin), None)
        raise SpmdirError(f"plug-in failed: {type(error).__name__}: {error}", Location(path, line or 1, 1)) from error
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, ModulePass) and value.__module__ == spec.name
    }
    for class_name, kind in found.items():
        if not isinstance(getattr(kind, "name", None), str):
            raise SpmdirError(f"the pass {class_name} of plug-in '{path}' has no name; give it a `name = …`")
    return {kind.name: kind for kind in found.values()}
