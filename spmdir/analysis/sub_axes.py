"""Choose mesh axes to split into sub-axes. Sub-axes of one axis can shard several factors of one dimension.

For example, a view separates a dimension of 8 elements into 2 x 4. An axis of 4 ranks is split into 2 x 2: its major
sub-axis shards the dimension of 2, and its minor sub-axis shards the dimension of 4.
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
"""The largest number of mesh axes after splits. A mesh with as many axes may get one more. Axes make planning slow."""


def user_shardings(function: FuncOp) -> list[Sharding]:
    """Return the user annotations of a function: of its arguments, its results, and the values of its ops."""
    attributes = [function_attrs(function, "arg_attrs", index) for index in range(len(function.args))]
    attributes += [
        function_attrs(function, "res_attrs", result_index)
        for result_index in range(len(function.function_type.outputs))
    ]
    shardings = [by_name["spmd.sharding"].data for by_name in attributes if "spmd.sharding" in by_name]
    for op in function.body.block.ops:
        if isinstance(op, ValueOp):
            shardings += [sharding for sharding in op.shardings if sharding]
    return shardings


def annotated_splits(shardings: Iterable[Sharding | None], mesh: Mesh) -> Mesh:
    """Return `mesh` with its axes split into the sub-axes that occur in `shardings`.

    Raises:
        ShardingError: the shardings split an axis in incompatible ways.
    """
    return mesh.refine(
        sorted({axis for sharding in shardings if sharding for axis, _ in sharding.entries if is_part(axis)})
    )


def wanted_splits(weights: Mapping[tuple[OpRule, str], float], mesh: Mesh) -> Mesh:
    """Return `mesh` with the axes split whose sub-axes could shard factors of ops.

    Sub-axes are added in the order of their weights, as long as the mesh has at most `MOST_AXES` axes, or one more than
    before. Those that contradict earlier ones are left out.

    Args:
        weights: (rule of an op, mesh axis) → weight in bytes.
    """
    weight_of_part: dict[str, float] = {}  # sub-axis → the weights of the ops that it could shard
    for (rule, axis), weight in weights.items():
        for part in dict.fromkeys(_major_parts(rule, axis, mesh)):
            weight_of_part[part] = weight_of_part.get(part, 0.0) + weight
    axis_limit = max(MOST_AXES, len(mesh.axes) + 1)
    for part in sorted(weight_of_part, key=lambda part: (-weight_of_part[part], part)):
        try:
            finer = mesh.refine([part])
        except ShardingError:
            continue
        mesh = finer if len(finer.axes) <= axis_limit else mesh
    return mesh


def _may_need_splits(rule: OpRule) -> bool:
    """Return whether a dimension consists of several factors: then only sub-axes may be able to shard a major one."""
    return any(len(factors) > 1 for dims in (*rule.operand_dims, *rule.result_dims) for factors in dims or ())


def split_weights(
    problem: Problem, rules: Sequence[OpRule | None], solution: Solution | None
) -> dict[tuple[OpRule, str], float]:
    """Return (rule of an op, axis) → the weight of a split of the axis into sub-axes for the ops of this rule.

    The weight is the bytes of the operands and results of the ops that the axis does not shard in `solution`, or that
    reshard. Only these can gain from a split. The result has only rules that may need splits.

    Args:
        rules: for each node, the rule of its op.
        solution: the decision on the axes as they are, without splits; None if there is none, so that all ops count.
    """
    weights: dict[tuple[OpRule, str], float] = {}
    splittable = {rule for rule in {*rules} if rule is not None and _may_need_splits(rule)}
    nodes = [(index, problem.nodes[index], rule) for index, rule in enumerate(rules) if rule in splittable]
    for axis in problem.mesh.axis_names if nodes else ():
        strategies = solution.strategies[axis] if solution else ()
        resharded = _resharded_values(problem, strategies)
        for index, node, rule in nodes:
            values = (*node.operands, *node.results)
            is_sharded = bool(strategies) and bool(strategies[index].factors)
            needs_no_reshard = resharded.isdisjoint(values)
            if rule is not None and not (is_sharded and needs_no_reshard):
                key = rule, problem.mesh.root_axis(axis)
                weights[key] = weights.get(key, 0.0) + sum(problem.values[value].bytes for value in values)
    return weights


def sub_axes_shard_evenly(
    problem: Problem, rules: Sequence[OpRule | None], strategies: Mapping[str, Sequence[Strategy]]
) -> bool:
    """Return whether sub-axes of one axis that shard a factor together always divide its size.

    Together, they are written as the whole axis, which cuts uneven shards differently. For example, 5 rows over two
    sub-axes of 2 ranks become 2, 1, 1 and 1 rows, but 2, 2, 1 and 0 over their axis of 4 ranks.

    Args:
        rules: for each node, the rule of its op.
        strategies: axis → for each node, its strategy.
    """
    mesh = problem.mesh
    for index, rule in enumerate(rules):
        if rule is None:
            continue
        axes_of_factor: dict[int, list[str]] = {}
        for axis, strategies_on_axis in strategies.items():
            for factor in strategies_on_axis[index].factors:
                axes_of_factor.setdefault(factor, []).append(axis)
        for factor, axes in axes_of_factor.items():
            shares_root_axis = len({mesh.root_axis(axis) for axis in axes}) < len(axes)
            if shares_root_axis and rule.factors[factor].size % mesh.group_size(axes):
                return False
    return True


def _resharded_values(problem: Problem, strategies: Sequence[Strategy]) -> set[int]:
    """Return the values that some node needs in a placement other than that of the producer, on one axis.

    Args:
        strategies: for each node, its strategy on the axis. If it is empty, so is the result.
    """
    produced: dict[int, Placement] = {}
    resharded: set[int] = set()
    for node, strategy in zip(problem.nodes, strategies, strict=False):
        for value, placement in zip(node.operands, strategy.operands, strict=True):
            if produced[value] is not placement and produced[value] != placement:
                resharded.add(value)
        produced.update(zip(node.results, strategy.results, strict=True))
    return resharded


def _major_parts(rule: OpRule, axis: str, mesh: Mesh) -> Iterator[str]:
    """Yield the major sub-axes that could shard the major factors of some dimension where the whole axis cannot.

    For example, a dimension has the factors 2 and 4. Of `tp` of 4 ranks, the sub-axis `tp(1)2` can shard the major one.
    An unsharded factor, and the factors after it, get no sub-axis.
    """
    axis_size = (mesh.root or mesh).sizes[axis]
    for dims in (*rule.operand_dims, *rule.result_dims):
        for factors in dims or ():
            major_size = 1
            # Only the last factor has no factor that is minor to it.
            major_factors = [factor for factor in factors if rule.factors[factor].size > 1][:-1]
            for factor in major_factors:
                if rule.factors[factor].kind == "unsharded":
                    break
                major_size *= rule.factors[factor].size
                part_size = math.gcd(major_size, axis_size)
                if 1 < part_size < axis_size:
                    yield f"{axis}(1){part_size}"
