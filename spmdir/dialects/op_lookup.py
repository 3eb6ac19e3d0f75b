"""The class of an op by its name, where no dialect lists it: ops of torch libraries, and functions of sizes."""

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
"""Namespaces of functions of sizes that a dialect lists; `math` is not among them, for xDSL has a dialect `math`."""


def class_of(name: str) -> type[Operation] | None:
    """Return the class of op `name`; None for text that can name no op."""
    return SIZE_OPS.get(name) or (op_class(name) if _OP_NAME.fullmatch(name) else None)


def load_named_ops(parser: AttrParser) -> None:
    """Load a class for each op of the text of `parser` that no registered dialect lists.

    A stock context has no hook for unknown names, unlike `IRContext`; so what the text names is loaded before it is
    met.
    """
    ctx = parser.ctx
    if type(ctx) is not Context:
        return
    loaded, dialects = {op.name for op in ctx.loaded_ops}, set(ctx.registered_dialect_names)
    for quoted, plain in _CALL.findall(parser.lexer.input.content, parser.pos):
        name = quoted or plain
        kind = class_of(name)
        namespace = name.partition(".")[0]
        listed_there = namespace in dialects and (name not in FUNCTIONS or namespace in SIZE_NAMESPACES)
        if kind is None or name in loaded or listed_there:
            continue
        loaded.add(name)
        ctx.load_op(kind)


def torch_dialect(namespace: str) -> Dialect:
    """Return the dialect of the ops that the table lists of `namespace`, which is `aten` or `prims`."""
    classes = [class_of(name) for name in listed(namespace)]
    return Dialect(namespace, [kind for kind in classes if kind is not None], [])


def size_dialect(namespace: str) -> Dialect:
    """Return the dialect of the functions of sizes in `namespace`, one of `SIZE_NAMESPACES`."""
    return Dialect(namespace, [SIZE_OPS[name] for name in FUNCTIONS if name.partition(".")[0] == namespace], [])
