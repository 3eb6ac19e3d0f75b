"""How long compiling takes beside tracing: `python -m benchmarks.compile_time --layers 2,8,32,128`.

The model is a Llama of width 4096, forward + loss + backward, on a mesh of 2×4. `plain` is make_fx on one device,
`spmdir` is import, all passes and the lowering of one rank, `DTensor` is make_fx of the same model with DTensors, up to
32 layers. Everything is measured cold, each in a process of its own, twice, in both orders; the faster run counts. What
is cold are caches; the loading of modules is not counted for any of the three. CPU seconds.
"""

from __future__ import annotations

import attrs

from benchmarks.measure import Row, Stopwatch, cold_in_both_orders, listed, options, print_table

BESIDE_PLAIN = {2: 1.5, 8: 1.0, 32: 0.7, 128: 0.7}
"""Layers → the most that spmdir should take, as a fraction of the plain trace."""

BESIDE_DTENSOR = {"sdpa": 0.8, "matmul": 0.2}
"""Attention → the most that plain trace + spmdir should take, as a fraction of DTensor's trace."""

DTENSOR_LAYERS = 32
"""The most layers that are traced with DTensors."""

PIPELINE = "propagate,insert-reshard,lower-reshard,fuse-collectives,localize"

UNLIMITED = PIPELINE.replace("propagate", "propagate{memory=none}")
"""Many layers of this width do not fit into the memory of a rank."""


def plain(layers: int, attention: str) -> dict[str, float]:
    """Seconds to trace the model on one device, without any constraint."""
    from benchmarks.programs import LLAMA_7B_WIDE, load_tracer, trace

    load_tracer()
    watch = Stopwatch()
    trace(attrs.evolve(LLAMA_7B_WIDE, layers=layers, attention=attention), None)
    watch.lap("trace")
    return watch.seconds


def ours(layers: int, attention: str) -> dict[str, float]:
    """Seconds of every stage from the traced graph to the graph of one rank."""
    import spmdir
    from benchmarks.programs import LLAMA_7B_WIDE, shardings, trace
    from spmdir.pipeline.options import load_pass

    compiler = spmdir.import_fx, spmdir.lower_to_fx, *map(load_pass, PIPELINE.split(","))
    assert all(compiler)
    config = attrs.evolve(LLAMA_7B_WIDE, layers=layers, attention=attention)
    given, residual = shardings(config, "tp_fsdp")
    graph, *_ = trace(config, residual)
    watch = Stopwatch()
    module = spmdir.import_fx(graph, spmdir.Mesh({"data": 2, "model": 4}), given)
    watch.lap("import")
    spmdir.run_passes(module, UNLIMITED, after=lambda name, _: watch.lap(name))
    lowered = spmdir.lower_to_fx(module)
    watch.lap("lowering")
    return watch.seconds | {"nodes": len(lowered.graph.nodes)}


def dtensor(layers: int, attention: str) -> dict[str, float]:
    """Seconds to trace the model written for DTensor."""
    from benchmarks import dtensor_programs
    from benchmarks.programs import LLAMA_7B_WIDE, load_tracer

    load_tracer()
    watch = Stopwatch()
    graph = dtensor_programs.trace(attrs.evolve(LLAMA_7B_WIDE, layers=layers, attention=attention))
    watch.lap("trace")
    return watch.seconds | {"nodes": len(graph.graph.nodes)}


def compare(layers: int, attention: str) -> list[Row]:
    """Return the ratios of one model, with the stages of ours."""
    functions = [plain, ours] + [dtensor] * (layers <= DTENSOR_LAYERS)
    runs = cold_in_both_orders(*((function, layers, attention) for function in functions))
    traced, compiled, *peers = (min(found, key=_total) for found in runs)
    stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in compiled.items() if stage != "nodes")
    name = f"L={layers} {attention}"
    ratio = _total(compiled) / _total(traced)
    rows = [Row(f"{name}: spmdir / plain", ratio, BESIDE_PLAIN.get(layers), detail=f"{stages}; {_total(traced):.2f}")]
    both = _total(traced) + _total(compiled)
    for peer in peers:
        detail = f"{both:.2f} / {_total(peer):.2f} s; {compiled['nodes']} / {peer['nodes']} nodes"
        target = BESIDE_DTENSOR[attention]
        rows.append(Row(f"{name}: (plain + spmdir) / DTensor", both / _total(peer), target, detail=detail))
    return rows


def _total(seconds: dict[str, float]) -> float:
    return sum(time for stage, time in seconds.items() if stage != "nodes")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--layers", type=listed(int), default=[2, 8], help="2,8,32,128")
    parser.add_argument("--attention", type=listed(str), default=list(BESIDE_DTENSOR), help=",".join(BESIDE_DTENSOR))
    chosen = parser.parse_args()
    rows = [row for attention in chosen.attention for layers in chosen.layers for row in compare(layers, attention)]
    print_table("compile time", rows)


if __name__ == "__main__":
    main()
