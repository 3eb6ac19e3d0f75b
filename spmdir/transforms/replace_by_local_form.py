"""Replace an op by the ops of its local form. All ranks run the same ops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from xdsl.ir import Attribute, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.local_forms import LOCAL_FORM, places_in, replaced_op_attribute
from spmdir.analysis.type_check import Choice
from spmdir.core.errors import RuleError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import enumerated
from spmdir.core.placement.call import Literal, Local, shard_of
from spmdir.core.placement.packed import PackedPlacement
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.aten import op_class
from spmdir.dialects.attributes import DYNAMIC, Of, ShapesAttr, meta_of
from spmdir.dialects.collectives import WaitOp
from spmdir.dialects.halo import HALO_CLASSES
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import Names, copy_name
from spmdir.dialects.ring_ops import RING_CLASSES
from spmdir.dialects.row_exchanges import EXPERT_CLASSES
from spmdir.dialects.shard_index_ops import SHARD_INDEX_CLASSES
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.reshard.equal_shard_runs import mark_runs
from spmdir.rules import OpRule
from spmdir.rules.local.expansion import ExpandedOp, Expansion, Value
from spmdir.rules.local.rank import Rank
from spmdir.rules.local.rings import ROTATIONS, require_equal_shapes

LOCAL_CLASSES = {**HALO_CLASSES, **SHARD_INDEX_CLASSES, **RING_CLASSES, **EXPERT_CLASSES, WaitOp.name: WaitOp}
"""Name of an op of spmdir in local forms → its class."""

MAX_FORMS = 1 << 14
"""The largest number of ranks on which a local form is computed, to compare the ranks."""


def replace_by_local_form(op: ValueOp, rule: OpRule, choice: Choice, mesh: Mesh, names: Names) -> None:
    """Replace `op` by the ops of its local form.

    The local forms of ranks differ only in sizes and in numbers such as offsets. So the ops are those of one rank. A
    size that differs between ranks is DYNAMIC in the types of results.

    Args:
        choice: axis → the strategy that the shardings of `op` use.

    Raises:
        SpmdirError: the op has no local form, or its local form has other result types.
    """
    forms = _representative_forms(op, rule, choice, mesh)
    form = forms[0]
    values = {Value("operand", index): operand for index, operand in enumerate(op.operands)}
    for number, expanded in enumerate(form.ops):
        metas_by_rank = [tuple(other_form.ops[number].call.results) for other_form in forms]
        arguments = [(name, _evaluate_even_sizes(value, mesh)) for name, value in expanded.call.arguments]
        new_class = LOCAL_CLASSES.get(expanded.call.name) or op_class(expanded.call.name)
        new = new_class.build_op(
            [values[value] for value in expanded.operands],
            [_common_type(metas_of_result) for metas_of_result in zip(*metas_by_rank, strict=True)],
            (*arguments, *_largest_shape(expanded, metas_by_rank)),
            structure=expanded.call.structure,
            location=op.location,
        )
        if number == 0:
            needs = tuple(map(sharding_of, op.operands))
            new.attributes[LOCAL_FORM] = replaced_op_attribute(op, rule.call, needs, places_in(form, len(needs)))
        Rewriter.insert_op(new, InsertPoint.before(op))
        for index, result in enumerate(new.results):
            values[Value("op", number, index)] = result
            names.assign_name(result, op.results[0], expanded.call.name.split(".")[1])
    for index, (result, value) in enumerate(zip(op.results, form.results, strict=True)):
        if value is not None:
            _check_state(op, index, values[value], choice)
            _take_over(op, index, values[value])
            result.replace_all_uses_with(values[value])
    Rewriter.erase_op(op)


def _representative_forms(op: ValueOp, rule: OpRule, choice: Choice, mesh: Mesh) -> list[Expansion]:
    """Return the local form of `op` on representative ranks. With a ring, all ranks of their rings are included.

    Raises:
        SpmdirError: a ring sends blocks of different shapes, or there are too many different forms.
    """
    shards = _factor_shards(op, rule, choice, mesh)
    scattered = frozenset(factor for factor, shard in shards.items() if not shard.is_contiguous(mesh))
    shardings = [sharding for sharding in map(sharding_of, op.operands) if sharding is not None]
    # The axes whose strategy has a local form that is written as text.
    axes = tuple(axis for axis, strategy in choice.items() if strategy.text and strategy.text.body)

    def form(rank: int) -> Expansion:
        """Return the local form on one rank."""
        coordinate = mesh.coordinate(rank)
        operands = tuple(
            sharding.local_type(meta, mesh, coordinate)
            for meta, sharding in zip(rule.call.operands, shardings, strict=True)
        )
        expansion = rule.local_form(shards, operands, Rank(mesh, coordinate), scattered, choice.values(), axes)
        assert expansion is not None  # a strategy requires it
        return expansion

    ranks = _representative_ranks(op, shards, mesh)
    first_form = form(ranks[0])
    rotations = [expanded.call for expanded in first_form.ops if expanded.call.name in ROTATIONS]
    rotating = {axis for call in rotations for axis in call.argument["axes"]}  # type: ignore  # names of axes
    if rotating:
        ranks = sorted({member for rank in ranks for member in mesh.group(rank, rotating)})
    forms = {ranks[0]: first_form} | {rank: form(rank) for rank in ranks[1:]}
    if rotating:
        require_equal_shapes(forms, mesh)
    return list(forms.values())


def _largest_shape(
    expanded: ExpandedOp, metas: Sequence[Sequence[TensorMeta | None]]
) -> tuple[tuple[str, Literal], ...]:
    """Return the argument `largest` of an op that rotates blocks: the largest shape, if shapes differ between ranks."""
    shapes = [meta.shape for (meta, *_) in metas if meta is not None]
    if expanded.call.name not in ROTATIONS or len(set(shapes)) == 1:
        return ()
    return (("largest", tuple(map(max, zip(*shapes, strict=True)))),)


def _representative_ranks(op: ValueOp, shards: dict[int, Local], mesh: Mesh) -> list[int]:
    """Return representative ranks for the local form of `op`: four of each run of ranks with shards of equal length.

    A local form depends on lengths, positions and offsets. Positions do not affect sizes. Offsets increase by the same
    amount from rank to rank within a run. So a size that is equal on the first two ranks, a middle rank and the last
    rank of a run is equal on all ranks of the run.
    """
    shardings = [sharding for sharding in map(sharding_of, op.operands) if sharding is not None]
    factor_axes = [axis for shard in shards.values() for axis in shard.axes]
    operand_axes = [axis for sharding in shardings for axis, _ in sharding.entries]
    fine = mesh.refine([*factor_axes, *operand_axes])
    refined_shardings = [sharding.refined(fine) for sharding in shardings]
    starts: dict[str, set[int]] = {axis: {0} for axis in fine.axis_names}  # axis → the first index of each run
    for meta, sharding in zip(op.call().operands, refined_shardings, strict=True):
        for dim, size in enumerate(meta.shape):
            mark_runs(size, zip(sharding.dim_axes(dim), sharding.dim_placements(dim, fine), strict=True), starts)
        for axis, placement in sharding.entries:
            if placement.trait == "other":
                starts[axis].update(enumerated(placement, fine.sizes[axis]))
    for shard in shards.values():
        parts = [(part, placement) for axis, placement in shard.placed for part in fine.parts(axis)]
        mark_runs(shard.extent, [(part, (placement, fine.sizes[part])) for part, placement in parts], starts)
    # The local forms of ranks that differ only along other axes are equal.
    differing_axes = {part for axis in factor_axes for part in fine.parts(axis)}
    for sharding in refined_shardings:
        differing_axes.update(axis for axis, placement in sharding.entries if placement.trait != "partial")
    representatives = [
        _representatives(starts[axis], size) if axis in differing_axes else [0] for axis, size in fine.axes
    ]
    if math.prod(map(len, representatives)) > MAX_FORMS:
        raise UnsupportedError(
            f"'{op.name}' has different local forms on {math.prod(map(len, representatives))} kinds of ranks; expected "
            f"at most {MAX_FORMS}: shard it over fewer axes, or evenly",
            location_of(op),
        )
    # `starts` has the axes of `fine` in order, so each point is a coordinate.
    return [fine.rank(dict(zip(starts, point, strict=True))) for point in itertools.product(*representatives)]


def _representatives(starts: set[int], count: int) -> list[int]:
    """Return the first two indices, a middle one and the last one of each run. Runs begin at `starts`.

    For example, runs of 8 ranks begin at 0 and 6: the result is [0, 1, 3, 5, 6, 7].
    """
    indices: set[int] = set()
    for start, end in itertools.pairwise((*sorted(starts), count)):
        indices.update((start, min(start + 1, end - 1), (start + end) // 2, end - 1))
    return sorted(indices)


def _evaluate_even_sizes(value: Literal, mesh: Mesh) -> Literal:
    """Return `value` with each size that is equal on all ranks replaced by its number."""
    if isinstance(value, tuple):
        return tuple(_evaluate_even_sizes(item, mesh) for item in value)
    if isinstance(value, Local) and value.kind == "size" and value.is_even(mesh):
        return value.evaluate(mesh, mesh.coordinate(0))
    return value


def _check_state(op: ValueOp, index: int, value: SSAValue, choice: Choice) -> None:
    """Raise RuleError if result `index` of `op` has a packed placement and `value` is not of its state's shape."""
    for strategy in choice.values():
        placement, text = strategy.results[index], strategy.text
        if text is None or not isinstance(placement, PackedPlacement):
            continue
        actual, expected = meta_of(value.type), meta_of(op.results[index].type)
        assert actual is not None  # values of local forms are tensors
        assert expected is not None  # absent results have no placement
        sizes = zip(actual.shape, expected.shape, strict=False)
        if actual.rank != expected.rank or any(a != b and DYNAMIC not in (a, b) for a, b in sizes):
            raise RuleError(
                f"the strategy {text} of {op.name} returns a state of shape {[*actual.shape]}; expected "
                f"{[*expected.shape]}, the shape that {type(placement).__name__}.pack returns: correct the strategy",
                text.location,
            )


