"""The words of our texts, for highlighters. A test compares those that are listed here with the dialects."""

from __future__ import annotations

from spmdir.reshard.collectives import SHIPPED

STRUCTURE = ("func.func", "func.call", "func.return", "return", "builtin.module", "module", "private", "attributes")
"""The words around the ops of a program."""

CLAUSES = ("after", "before", "dim", "fill", "from", "on", "op", "steps", "stream", "to", "value")
"""The keywords of collectives and of other ops of the dialect."""

TAILS = ("needs", "of", "intra", "loc")
"""The keywords behind ops and meshes."""

COLLECTIVES = (*(spec.name for spec in SHIPPED), "halo", "halo_reduce", "rotate")
"""The ops of `spmd` that change how a value lies on the ranks; those that start also end in `_start`."""

OTHER_OPS = (
    "assemble", "choose", "combine", "constant", "constraint", "finish", "identity", "local_index", "mesh",
    "offload", "pack", "positions", "reload", "reshard", "size", "sizes", "wait",
)  # fmt: skip
"""The other ops of `spmd`."""

PLACEMENTS = ("R", "S", "P", "Cyclic", "Masked", "Norm", "Padded", "Quantised", "Ragged", "Shadow", "Strided", "ZigZag")
"""The placements that come with spmdir, but for `?`."""

REDUCTIONS = ("sum", "avg", "max", "min", "product", "any", "all")
"""What partial values are reduced by."""

ELEMENT_TYPES = ("f64", "f32", "f16", "bf16", "f8E4M3FN", "f8E5M2", "i64", "i32", "i16", "i8", "ui8", "i1", "complex")
"""Element types; those of `complex<f32>` and `complex<f64>` as one word."""

RULE_CLAUSES = (
    "adds", "aligned", "carries", "commutes", "expand", "extent", "flops", "ignores", "linear", "lists", "local",
    "moves", "multilinear", "nonempty", "over", "replicated", "same", "sizes", "slides", "swaps", "to", "unsharded",
    "views",
)  # fmt: skip
"""The words that begin or join clauses of rules, but for reductions."""

RULE_CONTROL = ("and", "as", "if", "in", "return", "ring", "unless", "when")
"""The words of conditions and of statements in rules."""

REWRITE_WORDS = ("dim", "exact", "from", "on", "op", "to", "when")
"""The keywords of rewrites."""
