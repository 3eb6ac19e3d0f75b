"""Find the class of an op by its name, for ops that no dialect lists: torch ops, and functions of sizes."""

from __future__ import annotations

import re

from xdsl.context import Context
from xdsl.ir import Dialect, Operation
from xdsl.parser import AttrParser

from spmdir.core.admitted_ops import listed
from spmdir.dialects.aten import op_class
from spmdir.dialects.size_ops import FUNCTIONS, SIZE_OPS

_OP_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+", re.ASCII)
_CALL = re.compile(rf'= (?:"({_OP_NAME.pattern})"|({_OP_NAME.pattern}))(?=\()', re.ASCII)

SIZE_NAMESPACES = ("builtins", "operator", "torch")
"""Namespaces of functions of sizes that have a dialect. `math` has none, because xDSL has another dialect `math`."""


def class_of(name: str) -> type[Operation] | None:
    """Return the class of op `name`; None if it is not a valid name of an op."""
    return SIZE_OPS.get(name) or (op_class(name) if _OP_NAME.fullmatch(name) else None)


def load_named_ops(parser: AttrParser) -> None:
    """Load the classes of the ops in the text of `parser` that no registered dialect lists.

    xDSL's `Context` has no hook for unknown names, unlike `IRContext`. Therefore the ops are loaded before the parser
    reaches them.
    """
    ctx = parser.ctx
    # `IRContext`, a subclass, finds the classes itself.
    if type(ctx) is not Context:
        return
    loaded, dialects = {op.name for op in ctx.loaded_ops}, set(ctx.registered_dialect_names)
    for quoted, plain in _CALL.findall(parser.lexer.input.content, parser.pos):
        name = quoted or plain
        kind = class_of(name)
        namespace = name.partition(".")[0]
        is_listed = namespace in dialects and (name not in FUNCTIONS or namespace in SIZE_NAMESPACES)
        if kind is None or name in loaded or is_listed:
            continue
        loaded.add(name)
        ctx.load_op(kind)


def torch_dialect(namespace: str) -> Dialect:
    """Return the dialect `aten` or `prims`, with the ops that the table of admitted ops lists."""
    classes = [class_of(name) for name in listed(namespace)]
    return Dialect(namespace, [kind for kind in classes if kind is not None], [])


def size_dialect(namespace: str) -> Dialect:
    """Return the dialect of the functions of sizes in `namespace`, one of `SIZE_NAMESPACES`."""
    return Dialect(namespace, [SIZE_OPS[name] for name in FUNCTIONS if name.partition(".")[0] == namespace], [])