def _take_over(op: ValueOp, index: int, value: SSAValue) -> None:
    """Give `value` the type, sharding, global shape and name of result `index` of `op`."""
    owner = value.owner
    if not isinstance(owner, ValueOp):
        raise UnsupportedError(
            f"the local form of '{op.name}' returns an operand without an op; expected the result of an op, such as "
            "`aten.clone`: correct its rule",
            location_of(op),
        )
    shardings = list(owner.shardings)
    shardings[value.index] = op.shardings[index]  # type: ignore[attr-defined]
    owner.set_shardings(shardings)
    if op.of and op.of.data[index] is not None:
        of: list[Of | None] = list(owner.of.data) if owner.of else [None] * len(owner.results)
        of[value.index] = op.of.data[index]  # type: ignore[attr-defined]
        owner.properties["of"] = ShapesAttr(tuple(of))
    retype(value, op.results[index].type)
    copy_name(value, op.results[index])


def _common_type(metas: Sequence[TensorMeta | None]) -> TensorMeta | None:
    """Return the common type of the ranks' types. Sizes that differ are DYNAMIC."""
    first_meta = metas[0]
    if first_meta is None:
        return None
    shapes = zip(*(meta.shape for meta in metas if meta is not None), strict=True)
    return TensorMeta(tuple(sizes[0] if len(set(sizes)) == 1 else DYNAMIC for sizes in shapes), first_meta.dtype)


