"""The ops of a local form in the place of the op whose rule has it, the same on all ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from xdsl.ir import Attribute, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.local_forms import NOTE, make_note, places_in
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
from spmdir.dialects.names import Names, take_name
from spmdir.dialects.ring import RING_CLASSES
from spmdir.dialects.shard_index_ops import SHARD_INDEX_CLASSES
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.reshard.runs import mark_runs
from spmdir.rules import OpRule
from spmdir.rules.local.expansion import ExpandedOp, Expansion, Value
from spmdir.rules.local.rank import Rank
from spmdir.rules.local.rings import ROTATIONS, require_alike

LOCAL_CLASSES = {**HALO_CLASSES, **SHARD_INDEX_CLASSES, **RING_CLASSES, WaitOp.name: WaitOp}
"""Name of an op of spmdir that local forms have → its class."""

MOST_FORMS = 1 << 14
"""The most ranks on which a local form is compared."""


def replace_by_local_form(op: ValueOp, rule: OpRule, choice: Choice, mesh: Mesh, names: Names) -> None:
    """Put the ops of the local form of `op` in its place.

    Raises:
        SpmdirError: ranks have no such form, or one that does not give the types of the results.
    """
    forms = _forms(op, rule, choice, mesh)
    form = forms[0]
    values = {Value("operand", index): operand for index, operand in enumerate(op.operands)}
    for number, expanded in enumerate(form.ops):
        metas = [tuple(other.ops[number].call.results) for other in forms]
        new = (LOCAL_CLASSES.get(expanded.call.name) or op_class(expanded.call.name)).build_op(
            [values[value] for value in expanded.operands],
            [_common(column) for column in zip(*metas, strict=True)],
            tuple((name, _plain(value, mesh)) for name, value in expanded.call.arguments) + _largest(expanded, metas),
            structure=expanded.call.structure,
            location=op.location,
        )
        if number == 0:
            needs = tuple(map(sharding_of, op.operands))
            new.attributes[NOTE] = make_note(op, rule.call, needs, places_in(form, len(needs)))
        Rewriter.insert_op(new, InsertPoint.before(op))
        for index, result in enumerate(new.results):
            values[Value("op", number, index)] = result
            names.give(result, op.results[0], expanded.call.name.split(".")[1])
    for index, (result, value) in enumerate(zip(op.results, form.results, strict=True)):
        if value is not None:
            _check_state(op, index, values[value], choice)
            _take_over(op, index, values[value])
            result.replace_all_uses_with(values[value])
    Rewriter.erase_op(op)


def _forms(op: ValueOp, rule: OpRule, choice: Choice, mesh: Mesh) -> list[Expansion]:
    """Return the local form of `op` on ranks that stand for all; on all of them, if blocks go round a ring."""
    shards = _factor_shards(op, rule, choice, mesh)
    scattered = frozenset(factor for factor, shard in shards.items() if not shard.is_contiguous(mesh))
    shardings = [sharding for sharding in map(sharding_of, op.operands) if sharding is not None]

    def form(rank: int) -> Expansion:
        coordinate = mesh.coordinate(rank)
        operands = tuple(
            sharding.local_type(meta, mesh, coordinate)
            for meta, sharding in zip(rule.call.operands, shardings, strict=True)
        )
        found = rule.local_form(shards, operands, Rank(mesh, coordinate), scattered, choice.values())
        assert found is not None  # a strategy asked for it
        return found

    ranks = _ranks_alike(op, shards, mesh)
    first = form(ranks[0])
    rotating = {axis for one in first.ops if one.call.name in ROTATIONS for axis in one.call.argument["axes"]}  # type: ignore
    if rotating:
        ranks = sorted({member for rank in ranks for member in mesh.group(rank, rotating)})
    forms = {ranks[0]: first} | {rank: form(rank) for rank in ranks[1:]}
    if rotating:
        require_alike(forms, mesh)
    return list(forms.values())


def _largest(expanded: ExpandedOp, metas: Sequence[Sequence[TensorMeta | None]]) -> tuple[tuple[str, Literal], ...]:
    """Return what tells the largest size of what rotates, where ranks differ."""
    shapes = [meta.shape for (meta, *_) in metas if meta is not None]
    if expanded.call.name not in ROTATIONS or len(set(shapes)) == 1:
        return ()
    return (("largest", tuple(map(max, zip(*shapes, strict=True)))),)


def _ranks_alike(op: ValueOp, shards: dict[int, Local], mesh: Mesh) -> list[int]:
    """Return ranks that stand for all in the local form of `op`: of each run of ranks with shards of one length, four.

    A local form reads lengths, positions, which change no size, and offsets, which grow by the same from rank to rank
    within a run; so a size that is the same for the first two, one in the middle and the last is so for all.
    """
    current = [s for s in map(sharding_of, op.operands) if s is not None]
    axes = [axis for shard in shards.values() for axis in shard.axes]
    fine = mesh.refine([*axes, *(axis for s in current for axis, _ in s.entries)])
    starts: dict[str, set[int]] = {axis: {0} for axis in fine.axis_names}
    operands = op.call().operands
    for meta, sharding in zip(operands, (sharding.refined(fine) for sharding in current), strict=True):
        for dim, size in enumerate(meta.shape):
            mark_runs(size, zip(sharding.dim_axes(dim), sharding.dim_placements(dim, fine), strict=True), starts)
        for axis, placement in sharding.entries:
            if placement.trait == "other":
                starts[axis].update(enumerated(placement, fine.sizes[axis]))
    for shard in shards.values():
        parts = [(part, placement) for axis, placement in shard.placed for part in fine.parts(axis)]
        mark_runs(shard.extent, [(part, (placement, fine.sizes[part])) for part, placement in parts], starts)
    moving = {part for axis in axes for part in fine.parts(axis)}
    moving |= {axis for sharding in current for axis, p in sharding.refined(fine).entries if p.trait != "partial"}
    told = [_stand_ins(starts[axis], size) if axis in moving else [0] for axis, size in fine.axes]
    if math.prod(map(len, told)) > MOST_FORMS:
        raise UnsupportedError(
            f"'{op.name}' has a local form of its own on each of {math.prod(map(len, told))} kinds of ranks; expected "
            f"at most {MOST_FORMS}; shard it over fewer axes, or evenly",
            location_of(op),
        )
    return [fine.rank(dict(zip(starts, point, strict=True))) for point in itertools.product(*told)]


def _stand_ins(starts: set[int], count: int) -> list[int]:
    """Return the first two, a middle and the last index of each of the runs that begin at `starts`."""
    runs = itertools.pairwise((*sorted(starts), count))
    return sorted({at for start, end in runs for at in (start, min(start + 1, end - 1), (start + end) // 2, end - 1)})


def _plain(value: Literal, mesh: Mesh) -> Literal:
    """Return `value` with the sizes on which all ranks agree as numbers."""
    if isinstance(value, tuple):
        return tuple(_plain(item, mesh) for item in value)
    if isinstance(value, Local) and value.kind == "size" and value.is_even(mesh):
        return value.evaluate(mesh, mesh.coordinate(0))
    return value


def _check_state(op: ValueOp, index: int, value: SSAValue, choice: Choice) -> None:
    """Raise RuleError unless `value` is of the type of result `index` of `op` where that has a packed placement."""
    for strategy in choice.values():
        placement, text = strategy.results[index], strategy.text
        if text is None or not isinstance(placement, PackedPlacement):
            continue
        found, wanted = meta_of(value.type), meta_of(op.results[index].type)
        assert found is not None  # a local form makes tensors
        assert wanted is not None  # or it has no placement
        sizes = zip(found.shape, wanted.shape, strict=False)
        if found.rank != wanted.rank or any(a != b and DYNAMIC not in (a, b) for a, b in sizes):
            raise RuleError(
                f"the strategy {text} of {op.name} gives {[*found.shape]}; expected {[*wanted.shape]}, as "
                f"{type(placement).__name__}.pack",
                text.location,
            )


def _take_over(op: ValueOp, index: int, value: SSAValue) -> None:
    """Give `value` the type, sharding, global shape and name of result `index` of `op`."""
    owner = value.owner
    if not isinstance(owner, ValueOp):
        raise UnsupportedError(
            f"the local form of '{op.name}' returns an operand as it is; expected the result of an op, such as "
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
    take_name(value, op.results[index])


def _common(metas: Sequence[TensorMeta | None]) -> TensorMeta | None:
    """Return the type that the ranks' types have in common; sizes that differ are DYNAMIC."""
    first = metas[0]
    if first is None:
        return None
    shapes = zip(*(meta.shape for meta in metas if meta is not None), strict=True)
    return TensorMeta(tuple(sizes[0] if len(set(sizes)) == 1 else DYNAMIC for sizes in shapes), first.dtype)


def _factor_shards(op: ValueOp, rule: OpRule, choice: Choice, mesh: Mesh) -> dict[int, Local]:
    """Return the rank's shard of each factor that axes shard."""
    found: dict[int, Sharding] = {}
    fine = mesh.refine(choice)
    values = [*map(sharding_of, op.operands), *op.shardings]
    for sharding, dims in zip(values, (*rule.operand_dims, *rule.result_dims), strict=True):
        if sharding is None:
            continue
        for dim, factors in enumerate(dims or ()):
            nested = sharding.refined(fine).dim_axes(dim)
            for factor in factors:
                sharding_it = [axis for axis in nested if factor in choice[axis].factors]
                entries = [(axis, choice[axis].placement_of(factor)) for axis in sharding_it]
                # A product that is split has a factor whole in one value, and in blocks in another.
                if len(entries) > len(found.get(factor, Sharding()).entries):
                    found[factor] = Sharding(entries, mesh.name)
    return {
        factor: shard_of(rule.factors[factor].size, sharding.merged(mesh).entries) for factor, sharding in found.items()
    }


def retype(value: SSAValue, type_: Attribute) -> None:
    """Give `value` another type."""
    value._type = type_  # pyright: ignore[reportPrivateUsage]  # a new value would lose its name
