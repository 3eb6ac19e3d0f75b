"""Read the module that `capture` returns: the program of one function, and the requests that it accepts."""

from __future__ import annotations

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import Rewriter

from spmdir.core.arguments import TEXT, accepts
from spmdir.core.errors import UnsupportedError, did_you_mean
from spmdir.dialects import ir
from spmdir.dialects.arguments import MODULE
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.caches import CACHE_KIND
from spmdir.dialects.values import signature_kind, signature_name
from spmdir.serving.request_limits import Limits
from spmdir.serving.scheduler import DECODE, PREFILL

DRAW = "sampling.draw"
"""The op that reduces logits to candidates, after two more columns."""


@accepts(module=MODULE, name=TEXT)
def program_of(module: ModuleOp, name: str) -> ModuleOp:
    """Return a copy of a module with one of its functions, such as `decode`, for `simulate`, `lower_to_fx` and reports.

    Args:
        module: a module with several functions, as `capture` returns it.
        name: the name of the function to keep.

    Raises:
        UnsupportedError: the module has no such function.

    Example:
        >>> spmdir.simulate(spmdir.serving.program_of(module, "decode"), [ids, positions], state_dict)
    """
    names = [function.sym_name.data for function in ir.functions(module)]
    if name not in names:
        raise UnsupportedError(f"the module has no function '{name}'{did_you_mean(name, names)}")
    copy = module.clone()
    for function in ir.functions(copy):
        if function.sym_name.data != name:
            Rewriter.erase_op(function)
    return copy


def limits_of(module: ModuleOp) -> Limits:
    """Return the requests that a module accepts, by the sizes of its caches, prefills and logits."""
    names = [function.sym_name.data for function in ir.functions(module)]
    lengths = sorted(int(name.removeprefix(PREFILL)) for name in names if name.startswith(PREFILL))
    decode = ir.functions(module)[names.index(DECODE)]
    cache = next(value for value in decode.args if signature_kind(decode, "arg_attrs", value.index) == CACHE_KIND)
    pages, page_rows, *_ = meta_of(cache.type).shape  # type: ignore[union-attr]
    draw = next(op for op in decode.body.block.ops if op.name == DRAW)
    vocabulary = meta_of(draw.operands[0].type).shape[-1]  # type: ignore[union-attr]
    columns = meta_of(draw.results[0].type).shape[-1]  # type: ignore[union-attr]
    shapes = {
        signature_name(decode, "arg_attrs", value.index): meta_of(value.type).shape  # type: ignore[union-attr]
        for value in decode.args
    }
    batch, has_pages = shapes["ids"][0], "table" in shapes
    max_length = page_rows * shapes["table"][1] if has_pages else page_rows
    limits = Limits(batch, max_length, lengths, vocabulary, columns - 2)
    return attrs.evolve(limits, pages=pages, page_rows=page_rows) if has_pages else limits