def _factor_shards(op: ValueOp, rule: OpRule, choice: Choice, mesh: Mesh) -> dict[int, Local]:
    """Return sharded factor → the `Local` that evaluates to a rank's shard of the factor.

    For example, if `tp` of 4 ranks shards factor k of 16 elements by S, the result is {k: shard(16, tp)}.
    """
    sharding_of_factor: dict[int, Sharding] = {}
    fine = mesh.refine(choice)
    values = [*map(sharding_of, op.operands), *op.shardings]
    for sharding, dims in zip(values, (*rule.operand_dims, *rule.result_dims), strict=True):
        if sharding is None:
            continue
        for dim, factors in enumerate(dims or ()):
            dim_axes = sharding.refined(fine).dim_axes(dim)
            for factor in factors:
                factor_axes = [axis for axis in dim_axes if factor in choice[axis].factors]
                entries = [(axis, choice[axis].placement_of(factor)) for axis in factor_axes]
                # In a split product, a factor is whole in one value and sharded into blocks in another.
                if len(entries) > len(sharding_of_factor.get(factor, Sharding()).entries):
                    sharding_of_factor[factor] = Sharding(entries, mesh.name)
    return {
        factor: shard_of(rule.factors[factor].size, sharding.merged(mesh).entries)
        for factor, sharding in sharding_of_factor.items()
    }


def retype(value: SSAValue, type_: Attribute) -> None:
    """Set the type of `value` in place."""
    value._type = type_  # pyright: ignore[reportPrivateUsage]  # a new value would lose its name
