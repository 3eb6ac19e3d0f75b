"""Parse and print modules, and find the mesh and the functions of a module."""

from __future__ import annotations

import copyreg
from collections.abc import Iterable
from io import StringIO
from typing import Any

from xdsl.dialects.builtin import UNKNOWN_LOC, Builtin, FileLineColLoc, IntAttr, ModuleOp, StringAttr
from xdsl.dialects.func import Func, FuncOp, ReturnOp
from xdsl.ir import Dialect, Operation
from xdsl.utils.exceptions import ParseError as XdslParseError
from xdsl.utils.exceptions import VerifyException

from spmdir.core.arguments import FLAG, INTEGER, TEXT, accepts, instance
from spmdir.core.errors import Location, ParseError, UnsupportedError, text_location
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.limits import check_types
from spmdir.core.mesh import Mesh
from spmdir.dialects.context import IRContext, IRParser, IRPrinter
from spmdir.dialects.layer_calls import layer_named
from spmdir.dialects.locations import location_of
from spmdir.dialects.mesh_op import MeshOp
from spmdir.dialects.pipeline_op import PipelineOp, pipeline_op
from spmdir.dialects.sharding_aliases import ShardingAliases
from spmdir.dialects.sharding_checks import declaration
from spmdir.dialects.spmd import Spmd
from spmdir.dialects.unbalanced_brackets import find_unbalanced
from spmdir.dialects.verifier import verify

_CLEARER_MESSAGES = {
    "Could not parse entire input!": "expected an operation, as in `spmd.mesh @mesh <dp = 2>`",
    "in block definition": "expected an operation or '}'",
    "type expected": "expected a type, as in tensor<16x64xf32>",
    "Expected argument or type": "expected an argument, as in %x: tensor<16x64xf32>",
    "Expected ':' after block argument name!": "expected ':' and the type of the argument",
    "Expected '=' after operation result list": "expected '=' after the names of the results",
    "expect symbol name": "expected a name, as in @main",
    "Expected suffix identifier after {first_char}": "expected a name after '%', '#', '!' or '^'",
}
"""Message of xDSL about a failure → a message with the expected text."""


def context() -> IRContext:
    """Return a fresh context with the dialects of the IR."""
    ctx = IRContext()
    ctx.load_dialect(Builtin)
    ctx.load_dialect(Func)
    ctx.load_dialect(Spmd)
    return ctx


@accepts(text=instance(str, expected="the text of a module"), filename=TEXT, first_line=INTEGER, verify_module=FLAG)
def parse(text: str, filename: str = "<text>", first_line: int = 1, verify_module: bool = True) -> ModuleOp:
    """Parse and verify a module.

    Args:
        text: the text of the module.
        filename: the file name in error messages.
        first_line: the line of the file on which `text` begins.
        verify_module: whether to verify the module.

    Raises:
        ParseError: the text is malformed.
        SpmdirError: the module does not verify.

    Example:
        >>> module = spmdir.parse(open("in.mlir").read(), "in.mlir")
    """
    module = parse_with((), text, filename, first_line)
    if verify_module:
        verify(module)
    return module


def parse_with(dialects: Iterable[Dialect], text: str, filename: str, first_line: int = 1) -> ModuleOp:
    """Parse a module, without verification.

    Args:
        dialects: dialects that the text uses in addition to those of the IR.
        text, filename, first_line: see `parse`.

    Raises:
        ParseError: the text is malformed.
    """
    check_types(text, filename, first_line)
    parser = None
    try:
        with collector_paused():
            ctx = context()
            for dialect in dialects:
                ctx.load_dialect(dialect)
            parser = IRParser(ctx, text, filename, first_line)
            module = parser.parse_module()
    except XdslParseError as error:
        message = error.msg.strip()
        message, offset = _CLEARER_MESSAGES.get(message, message), error.span.start
        unclosed = find_unbalanced(text)
        if unclosed is not None and unclosed.offset <= offset:
            message, offset = unclosed.message, unclosed.offset
        raise ParseError(message, text_location(text, offset, filename, first_line)) from None
    except (RecursionError, ValueError, VerifyException) as error:
        # Python rejects numbers of thousands of digits. The end of Python's message, on how to allow them, is cut off.
        if isinstance(error, RecursionError):
            message = (
                "the text is nested too deeply to be read; expected fewer brackets inside each other: split "
                "the expression"
            )
        else:
            message = str(error).partition("; use sys.")[0]
        line, column = parser.place(parser.pos) if parser else (first_line, 1)
        raise ParseError(message, Location(filename, line, column)) from None
    if module.location == UNKNOWN_LOC:
        module.location = FileLineColLoc(StringAttr(filename), IntAttr(first_line), IntAttr(1))
    return module


