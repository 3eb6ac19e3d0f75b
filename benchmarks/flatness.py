"""Whether equal layers cost the same however many there are: `python -m benchmarks.flatness --plans tp --layers 4,8`.

Of the five plans of the small and the wide Llama of `benchmarks/programs.py`, on a mesh of 2×4 and without a limit of
memory: how much what one more layer takes, in time and in bytes, differs from what it takes between the first two
numbers of layers, in per cent.
"""

from __future__ import annotations

import attrs

from benchmarks.measure import Row, cold, listed, options, print_table

PLANS = ("tp", "tp_fsdp", "fsdp", "sp", "nocons")

MOST = 1.0
"""The most that a layer may differ, in per cent."""


def of_step(plan: str, layers: int, is_wide: bool) -> tuple[float, float]:
    """Modelled seconds of a step of a rank, and the bytes that it sends."""
    import spmdir
    from benchmarks.programs import LLAMA_7B_WIDE, Config, shardings, trace
    from spmdir.pipeline.options import load_pass

    assert load_pass("propagate")
    config = attrs.evolve(LLAMA_7B_WIDE if is_wide else Config(), layers=layers)
    given, residual = shardings(config, plan)
    graph, *_ = trace(config, residual)
    module = spmdir.import_fx(graph, spmdir.Mesh({"data": 2, "model": 4}), given)
    objective = spmdir.report.comm_report(spmdir.run_passes(module, "propagate{memory=none}")).objective
    module = spmdir.run_passes(module, "insert-reshard,lower-reshard,fuse-collectives")
    assert objective is not None
    return objective, spmdir.report.comm_report(module).wire_bytes


def rows_of(plan: str, layers: list[int], is_wide: bool) -> list[Row]:
    """Return the largest difference in time and in bytes of one plan."""
    found = [cold(of_step, plan, count, is_wide) for count in layers]
    rows = []
    for at, (what, unit, scale) in enumerate((("time", "ms", 1e3), ("bytes", "MB", 1e-6))):
        steps = [
            (after[at] - before[at]) / (more - fewer)
            for before, after, fewer, more in zip(found, found[1:], layers, layers[1:], strict=False)
        ]
        worst = max((abs(step - steps[0]) for step in steps), default=0.0)
        name = f"{'wide' if is_wide else 'small'} {plan}: {what}, %"
        rows.append(
            Row(name, 100 * worst / steps[0] if worst else 0.0, MOST, detail=f"{steps[0] * scale:.4g} {unit} a layer")
        )
    return rows


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--plans", type=listed(str), default=list(PLANS), help=",".join(PLANS))
    parser.add_argument("--layers", type=listed(int), default=[4, 8, 32], help="4,8,32,128; three or more")
    parser.add_argument("--no-wide", dest="wide", action="store_false")
    chosen = parser.parse_args()
    for is_wide in (False, True)[: 1 + chosen.wide]:
        rows = [row for plan in chosen.plans for row in rows_of(plan, chosen.layers, is_wide)]
        print_table("a layer beside those before", rows)


if __name__ == "__main__":
    main()
