"""Registration of spmdir with the tools of xDSL, by the entry point `spmdir` of the group `xdsl.universe`.

Stock `xdsl-opt` reads, verifies and prints the IR with it, and runs the passes under names that begin with `spmd-`:
`xdsl-opt in.mlir -p 'spmd-propagate{effort=2},cse'`. Every xDSL tool loads this module at its start, so that nothing
is imported here but what makes the table; dialects and passes are, once they are asked for.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from xdsl.universe import XDSL_UNIVERSE, Universe

from spmdir.pipeline.options import load_pass, make_pass
from spmdir.pipeline.pass_table import PASSES

if TYPE_CHECKING:
    from xdsl.context import Context
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.ir import Dialect
    from xdsl.passes import ModulePass
    from xdsl.utils.arg_spec import ArgSpec


def _spmd() -> Dialect:
    from spmdir.dialects.spmd import Spmd

    return Spmd


def _torch(namespace: str) -> Dialect:
    from spmdir.dialects.op_lookup import torch_dialect

    return torch_dialect(namespace)


def _sizes(namespace: str) -> Dialect:
    from spmdir.dialects.op_lookup import size_dialect

    return size_dialect(namespace)


def _stock_name(name: str) -> str:
    """`propagate` → `spmd-propagate`, `verify-spmd` → `spmd-verify`."""
    return f"spmd-{name.removesuffix('-spmd')}"


@cache
def _stock_pass(name: str) -> type[ModulePass]:
    """Return the pass `name` as tools of xDSL run it: with options as in spmd-opt, by the packaged rules."""
    from spmdir.dialects import ir
    from spmdir.dialects.context import IRContext

    kind = load_pass(name)

    class StockPass(kind):
        @classmethod
        def from_spec(cls, spec: ArgSpec) -> ModulePass:
            texts = {key: ",".join(map(_text, values)) for key, values in spec.parameters.items()}
            return cls(**vars(make_pass(name, texts)))

        def apply(self, ctx: Context, op: ModuleOp) -> None:
            kind.apply(self, ctx if isinstance(ctx, IRContext) else ir.context(), op)

    StockPass.name = _stock_name(name)
    StockPass.__doc__ = kind.__doc__
    return StockPass


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


UNIVERSE = Universe(
    all_dialects={
        "spmd": _spmd,
        **{namespace: partial(_torch, namespace) for namespace in ("aten", "prims")},
        **{namespace: partial(_sizes, namespace) for namespace in ("builtins", "operator", "torch")},
    },
    all_passes={
        _stock_name(name): partial(_stock_pass, name) for name in PASSES if name not in XDSL_UNIVERSE.all_passes
    },
)
