"""The CPU seconds in which a training step of a Llama of 70B parameters is decided, cut into stages and scheduled.

The mesh is pp 4 × fsdp 8 × tp 8. The table also has the idle time of the order, and the memory of each rank: its shards
of the state and of the sums of gradients, and the most activations that it saves for the backward.
"""

from __future__ import annotations

import time

from benchmarks.measure import Row, cold, listed, options, print_table


def measured(layers: int, micro: int, schedule: str, sizes: list[int]) -> dict[str, tuple[float, ...]]:
    """Return name → figures.

    Args:
        micro: the number of micro-batches, each of one sequence of 4096 tokens for each rank along fsdp.
        schedule: the kind of the order.
        sizes: the sizes of the axes pp, fsdp and tp.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx
    from transformers import LlamaConfig, LlamaForCausalLM

    import spmdir
    from spmdir.analysis.stage_times import local_bytes, stage_times
    from spmdir.core.placement.pipeline_axis import PipelineAxis
    from spmdir.dialects import ir
    from spmdir.dialects.pipeline_flow import StepFlow
    from spmdir.dialects.pipeline_op import pipeline_op
    from spmdir.pipeline.pipeline import SCHEDULED, Pipeline
    from spmdir.pipelined.actions import StageMessage, StepOrder
    from spmdir.pipelined.times import lower_bound, replay
    from spmdir.runtime.parallelize_stages import cut_decided

    ranks, fsdp, tp = sizes
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8}
    shape = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": layers, "vocab_size": 128256}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**shape, **heads, max_position_embeddings=4096))
    laps, start = [], time.process_time()

    def lap() -> None:
        nonlocal start
        laps.append(time.process_time() - start)
        start = time.process_time()

    def loss(model: torch.nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=tokens, use_cache=False).logits.float()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step, state = spmdir.training_step(
        model, loss, optimizer, clip_grad_norm=1.0, accumulate=micro, compute_dtype=torch.bfloat16
    )
    tokens = torch.empty(fsdp, 4096, dtype=torch.int64, device="meta")
    graph = make_fx(step.micro_step, tracing_mode="fake")(state, tokens, tokens)
    lap()
    mesh = spmdir.Mesh({"fsdp": fsdp, "tp": tp}, intra_node=("tp",))
    module = spmdir.import_fx(graph, mesh, spmdir.placement.sharding_plan(model, mesh, "fsdp*tp"))
    lap()
    passes = Pipeline(SCHEDULED, topology="h100x8")
    module = spmdir.run_passes(module, passes.through("propagate"))
    lap()
    module = cut_decided(module, PipelineAxis("pp", schedule), ranks, passes)  # type: ignore[arg-type]
    lap()
    op = pipeline_op(module)
    assert op is not None
    flow = StepFlow.of(op)
    with passes.rules as rules:
        times = stage_times(flow, ir.mesh(module), rules, passes.find_topology(None))
    actions = tuple(e for e in op.step.entries if (e.action if isinstance(e, StageMessage) else e).kind != "U")
    order = StepOrder(flow.stage_map, micro, actions, op.step.is_split)
    timeline = replay(order, times)
    held: dict[tuple[int, str], int] = {}
    for part, function in flow.functions.items():
        for name, value in zip(flow.arguments(part), function.args, strict=True):
            if op.step.is_state(name):
                held[op.step.stages[part.stage].coordinate, name] = local_bytes(value, mesh)
    state_bytes = [sum(size for (place, _), size in held.items() if place == rank) for rank in range(ranks)]
    bound = lower_bound(order.stage_map, micro, times, order.is_split)
    return {
        "laps": tuple(laps),
        "step": (timeline.seconds, bound, timeline.bubble),
        "state": tuple(state_bytes),
        "saved": timeline.peak_saved,
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--micro", type=int, default=16, help="the number of micro-batches")
    parser.add_argument("--schedule", default="zb", help="the kind of the order")
    parser.add_argument("--mesh", type=listed(int), default=[4, 8, 8], help="the sizes of pp, fsdp and tp")
    chosen = parser.parse_args()
    figures = cold(measured, chosen.layers, chosen.micro, chosen.schedule, chosen.mesh)
    traced, imported, decided, cut = figures["laps"]
    seconds, bound, bubble = figures["step"]
    rows = [
        Row("decide, cut and schedule, CPU s", decided + cut, 60.0, detail=f"{decided:.1f} s to decide"),
        Row("trace and import, CPU s", traced + imported, detail=f"{traced:.1f} s to trace"),
        Row("micro-batches, s", seconds, detail=f"at least {bound:.3f} s; idle {bubble:.1%}"),
    ]
    for rank, (state, saved) in enumerate(zip(figures["state"], figures["saved"], strict=True)):
        rows.append(
            Row(f"memory of a rank at pp {rank}, GB", (state + saved) / 1e9, detail=f"{saved / 1e9:.1f} GB saved")
        )
    shape = " × ".join(f"{axis} {size}" for axis, size in zip(("pp", "fsdp", "tp"), chosen.mesh, strict=True))
    print_table(f"Llama 70B, {chosen.layers} layers, {shape}, {chosen.micro} micro-batches, {chosen.schedule}", rows)


if __name__ == "__main__":
    main()
