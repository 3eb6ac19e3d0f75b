"""Where an fx node comes from: module path and source line, free of what differs between machines."""

from __future__ import annotations

import re
import traceback
from functools import lru_cache

from torch import fx
from xdsl.dialects.builtin import UNKNOWN_LOC, FileLineColLoc, IntAttr, NameLoc, StringAttr
from xdsl.ir import Attribute

from spmdir.core.errors import Location

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_PASSED_OVER = re.compile(r"packages[/\\]torch[/\\]|spmdir[/\\]importer[/\\](?:constrain|locations|replay)\.py$|^<")
_INSTALLED = re.compile(r".*(?:site|dist)-packages[/\\]")


@lru_cache(maxsize=65536)
def source_line(stack_trace: str | None) -> Location | None:
    """The innermost frame of the user, its file relative to the installed package, or else without folders."""
    if not isinstance(stack_trace, str):  # a file may hold whatever
        return None
    frames = [(file, int(line)) for file, line in _FRAME.findall(stack_trace) if not _PASSED_OVER.search(file)]
    return Location(_relative(frames[-1][0]), frames[-1][1], 1) if frames else None


def _relative(file: str) -> str:
    relative = _INSTALLED.sub("", file).replace("\\", "/")
    return relative if relative != file.replace("\\", "/") else relative.rpartition("/")[2]


def node_location(node: fx.Node) -> Location | None:
    """The source line of a node, for messages."""
    return source_line(node.meta.get("stack_trace"))


def users_line() -> Location | None:
    """Return the line of the user that led here, for what goes wrong during a trace."""
    return source_line("".join(traceback.format_stack()))


def location_attribute(node: fx.Node) -> Attribute:
    """The MLIR location of a node: its source line, inside the path of the module that it belongs to."""
    modules = node.meta.get("nn_module_stack")
    path = next(reversed(modules.values()))[0] if modules else ""
    return _attribute(path, source_line(node.meta.get("stack_trace")))


@lru_cache(maxsize=65536)
def _attribute(path: str, line: Location | None) -> Attribute:
    place = FileLineColLoc(StringAttr(line.file), IntAttr(line.line), IntAttr(line.column)) if line else UNKNOWN_LOC
    return NameLoc(StringAttr(path), place) if path else place