_PRINTED = "<printed module>"
"""The file name of `read_printed`. An op with this file name in its location had no location."""


def read_printed(text: str) -> ModuleOp:
    """Parse the text that `print_ir` printed with locations, without verification.

    An op without a location in the text has no location in the module.
    """
    module = parse(text, _PRINTED, verify_module=False)
    for op in module.walk():
        if isinstance(op.location, FileLineColLoc) and op.location.filename.data == _PRINTED:
            op.location = UNKNOWN_LOC
    return module


def _pickle_module(module: ModuleOp) -> tuple[Any, ...]:
    """Pickle a module as its text."""
    return read_printed, (print_ir(module, debuginfo=True),)


copyreg.pickle(ModuleOp, _pickle_module)  # type: ignore[arg-type]  # the stub only allows functions of `object`


@accepts(
    module=instance(Operation, expected="a module, as import_fx and parse return it"), generic=FLAG, debuginfo=FLAG
)
def print_ir(module: Operation, generic: bool = False, debuginfo: bool = False) -> str:
    """Return the text of a module, which `parse` can read.

    Args:
        module: a module at any stage, or one of its ops.
        generic: whether to print ops in MLIR's generic form.
        debuginfo: whether to print locations, with their aliases before the module.

    Raises:
        SpmdirError: an argument has a wrong type.

    Example:
        >>> print(spmdir.print_ir(module))
    """
    buffer = StringIO()
    printer = IRPrinter(stream=buffer, print_generic_format=generic, print_debuginfo=debuginfo)
    if generic or not isinstance(module, ModuleOp) or module.attributes or not module.body.block.ops:
        printer.print_op(module)
        return _with_locations(printer, buffer)
    printer.has_stages = pipeline_op(module) is not None
    if printer.has_stages or any(layer_named(op) is not None for op in module.body.block.ops):
        printer.shardings = ShardingAliases()
    parts = []
    for op in module.body.block.ops:
        printer.print_op(op)
        parts.append(buffer.getvalue())
        buffer.seek(0)
        buffer.truncate()
    definitions = "" if printer.shardings is None else printer.shardings.definitions()
    if definitions:
        # The definitions follow the declarations, such as the mesh that they name, and precede the functions.
        declaration_count = sum(not isinstance(op, (FuncOp, PipelineOp)) for op in module.body.block.ops)
        parts.insert(declaration_count, definitions.rstrip())
    printer.print_string("\n\n".join(parts))
    return _with_locations(printer, buffer)


def _with_locations(printer: IRPrinter, buffer: StringIO) -> str:
    """Return the printed text, after the definitions of its location aliases."""
    definitions = printer.locations.definitions()
    return f"{definitions}\n{buffer.getvalue()}\n" if definitions else f"{buffer.getvalue()}\n"


def mesh_op(module: ModuleOp) -> MeshOp:
    """Return the op that declares the mesh of a module.

    Raises:
        UnsupportedError: the module declares no mesh.
    """
    op = declaration(module, MeshOp.name)
    if not isinstance(op, MeshOp):
        raise UnsupportedError(
            "the module declares no mesh; expected one `spmd.mesh @mesh <dp = 2>`", location_of(module)
        )
    return op


def mesh(module: ModuleOp) -> Mesh:
    """Return the mesh of a module.

    Raises:
        UnsupportedError: the module declares no mesh.
    """
    return mesh_op(module).mesh


def functions(module: ModuleOp) -> list[FuncOp]:
    """Return the functions of a module that have a body."""
    return [op for op in module.body.block.ops if isinstance(op, FuncOp) and op.body.blocks]


def main_function(module: ModuleOp) -> FuncOp:
    """Return the function that a program runs: the only one, the one named main, or the only one that is not private.

    Raises:
        UnsupportedError: there is no such function, or there are several.
    """
    candidates = functions(module)
    names = [function.sym_name.data for function in candidates]
    public_functions = [function for function in candidates if function.sym_visibility is None]
    if "main" in names:
        runnable = [candidates[names.index("main")]]
    else:
        runnable = public_functions if len(candidates) > 1 else candidates
    if len(runnable) != 1:
        raise UnsupportedError(
            f"the module has {len(candidates)} functions, and none is @main; expected one function to run: "
            "name it @main, or make all others private",
            location_of(module),
        )
    return runnable[0]


def terminator(function: FuncOp) -> ReturnOp:
    """Return the `return` op of a function.

    Raises:
        UnsupportedError: the last op is another one.
    """
    last_op = function.body.block.last_op
    if not isinstance(last_op, ReturnOp):
        raise UnsupportedError(
            "the function does not end in `return`; expected `return` as its last op", location_of(function)
        )
    return last_op
