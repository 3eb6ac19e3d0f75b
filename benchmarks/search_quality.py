"""How good the decisions of propagate are: `python -m benchmarks.search_quality --plans tp,sp --layers 8`.

The model is a Llama of width 4096, forward + loss + backward, on a mesh of 2×4, where nothing but the parameters, the
inputs and, but for nocons, the residual stream is annotated. Its objective is compared with the lower bound that
`propagate{certify}` proves, at three efforts, and small random programs with the best of all their decisions. Each
program is decided in a process of its own. CPU seconds.
"""

from __future__ import annotations

import attrs

from benchmarks.measure import Row, Stopwatch, cold, listed, options, peak_memory, print_table

PLANS = ("tp", "tp_fsdp", "fsdp", "sp", "nocons")

GAP, GAP_ABOVE_FLOOR, SECONDS = 0.5, 10.0, 3.0
"""The most that a gap should be, in per cent, and the most seconds in which it should be proved."""

OPTIMAL = 1 + 1e-6
"""Below this multiple of the least cost a decision is the best."""


@attrs.frozen
class Decided:
    """One run of propagate.

    Attributes:
        objective: modelled seconds of one step of a rank.
        seconds: CPU time of the run.
        memory: the largest resident size of the process, in MB.
        bound: what no decision costs less than, where it was asked for.
        gap, gap_above_floor: of the bound, in per cent.
    """

    objective: float
    seconds: float
    memory: float
    bound: float = 0.0
    gap: float = 0.0
    gap_above_floor: float = 0.0


def decided(plan: str, layers: int, effort: int | None, certify: bool) -> Decided:
    """Decide the wide model under a plan, with the default effort if that is None."""
    import spmdir
    from benchmarks.programs import LLAMA_7B_WIDE, shardings, trace
    from spmdir.pipeline.options import load_pass

    assert load_pass("propagate")
    config = attrs.evolve(LLAMA_7B_WIDE, layers=layers)
    given, residual = shardings(config, plan)
    graph, *_ = trace(config, residual)
    module = spmdir.import_fx(graph, spmdir.Mesh({"data": 2, "model": 4}), given)
    named = [f"effort={effort}"] * (effort is not None) + ["certify"] * certify
    watch = Stopwatch()
    spmdir.run_passes(module, f"propagate{{{' '.join(named)}}}")
    watch.lap("propagate")
    report = spmdir.report.comm_report(module)
    certificate, objective = report.certificate, report.objective
    assert objective is not None
    found = Decided(objective, watch.seconds["propagate"], peak_memory())
    if certificate is None:
        return found
    gaps = 100 * certificate.gap, 100 * certificate.gap_above_floor
    return attrs.evolve(found, bound=certificate.lower_bound, gap=gaps[0], gap_above_floor=gaps[1])


def rows_of(plan: str, layers: int, efforts: list[int]) -> list[Row]:
    """The figures of one plan: the proof first, then what other efforts find."""
    found, proved = cold(decided, plan, layers, None, False), cold(decided, plan, layers, None, True)
    name = f"L={layers} {plan}"
    bound = f"{_ms(proved.objective)}, {_ms(proved.bound)} at the least"
    rows = [
        Row(f"{name}: gap, %", proved.gap, GAP, detail=bound),
        Row(f"{name}: gap above the least compute, %", proved.gap_above_floor, GAP_ABOVE_FLOOR),
        Row(f"{name}: certify, s", proved.seconds - found.seconds, SECONDS, detail=f"{proved.memory:.0f} MB"),
        Row(f"{name}: propagate, s", found.seconds, detail=f"{_ms(found.objective)}, {found.memory:.0f} MB"),
    ]
    for effort in efforts:
        other = cold(decided, plan, layers, effort, False)
        gap = 100 * (other.objective - proved.bound) / other.objective
        detail = f"{_ms(other.objective)}, {other.seconds:.2f} s, {other.memory:.0f} MB"
        rows.append(Row(f"{name}: effort {effort}, gap, %", gap, detail=detail))
    return rows


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


