"""Whether the runner-up of each reshard costs what deciding again gives: `python -m benchmarks.runner_up`.

Of the five plans of the small Llama of `benchmarks/programs.py`, on a mesh of 2×4: for each reshard and each axis on
which its user has another strategy, the price that `explain` gives is compared with the time of the program that is
written as it is decided without the strategy that was chosen. Equal layers have equal reshards, of which one is taken.
The table has the largest difference of all reshards, relative to the time of the program, and how much time the best
runner-up saves.
"""

from __future__ import annotations

import itertools

from benchmarks.flatness import PLANS
from benchmarks.measure import Row, cold, listed, options, print_table

MOST = 1e-6
"""The largest relative difference that is rounding."""

GAIN = 0.1
"""The most that a runner-up may take less than the decision, in per cent."""


def of_plan(plan: str, layers: int, most: int | None) -> tuple[int, int, float, float]:
    """Return the numbers of reshards and of runner-ups of a plan, the largest relative difference of the prices, and
    by how much the cheapest runner-up is dearer than the decision."""
    import spmdir
    from benchmarks.programs import Config, shardings, trace
    from spmdir.explanation.decided_program import DecidedProgram
    from spmdir.pipeline.pipeline import as_pipeline
    from spmdir.search.restricted_node import Restricted, ends_of

    config = Config(layers=layers)
    given, residual = shardings(config, plan)
    graph, *_ = trace(config, residual)
    module = spmdir.import_fx(graph, spmdir.Mesh({"data": 2, "model": 4}), given)
    program = DecidedProgram(module, as_pipeline("propagate{memory=none}"))
    resharded: dict[tuple[int, str], None] = {}
    reshards = 0
    for value, users in program.users.items():
        maker = program.producer[value]
        position = program.problem.nodes[maker].results.index(value)
        for node, slot in users:
            if program.nested.produced[value] == program.nested.needed[node][slot]:
                continue
            reshards += 1
            for axis in program.mesh.axis_names:
                made, needed = program.strategies[axis][maker], program.strategies[axis][node]
                if made.results[position] != needed.operands[slot]:
                    resharded[min(program.equal_nodes(node)), axis] = None
    differences, dearer = [0.0], []
    for node, axis in itertools.islice(resharded, most):
        found = program.decide_without_strategy(node, axis)
        if found is None:
            continue
        nodes, chosen = program.problem.nodes, ends_of(program.strategies[axis][node])
        without = {one: Restricted(nodes[one].source, axis, frozenset([chosen])) for one in program.equal_nodes(node)}
        search, solution = program.search.again(without, program.solution)
        anew = search.write(solution)
        differences.append(abs(found.seconds - anew) / program.seconds)
        dearer.append(found.seconds / program.seconds - 1)
    return reshards, len(dearer), max(differences), min(dearer, default=0.0)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--plans", type=listed(str), default=list(PLANS), help=",".join(PLANS))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--most", type=int, help="runner-ups of a plan that are compared (default: all)")
    chosen = parser.parse_args()
    rows = []
    for plan in chosen.plans:
        reshards, found, most, least = cold(of_plan, plan, chosen.layers, chosen.most)
        detail = f"{reshards} reshards, {found} runner-ups that differ, the cheapest {100 * least:+.2g} %"
        rows.append(Row(plan, most, MOST, form="{:.0e}", detail=detail))
        rows.append(Row(f"{plan}: the best runner-up saves, %", max(-100 * least, 0.0), GAIN, form="{:.3f}"))
    print_table("runner-ups beside deciding anew", rows)


if __name__ == "__main__":
    main()
