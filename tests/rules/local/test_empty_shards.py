"""Local forms where ranks hold nothing of a dimension: localize can type them on every rank."""

from __future__ import annotations

from collections.abc import Iterator

from spmdir.checking.rules.samples import attention, index, libraries, loss, view
from spmdir.checking.rules.soundness import AxisStrategies, Case, are_compatible, distribute, meta, prepare
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Local
from spmdir.rules.local.rank import Rank
from spmdir.rules.rule_set import default

FAMILIES = (attention, index, libraries, loss, view)
"""Where ops have local forms that may have empty shards."""

MOST_RANKS = 6
"""On an axis."""


def test_the_local_form_of_every_op_is_typed_on_ranks_whose_shards_are_empty() -> None:
    rules = default()
    faults, tried = [], set()
    for sample in (sample for family in FAMILIES for sample in family.samples()):
        if any(rule.of_kind("local") for rule in rules.alternatives(sample.op)):
            case = prepare(sample, rules)
            for rows, mesh in _ways(case):
                tried.add(sample.op)
                faults += [f"{sample.op} {mesh} {fault}" for fault in _mistyped(case, rows, mesh)]
    assert not faults
    assert len(tried) > 30  # other ops take no empty shards


def _ways(case: Case) -> Iterator[tuple[AxisStrategies, Mesh]]:
    """Yield each strategy that needs a local form, beside each other one on more ranks than it has elements for."""
    rule = case.rule
    for row in rule.strategies(2):
        for other in rule.strategies(2) if row.rewrite == "local" else ():
            count = 0 if other.factors in ((), row.factors) else rule.factors[other.factors[0]].size + 1
            if 0 < count <= MOST_RANKS and are_compatible(rule, [row, other], (2, count)):
                yield [("x", row), ("y", other)], Mesh({"x": 2, "y": count})


def _mistyped(case: Case, rows: AxisStrategies, mesh: Mesh) -> Iterator[str]:
    """Yield what is wrong with the local form that localize makes for the ranks whose shards are empty."""
    sizes = [factor.size for factor in case.rule.factors]
    shards = {factor: Local("shard", sizes[factor], (axis,)) for axis, row in rows for factor in row.factors}
    placed = ([(mesh.sizes[axis], row.operands[index]) for axis, row in rows] for index in range(len(case.operands)))
    held = [distribute(tensor, placements) for tensor, placements in zip(case.operands, placed, strict=True)]
    for rank in mesh.group(mesh.world_size - 1, mesh.axis_names[:1]):  # one that has none, whatever is beside it
        coordinate = mesh.coordinate(rank)
        operands = tuple(meta(each[rank]) for each in held)
        try:
            case.rule.local_form(shards, operands, Rank(mesh, coordinate))
        except SpmdirError as error:
            yield f"rank {rank}: {error.message}"
