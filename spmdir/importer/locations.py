"""Where an fx node comes from: module path and call stack, free of what differs between machines."""

from __future__ import annotations

import re
import sys
from functools import lru_cache

from torch import fx
from xdsl.dialects.builtin import UNKNOWN_LOC, CallSiteLoc, FileLineColLoc, IntAttr, NameLoc, StringAttr
from xdsl.ir import Attribute

from spmdir.core.errors import Location

_FRAME = re.compile(r'File "([^"]+)", line ([0-9]+)')
_PASSED_OVER = re.compile(r"packages[/\\]torch[/\\]|[/\\]spmdir[/\\](?:importer|runtime)[/\\]|^<")
_INSTALLED = re.compile(r".*(?:site|dist)-packages[/\\]")
_DEPTH = 32
"""How many frames a location keeps, the innermost ones: a stack that a file brings may be of any depth."""


@lru_cache(maxsize=65536)
def is_passed_over(file: str) -> bool:
    """Return whether a file is none of the user, as those of torch."""
    return _PASSED_OVER.search(file) is not None


@lru_cache(maxsize=65536)
def frames(stack_trace: str | None) -> tuple[Location, ...]:
    """Return the frames of the user in a stack trace, innermost last.

    A file is relative to the installed package, or else without folders.
    """
    if not isinstance(stack_trace, str):  # a file may hold whatever
        return ()
    found = [(file, int(line)) for file, line in _FRAME.findall(stack_trace) if not is_passed_over(file)]
    return tuple(Location(_relative(file), line, 1) for file, line in found)


def source_line(stack_trace: str | None) -> Location | None:
    """Return the innermost frame of the user, None if there is none."""
    return next(reversed(frames(stack_trace)), None)


@lru_cache(maxsize=65536)
def _relative(file: str) -> str:
    relative = _INSTALLED.sub("", file).replace("\\", "/")
    return relative if relative != file.replace("\\", "/") else relative.rpartition("/")[2]


def node_location(node: fx.Node) -> Location | None:
    """Return the source line of a node, for messages."""
    return source_line(node.meta.get("stack_trace"))


def users_line() -> Location | None:
    """Return the line of the user that led here, for what goes wrong during a trace."""
    frame = sys._getframe(1)
    while frame is not None and is_passed_over(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else Location(_relative(frame.f_code.co_filename), frame.f_lineno, 1)


def location_attribute(node: fx.Node) -> Attribute:
    """Return the MLIR location of a node: its call stack, inside the path of the module that it belongs to."""
    modules = node.meta.get("nn_module_stack")
    path = next(reversed(modules.values()))[0] if modules else ""
    stack = call_stack(frames(node.meta.get("stack_trace")))
    return NameLoc(StringAttr(path), stack) if path else stack


@lru_cache(maxsize=65536)
def call_stack(stack: tuple[Location, ...]) -> Attribute:
    """Return `callsite("inner.py":1:1 at callsite(…))` of the frames, innermost last."""
    location: Attribute = UNKNOWN_LOC
    for frame in stack[-_DEPTH:]:
        place = FileLineColLoc(StringAttr(frame.file), IntAttr(frame.line), IntAttr(frame.column))
        location = place if location == UNKNOWN_LOC else CallSiteLoc(place, location)
    return location
