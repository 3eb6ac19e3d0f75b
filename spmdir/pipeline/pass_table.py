"""The table of passes by name. A pass is imported when it is first used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

PassTable = Mapping[str, "str | type[ModulePass]"]
"""Pass name → its class, or `module:class` for an import on first use."""

PASSES: PassTable = {
    "inline": "spmdir.passes.inline:InlinePass",
    "fold-experts": "spmdir.passes.fold_experts:FoldExpertsPass",
    "fold-views": "spmdir.passes.fold_views:FoldViewsPass",
    "propagate": "spmdir.passes.propagate:PropagatePass",
    "bind-sizes": "spmdir.passes.bind_sizes:BindSizesPass",
    "expand": "spmdir.passes.expand:ExpandPass",
    "insert-reshard": "spmdir.passes.insert_reshard:InsertReshardPass",
    "lower-reshard": "spmdir.passes.lower_reshard:LowerReshardPass",
    "fuse-collectives": "spmdir.passes.fuse_collectives:FuseCollectivesPass",
    "pad-rows": "spmdir.passes.pad_rows:PadRowsPass",
    "split-matmul": "spmdir.passes.split_matmul:SplitMatmulPass",
    "cut-stages": "spmdir.passes.cut_stages:CutStagesPass",
    "split-backward": "spmdir.passes.split_backward:SplitBackwardPass",
    "make-schedule": "spmdir.passes.make_schedule:MakeSchedulePass",
    "localize": "spmdir.passes.localize:LocalizePass",
    "fit-memory": "spmdir.passes.fit_memory:FitMemoryPass",
    "bucket": "spmdir.passes.bucket:BucketPass",
    "split-async": "spmdir.passes.split_async:SplitAsyncPass",
    "reorder": "spmdir.passes.reorder:ReorderPass",
    "schedule": "spmdir.passes.schedule:SchedulePass",
    "verify-spmd": "spmdir.passes.verify_spmd:VerifySpmdPass",
    "print-rules": "spmdir.passes.print_rules:PrintRulesPass",
    "outline-layers": "spmdir.passes.outline_layers:OutlineLayersPass",
    "strip-spmd": "spmdir.passes.strip_spmd:StripSpmdPass",
    "canonicalize": "spmdir.passes.cleanup:Canonicalize",
    "cse": "spmdir.passes.cleanup:CSE",
    "dce": "spmdir.passes.cleanup:DCE",
}
"""The passes of spmdir. The passes that partition and schedule come first, in the order of pipelines. Then come those
that check, print, outline layers or strip, at any point, and last the clean-up passes of xDSL."""
