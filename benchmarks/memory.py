"""The largest resident memory up to each stage of compiling a wide Llama, beside tracing alone and DTensor's."""

from __future__ import annotations

import attrs

from benchmarks.compile_time import UNLIMITED
from benchmarks.measure import Row, cold, options, peak_memory, print_table


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
    rows = [
        Row(f"{function.__name__}: {stage}", peak, form="{:.0f}")
        for function in (plain, ours, dtensor)
        for stage, peak in cold(function, layers).items()
    ]
    print_table(f"peak memory in MB, {layers} layers", rows)


if __name__ == "__main__":
    main()
