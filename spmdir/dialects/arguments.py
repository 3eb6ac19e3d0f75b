"""Kinds of arguments of public functions that are values of the IR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spmdir.core.arguments import Kind


def _is_module(value: object) -> bool:
    from xdsl.dialects.builtin import ModuleOp  # the list of passes is read without xDSL

    return isinstance(value, ModuleOp)


def _module_of(value: Any) -> str:
    """Return advice for messages, if `value` is the result of `parallelize` or `rank_programs`."""
    if hasattr(type(value), "rank_module"):
        return "; pass its `.module`, or its `.rank_module` for the program of a rank"
    if isinstance(value, Sequence) and value and hasattr(type(value[0]), "rank_module"):
        return "; pass its `[0].module`, or its `[0].rank_module` for the program of a rank"
    return ""


MODULE = Kind(_is_module, "a module, as import_fx and parse return it", _module_of)
