"""The largest resident memory up to each stage of compiling a wide Llama, beside tracing alone and DTensor's."""

from __future__ import annotations

import attrs

from benchmarks.compile_time import UNLIMITED
from benchmarks.measure import Row, cold, options, peak_memory, print_table

BESIDE_PLAIN = 1.2
"""The most memory that spmdir should take, as a multiple of that of the plain trace."""


def plain(layers: int) -> dict[str, float]:
    """MB after torch is loaded, and after tracing on one device."""
    from benchmarks.programs import LLAMA_7B_WIDE, load_tracer, trace

    load_tracer()
    peaks = {"torch": peak_memory()}
    trace(attrs.evolve(LLAMA_7B_WIDE, layers=layers), None)
    return peaks | {"make_fx": peak_memory()}


def ours(layers: int) -> dict[str, float]:
    """MB after each stage of ours."""
    import spmdir
    from benchmarks.programs import LLAMA_7B_WIDE, shardings, trace

    config = attrs.evolve(LLAMA_7B_WIDE, layers=layers)
    given, residual = shardings(config, "tp_fsdp")
    graph, *_ = trace(config, residual)
    peaks = {"make_fx": peak_memory()}
    module = spmdir.import_fx(graph, spmdir.Mesh({"data": 2, "model": 4}), given)
    peaks["import"] = peak_memory()
    spmdir.run_passes(module, UNLIMITED, after=lambda name, _: peaks.__setitem__(name, peak_memory()))
    spmdir.lower_to_fx(module)
    return peaks | {"lowering": peak_memory()}


def dtensor(layers: int) -> dict[str, float]:
    """MB after tracing the model written for DTensor."""
    from benchmarks import dtensor_programs
    from benchmarks.programs import LLAMA_7B_WIDE

    dtensor_programs.trace(attrs.evolve(LLAMA_7B_WIDE, layers=layers))
    return {"make_fx": peak_memory()}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--layers", type=int, default=8)
    layers = parser.parse_args().layers
    peaks = {function.__name__: cold(function, layers) for function in (plain, ours, dtensor)}
    rows = [
        Row(f"{name}: {stage}", peak, form="{:.0f}") for name, found in peaks.items() for stage, peak in found.items()
    ]
    rows.append(Row("spmdir / plain", max(peaks["ours"].values()) / max(peaks["plain"].values()), BESIDE_PLAIN))
    print_table(f"peak memory in MB, {layers} layers", rows)


if __name__ == "__main__":
    main()
