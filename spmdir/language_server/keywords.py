"""The keywords of programs, rules and rewrites, for highlighters. A test compares them with the dialects."""

from __future__ import annotations

from spmdir.reshard.collectives import SHIPPED

STRUCTURE = ("func.func", "func.call", "func.return", "return", "builtin.module", "module", "private", "attributes")
"""The keywords of the structure of a program."""

CLAUSES = ("after", "before", "capacity", "dim", "fill", "from", "on", "op", "steps", "stream", "to", "value")
"""The keywords of collectives and of other ops of the dialect."""

TAILS = ("needs", "of", "intra", "loc")
"""The keywords after ops and meshes."""

COLLECTIVES = (
    *(spec.name for spec in SHIPPED), "halo", "halo_reduce", "rotate", "exchange_counts", "exchange_rows",
    "exchange_slots",
)  # fmt: skip
"""The collectives and local steps of `spmd`. Asynchronous forms end in `_start`."""

OTHER_OPS = (
    "assemble", "check_capacity", "choose", "combine", "constant", "constraint", "finish", "identity", "local_index",
    "mesh", "offload", "pack", "pipeline", "positions", "reload", "reshard", "size", "sizes", "wait",
)  # fmt: skip
"""The other ops of `spmd`."""

PLACEMENTS = (
    "R", "S", "P", "Arrivals", "Cleared", "Cyclic", "Drawn", "Grouped", "Home", "LocalCounts", "LocalOrder", "Masked",
    "Norm", "Padded", "Quantised", "Ragged", "Shadow", "Slots", "Strided", "ZigZag",
)  # fmt: skip
"""The placements of spmdir, except `?`."""

REDUCTIONS = ("sum", "avg", "max", "min", "product", "any", "all")
"""The reductions of partial placements."""

ELEMENT_TYPES = ("f64", "f32", "f16", "bf16", "f8E4M3FN", "f8E5M2", "i64", "i32", "i16", "i8", "ui8", "i1", "complex")
"""Element types. `complex` is the keyword of `complex<f32>` and `complex<f64>`."""

RULE_CLAUSES = (
    "adds", "aligned", "carries", "commutes", "expand", "extent", "flops", "ignores", "linear", "lists", "local",
    "moves", "multilinear", "nonempty", "over", "replicated", "same", "sizes", "slides", "swaps", "to", "unsharded",
    "views",
)  # fmt: skip
"""The keywords of clauses of rules, except reductions."""

RULE_CONTROL = ("and", "as", "if", "in", "return", "ring", "unless", "when")
"""The keywords of conditions and statements in rules."""

REWRITE_WORDS = ("dim", "exact", "from", "on", "op", "to", "when")
"""The keywords of rewrites."""
