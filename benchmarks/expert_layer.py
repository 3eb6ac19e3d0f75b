"""Partition a training step with one layer of DeepSeek-V3 on dp × ep × tp: `python -m benchmarks.expert_layer`.

The layer has latent attention, 256 routed experts of which each token uses 8, and a shared expert. The embedding and
the head are small, so nearly all ops are those of the layer. The step contains forward, backward and AdamW, in bf16
with f32 parameters, under the recipe `fsdp*tp*ep`. Prints CPU seconds of each stage, and the memory of a rank.
"""

from __future__ import annotations

import json
import time

import torch

from benchmarks.measure import Row, listed, options, print_table
from spmdir.importer.importer import import_fx
from spmdir.pipeline.pipeline import STANDARD, Pipeline, run_passes
from spmdir.plans.resolve import sharding_plan
from spmdir.report import memory_report
from spmdir.reshard.topology import find_topology
from spmdir.runtime.capture import capture_step
from spmdir.runtime.signature import annotate_updates
from spmdir.runtime.training import training_step
from spmdir.sweep.candidate import node_mesh
from spmdir.sweep.workload import ConfiguredModel

TARGET = 20.0
"""The largest CPU seconds of decision and lowering."""

FULL = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "moe_intermediate_size": 2048, "num_attention_heads": 128,
    "num_key_value_heads": 128, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
    "n_shared_experts": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "num_hidden_layers": 1, "first_k_dense_replace": 0, "vocab_size": 1024,
    "max_position_embeddings": 4096,
}  # fmt: skip
"""The sizes of DeepSeek-V3, but one layer and a small vocabulary."""

SMALL = FULL | {
    "hidden_size": 64, "moe_intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "q_lora_rank": 16,
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "vocab_size": 64,
    "max_position_embeddings": 16,
}  # fmt: skip


def rows(config: dict[str, object], sizes: dict[str, int]) -> list[Row]:
    """Return the CPU seconds of each stage, and the memory of a rank.

    Args:
        sizes: the mesh; the innermost axes are inside a node of 8 ranks as far as they fit.
    """
    mesh = node_mesh(sizes, find_topology("h100x8").ranks_per_node)
    workload = ConfiguredModel("deepseek-v3", json.dumps(config), int(str(config["max_position_embeddings"])))
    case = workload.case(mesh.group_size(["dp", "ep"]), None)
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-3)
    step, state = training_step(case.model, case.loss, optimizer, compute_dtype=torch.bfloat16)
    seconds: dict[str, float] = {}
    start = time.process_time()
    plan = sharding_plan(case.model, mesh, "fsdp*tp*ep")
    capture = capture_step(step.micro_step, state, case.batch, torch.device("cpu"))
    plan = plan.with_inputs(len(capture.state), len(capture.convention.examples))
    module = import_fx(capture.program, mesh, plan, out_shardings=capture.result_shardings(None))
    annotate_updates(module, capture)
    seconds["trace and import"] = time.process_time() - start
    pipeline = Pipeline(STANDARD, topology="h100x8").with_option("propagate", "memory", "none")
    for stage, passes in {
        "decide": pipeline.through("propagate"),
        "lower": pipeline.after("propagate"),
    }.items():
        start = time.process_time()
        run_passes(module, passes)
        seconds[stage] = time.process_time() - start
    report = memory_report(module)
    shown = ", ".join(f"{kind} {size / 1e9:.3g} GB" for kind, size in report.by_class.items() if size)
    compiled = seconds["decide"] + seconds["lower"]
    return [
        *(Row(stage, value, form="{:.1f} s") for stage, value in seconds.items()),
        Row("decide and lower", compiled, TARGET, form="{:.1f} s"),
        Row("memory of a rank", report.peak_bytes / 1e9, form="{:.3g} GB", detail=shown),
    ]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--mesh", type=listed(int), default=[8, 8, 4], help="dp,ep,tp; default 8,8,4")
    parser.add_argument("--small", action="store_true", help="take small sizes")
    given = parser.parse_args()
    sizes = dict(zip(("dp", "ep", "tp"), given.mesh, strict=True))
    title = " × ".join(f"{axis} {size}" for axis, size in sizes.items())
    print_table(f"a layer of DeepSeek-V3 on {title}, CPU seconds", rows(SMALL if given.small else FULL, sizes))


if __name__ == "__main__":
    main()