SMALL_MESHES = {
    "one axis": (5, 1, {"a": 4}),
    "two axes": (5, 1, {"a": 2, "b": 2}, {"b": 4, "a": 2}),
    "three axes": (1, 4, {"a": 2, "b": 2, "c": 2}),
}
"""Number of mesh axes → the most ops of a small program, the part of the programs to decide, and the sizes of the axes.

Trying all decisions on three axes takes up to half a minute for one op.
"""


def tried_exhaustively(axes: str, count: int) -> tuple[list[Row], str]:
    """Compare the search and its bound with the best of all decisions of small random programs.

    Args:
        axes: a key of SMALL_MESHES.
        count: the number of programs. Each is decided for two topologies.

    Returns:
        The rows, and the text of the program with the worst decision; empty if all decisions are the best.
    """
    from spmdir.core.mesh import Mesh
    from spmdir.reshard.topology import FLAT, H100X8
    from spmdir.search.certificate.certificate import certify
    from spmdir.search.solve import solve
    from tests.search.exhaustive import optimum
    from tests.search.random_programs import for_each, programs
    from tests.search.test_search import problem_of

    ops, part, *sizes = SMALL_MESHES[axes]
    meshes = list(map(Mesh, sizes))
    found: dict[float, str] = {}
    ratios: list[float] = []
    bounds: list[float] = []
    unknown = 0

    def run(program) -> None:
        nonlocal unknown
        for topology in (FLAT, H100X8):
            problem = attrs.evolve(problem_of(program.text), topology=topology)
            cost = solve(problem).cost
            best = optimum(problem, cost, 3000)
            if best is None or best.cost <= 0:
                unknown += 1
                continue
            ratios.append(cost / best.cost)
            found.setdefault(ratios[-1], program.text)
            bounds.append(certify(problem, cost).lower_bound / best.cost)

    for_each(run, programs(meshes, ops=ops, lengths=(4, 8, 63, 64, 1024)), max(count // part, 1))
    if not ratios:
        return [Row(f"{axes}: decision / best, worst", 1.0, OPTIMAL, detail="no program has a known best decision")], ""
    optimal = 100 * sum(ratio < OPTIMAL for ratio in ratios) / len(ratios)
    tight = 100 * sum(ratio > 1 - 1e-3 for ratio in bounds) / len(bounds)
    worst = max(ratios)
    detail = f"{optimal:.1f} % of {len(ratios)} best; {unknown} not compared"
    rows = [
        Row(f"{axes}: decision / best, worst", worst, OPTIMAL, form="{:.4f}", detail=detail),
        Row(
            f"{axes}: bound / best, highest", max(bounds), 1 + 1e-6, form="{:.6f}", detail=f"{tight:.0f} % within 0.1 %"
        ),
        Row(f"{axes}: bound / best, lowest", min(bounds), form="{:.4f}"),
    ]
    return rows, found[worst] if worst >= OPTIMAL else ""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--plans", type=listed(str), default=list(PLANS), help=",".join(PLANS))
    parser.add_argument("--layers", type=listed(int), default=[8], help="2,8,32")
    parser.add_argument("--efforts", type=listed(int), default=[0, 1000], help="beside the default; 0,1000")
    parser.add_argument("--exhaustive", type=int, default=30, help="small programs for each number of axes; 0 for none")
    chosen = parser.parse_args()
    for layers in chosen.layers:
        for plan in chosen.plans:
            print_table("quality of decisions, wide model", rows_of(plan, layers, chosen.efforts))
    if chosen.exhaustive:
        results = [cold(tried_exhaustively, axes, chosen.exhaustive) for axes in SMALL_MESHES]
        print_table("quality of decisions, small programs", [row for rows, _ in results for row in rows])
        print("\n".join(filter(None, (worst for _, worst in results))))


if __name__ == "__main__":
    main()
