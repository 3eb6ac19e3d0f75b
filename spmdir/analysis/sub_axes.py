"""The mesh axes to split into sub-axes, so that several factors of one dimension can be sharded by them.

Where a view separates a dimension of 8 elements into 2 x 4, an axis of 4 ranks shards the 2 by its major half and the
4 by its minor one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from xdsl.dialects.func import FuncOp

from spmdir.core.axes import is_part
from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs
from spmdir.rules import OpRule
from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.problem import Problem
from spmdir.search.solve import Solution

MOST_AXES = 4
"""The most axes that a mesh may have after splits, or one more than it had: each axis makes plans slower."""


def user_shardings(function: FuncOp) -> list[Sharding]:
    """Return the shardings that the user gave for arguments, results and values of a function."""
    attributes = [function_attrs(function, "arg_attrs", index) for index in range(len(function.args))]
    attributes += [function_attrs(function, "res_attrs", i) for i in range(len(function.function_type.outputs))]
    shardings = [found["spmd.sharding"].data for found in attributes if "spmd.sharding" in found]
    return shardings + [s for op in function.body.block.ops if isinstance(op, ValueOp) for s in op.shardings if s]


def annotated_splits(shardings: Iterable[Sharding | None], mesh: Mesh) -> Mesh:
    """Return `mesh` with the axes split that `shardings` split.

    Raises:
        ShardingError: the shardings split an axis in incompatible ways.
    """
    return mesh.refine(sorted({axis for s in shardings if s for axis, _ in s.entries if is_part(axis)}))


def wanted_splits(weights: Mapping[tuple[OpRule, str], float], mesh: Mesh) -> Mesh:
    """Return `mesh` with the axes split where dimensions of ops ask for it, those of most weight first.

    Args:
        weights: (rule of an op, mesh axis by which to shard it) → how much that matters.
    """
    by_part: dict[str, float] = {}
    for (rule, axis), weight in weights.items():
        for part in dict.fromkeys(_parts(rule, axis, mesh)):
            by_part[part] = by_part.get(part, 0.0) + weight
    most = max(MOST_AXES, len(mesh.axes) + 1)
    for part in sorted(by_part, key=lambda part: (-by_part[part], part)):
        try:
            finer = mesh.refine([part])
        except ShardingError:
            continue
        mesh = finer if len(finer.axes) <= most else mesh
    return mesh


def _asks_for_splits(rule: OpRule) -> bool:
    """Return whether some dimension is made of several factors, of which only sub-axes may shard the major ones."""
    return any(len(factors) > 1 for dims in (*rule.operand_dims, *rule.result_dims) for factors in dims or ())


def split_weights(
    problem: Problem, rules: Sequence[OpRule | None], solution: Solution | None
) -> dict[tuple[OpRule, str], float]:
    """Return, per (rule of an op that may ask for splits, axis), the bytes of the values of ops that the axis does not
    shard or that reshard."""
    weights: dict[tuple[OpRule, str], float] = {}
    asking = {rule for rule in {*rules} if rule is not None and _asks_for_splits(rule)}
    nodes = [(index, problem.nodes[index], rule) for index, rule in enumerate(rules) if rule in asking]
    for axis in problem.mesh.axis_names if nodes else ():
        chosen = solution.strategies[axis] if solution else ()
        moved = _moved(problem, chosen)
        for index, node, rule in nodes:
            values = (*node.operands, *node.results)
            settled = bool(chosen) and bool(chosen[index].factors) and moved.isdisjoint(values)
            if rule is not None and not settled:
                key = rule, problem.mesh.root_axis(axis)
                weights[key] = weights.get(key, 0.0) + sum(problem.values[value].bytes for value in values)
    return weights


def fits(problem: Problem, rules: Sequence[OpRule | None], strategies: Mapping[str, Sequence[Strategy]]) -> bool:
    """Return whether factors that several sub-axes of one axis shard are sharded evenly, as merged names require."""
    mesh = problem.mesh
    for index, rule in enumerate(rules):
        by_factor: dict[int, list[str]] = {}
        for axis, chosen in strategies.items():
            for factor in chosen[index].factors if rule is not None else ():
                by_factor.setdefault(factor, []).append(axis)
        for factor, axes in by_factor.items():
            assert rule is not None
            kin = len({mesh.root_axis(axis) for axis in axes}) < len(axes)
            if kin and rule.factors[factor].size % mesh.group_size(axes):
                return False
    return True


def _moved(problem: Problem, strategies: Sequence[Strategy]) -> set[int]:
    """Return the values that some node needs in another placement than they are made in."""
    made: dict[int, Placement] = {}
    moved: set[int] = set()
    for node, strategy in zip(problem.nodes, strategies, strict=False):
        for value, placement in zip(node.operands, strategy.operands, strict=True):
            if made[value] is not placement and made[value] != placement:
                moved.add(value)
        made.update(zip(node.results, strategy.results, strict=True))
    return moved


def _parts(rule: OpRule, axis: str, mesh: Mesh) -> Iterator[str]:
    """Yield the major sub-axes that could shard the major factors of some dimension where the whole axis cannot."""
    size = (mesh.root or mesh).sizes[axis]
    for dims in (*rule.operand_dims, *rule.result_dims):
        for factors in dims or ():
            major = 1
            for factor in [f for f in factors if rule.factors[f].size > 1][:-1]:
                if rule.factors[factor].kind == "unsharded":
                    break
                major *= rule.factors[factor].size
                common = math.gcd(major, size)
                if 1 < common < size:
                    yield f"{axis}(1){common}"
