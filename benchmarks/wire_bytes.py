"""How many bytes the partitioned programs send: the five plans of a small Llama, and a wide one against DTensor.

The small model has dim 256, 8 heads, 4 kv heads, ffn 768, seq 128, batch 8 and vocab 1024, f32, on data=2 × model=4.
With --simulate (two layers) all ranks run in one process, in double precision, against the program on one device.
"""

from __future__ import annotations

import attrs

from benchmarks.measure import Row, cold, listed, options, print_table

TARGETS = {
    "tp": {2: 9.2, 8: 31.0},
    "tp_fsdp": {2: 9.2, 8: 31.0},
    "fsdp": {2: 9.3, 8: 32.0},
    "sp": {2: 8.9, 8: 31.0},
    "nocons": {2: 8.4, 8: 30.0},
}
"""Plan → layers → MB that a rank should send at most."""

WIDE_TARGETS = {8: 7.5}
"""Layers → GB that a rank should send at most of the wide model."""

PIPELINE = "propagate{topology=flat memory=none},insert-reshard,lower-reshard,fuse-collectives"
TOLERANCE = 1e-9


def small(plan: str, layers: int, simulate: bool) -> tuple[float, int, float | None]:
    """(MB a rank sends, collectives, largest relative error of the simulation) of one plan of the small model."""
    import torch

    import spmdir
    from benchmarks.programs import Config

    config = Config(layers=layers)
    report = spmdir.report.comm_report(_partitioned(config, plan, torch.float32), "flat")
    error = _error(_partitioned(config, plan, torch.float64), config) if simulate else None
    return report.wire_bytes / 1e6, report.count, error


def _partitioned(config, plan: str, dtype):
    """The small model under a plan, traced with parameters of `dtype`."""
    import spmdir
    from benchmarks.programs import shardings, trace

    given, residual = shardings(config, plan)
    graph, *_ = trace(config, residual, dtype)
    module = spmdir.import_fx(graph, spmdir.Mesh({"data": 2, "model": 4}), given)
    return spmdir.run_passes(module, PIPELINE)


def _error(module, config) -> float:
    """The largest error of any output on random inputs, relative to the output's largest element."""
    import torch

    import spmdir
    from benchmarks.programs import parameter_shapes
    from spmdir.simulator.simulate import run_single

    generator = torch.Generator().manual_seed(0)
    parameters = [
        torch.randn(shape, generator=generator, dtype=torch.float64) * 0.02
        for shape in parameter_shapes(config).values()
    ]
    tokens = [torch.randint(0, config.vocab, (config.batch, config.seq), generator=generator) for _ in range(2)]
    inputs = [*parameters, *tokens]
    pairs = zip(spmdir.simulate(module, inputs), run_single(module, inputs), strict=True)
    return max(float((found - wanted).abs().max() / wanted.abs().max()) for found, wanted in pairs)


def wide(layers: int) -> tuple[float, int]:
    """(bytes a rank sends, collectives) of the wide model, sharded as DTensor's parameters are."""
    import spmdir
    from benchmarks.programs import LLAMA_7B_WIDE, shardings, trace

    config = attrs.evolve(LLAMA_7B_WIDE, layers=layers)
    given, residual = shardings(config, "tp_fsdp")
    graph, *_ = trace(config, residual)
    module = spmdir.import_fx(graph, spmdir.Mesh({"data": 2, "model": 4}), given)
    report = spmdir.report.comm_report(spmdir.run_passes(module, PIPELINE), "flat")
    return report.wire_bytes, report.count


def wide_dtensor(layers: int) -> tuple[float, int]:
    """The same of the program written for DTensor."""
    from benchmarks import dtensor_programs
    from benchmarks.programs import LLAMA_7B_WIDE

    graph = dtensor_programs.trace(attrs.evolve(LLAMA_7B_WIDE, layers=layers))
    sent = dtensor_programs.traffic(graph.graph)
    return sent.wire_bytes, sum(sent.count.values())


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--plans", type=listed(str), default=list(TARGETS), help=",".join(TARGETS))
    parser.add_argument("--layers", type=listed(int), default=[2, 8], help="2,8")
    parser.add_argument("--wide-layers", type=int, default=8, help="of the wide model; 0 to leave it out")
    parser.add_argument("--no-simulate", dest="simulate", action="store_false")
    chosen = parser.parse_args()
    rows = []
    for layers in chosen.layers:
        for plan in chosen.plans:
            sent, count, error = cold(small, plan, layers, chosen.simulate and layers == 2)
            rows.append(Row(f"L={layers} {plan}", sent, TARGETS[plan].get(layers), detail=f"MB, {count} collectives"))
            if error is not None:
                rows.append(Row(f"L={layers} {plan}: error", error, TOLERANCE, form="{:.1e}"))
    print_table("MB a rank sends, small model", rows)
    if chosen.wide_layers:
        ours, count = cold(wide, chosen.wide_layers)
        theirs, their_count = cold(wide_dtensor, chosen.wide_layers)
        name, counts = f"L={chosen.wide_layers}", f"{count} / {their_count} collectives"
        rows = [
            Row(name, ours / 1e9, WIDE_TARGETS.get(chosen.wide_layers), detail="GB"),
            Row(f"{name}: spmdir / DTensor", ours / theirs, 1.0, detail=f"{theirs / 1e9:.2f} GB, {counts}"),
        ]
        print_table("GB a rank sends, wide model", rows)


if __name__ == "__main__":
    main()
