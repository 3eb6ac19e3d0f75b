"""Kinds of arguments of public functions that are values of the IR."""

from __future__ import annotations

from spmdir.core.arguments import Kind


def _is_module(value: object) -> bool:
    from xdsl.dialects.builtin import ModuleOp  # the list of passes is read without xDSL

    return isinstance(value, ModuleOp)


MODULE = Kind(_is_module, "a module, as import_fx and parse give it")
