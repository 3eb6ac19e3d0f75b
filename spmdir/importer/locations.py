"""Find the source of an fx node: its module path and call stack, without folders that differ between machines."""

from __future__ import annotations

import re
import sys
from functools import lru_cache

from torch import fx
from xdsl.dialects.builtin import UNKNOWN_LOC, CallSiteLoc, FileLineColLoc, IntAttr, NameLoc, StringAttr
from xdsl.ir import Attribute

from spmdir.core.errors import Location

_FRAME = re.compile(r'File "([^"]+)", line ([0-9]+)')
_LIBRARY_FILE = re.compile(r"packages[/\\]torch[/\\]|[/\\]spmdir[/\\](?:importer|runtime|torch_interop)[/\\]|^<")
_INSTALLED = re.compile(r".*(?:site|dist)-packages[/\\]")
_DEPTH = 32
"""The largest number of frames in a location: the innermost frames of a stack. A stack in a file may have any depth."""


@lru_cache(maxsize=65536)
def is_library_file(file: str) -> bool:
    """Return whether a file is not the user's: it belongs to torch or spmdir, or is generated code such as `<eval>`."""
    return _LIBRARY_FILE.search(file) is not None


@lru_cache(maxsize=65536)
def user_frames(stack_trace: str | None) -> tuple[Location, ...]:
    """Return the frames of user code in a stack trace, innermost last; () if `stack_trace` is not a text.

    Paths in installed packages are relative to `site-packages`. Other paths have no folders.
    """
    if not isinstance(stack_trace, str):  # archives of strangers may contain any value
        return ()
    frames = [(file, int(line)) for file, line in _FRAME.findall(stack_trace) if not is_library_file(file)]
    return tuple(Location(_relative(file), line, 1) for file, line in frames)


def innermost_frame(stack_trace: str | None) -> Location | None:
    """Return the innermost frame of user code in a stack trace; None if there is none."""
    return next(reversed(user_frames(stack_trace)), None)


@lru_cache(maxsize=65536)
def _relative(file: str) -> str:
    """Return `torchvision/ops/misc.py` for a file below site-packages, and `train.py` for any other."""
    relative = _INSTALLED.sub("", file).replace("\\", "/")
    return relative if relative != file.replace("\\", "/") else relative.rpartition("/")[2]


def node_location(node: fx.Node) -> Location | None:
    """Return the line of user code that a node was traced from; None if the graph does not contain it."""
    return innermost_frame(node.meta.get("stack_trace"))


def current_user_line() -> Location | None:
    """Return the innermost line of user code in the current call stack, for errors during a trace; None without one."""
    frame = sys._getframe(1)
    while frame is not None and is_library_file(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else Location(_relative(frame.f_code.co_filename), frame.f_lineno, 1)


def location_attribute(node: fx.Node) -> Attribute:
    """Return the MLIR location of a node: its call stack, named by the path of its module if it has one."""
    modules = node.meta.get("nn_module_stack")
    path = next(reversed(modules.values()))[0] if modules else ""
    stack = call_stack(user_frames(node.meta.get("stack_trace")))
    return NameLoc(StringAttr(path), stack) if path else stack


@lru_cache(maxsize=65536)
def call_stack(stack: tuple[Location, ...]) -> Attribute:
    """Return `callsite("inner.py":1:1 at callsite(…))` for frames whose last is the innermost; `unknown` for none."""
    location: Attribute = UNKNOWN_LOC
    for frame in stack[-_DEPTH:]:
        frame_location = FileLineColLoc(StringAttr(frame.file), IntAttr(frame.line), IntAttr(frame.column))
        location = frame_location if location == UNKNOWN_LOC else CallSiteLoc(frame_location, location)
    return location
