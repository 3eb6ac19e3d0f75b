"""localize: types of one rank instead of global ones, and literal arguments to match.

A dimension that is sharded evenly gets its plain local size. Where ranks differ the type says `?`, `of` keeps the
global shape, and a size among the literal arguments becomes `size(extent, axes)`, which each rank evaluates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import attrs
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, UnitAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.core.call import Literal, Local, shard_of
from spmdir.core.errors import RuleError, ShardingError, UnsupportedError, raise_all
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import enumerated
from spmdir.core.placement.joint import JointPlacement
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp, op_class
from spmdir.dialects.attributes import DYNAMIC, ArgumentsAttr, Of, ShapesAttr, meta_of, of_type, retyped
from spmdir.dialects.collectives import WaitOp
from spmdir.dialects.halo import HALO_CLASSES
from spmdir.dialects.names import Names, take_name
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.ring import RING_CLASSES
from spmdir.dialects.shard_index_ops import SHARD_INDEX_CLASSES
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.syntax.context import IRContext, location_of
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, sharding_of
from spmdir.dialects.verification import common_type, is_local
from spmdir.passes.local_programs.local_forms import EXPANSION, NOTE, is_split, note, places_in
from spmdir.passes.local_programs.promises import argument_errors, result_errors
from spmdir.passes.local_programs.ring_blocks import join_blocks
from spmdir.passes.local_programs.trusted import trust
from spmdir.passes.preconditions import flat_functions, reject_open_sizes
from spmdir.passes.type_check.type_check import Choice, strategies_of
from spmdir.reshard.runs import mark_runs
from spmdir.rules import OpRule, RuleSet, Value
from spmdir.rules.local.expansion import ExpandedOp, Expansion
from spmdir.rules.local.rank import Rank
from spmdir.rules.local.rings import ROTATIONS, require_alike
from spmdir.rules.strategies.split_products import SPLIT


@dataclass(frozen=True)
class LocalizePass(ModulePass):
    """Replace global types by those of one rank, and sizes and offsets among the arguments to match."""

    name = "localize"
    takes_layers: ClassVar[bool] = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        assert isinstance(ctx, IRContext)
        reject_open_sizes(op, self.name)
        mesh = ir.mesh(op)
        for function in flat_functions(op, with_layers=True):
            if not is_local(function):
                _localize(function, mesh, ctx.rules)


def local_size(dim: int, size: int, sharding: Sharding, mesh: Mesh) -> int | Local:
    """Return the local length of dimension `dim` with `size` elements: an int if all ranks agree."""
    axes = sharding.dim_axes(dim)
    if sharding.is_even(dim, size, mesh):
        return size // mesh.group_size(axes)
    return attrs.evolve(shard_of(size, [(axis, sharding[axis]) for axis in axes]), kind="size")


def local_sizes(meta: TensorMeta, sharding: Sharding, mesh: Mesh) -> tuple[int | Local, ...]:
    """Return the local lengths of the dimensions of a tensor of type `meta`: an int where all ranks agree.

    Raises:
        UnsupportedError: ranks hold something else than their shards, of sizes that differ.
    """
    if not sharding.has_own_type:
        return tuple(local_size(dim, size, sharding, mesh) for dim, size in enumerate(meta.shape))
    sizes = common_type(sharding, meta, mesh).shape
    if DYNAMIC in sizes:
        raise UnsupportedError(
            f"takes the sizes of its result, which differ between the ranks of <{sharding}> and are no shards; "
            "expected a sharding such as S(0): give it to a spmd.constraint on the result"
        )
    return sizes


def _localize(function: FuncOp, mesh: Mesh, rules: RuleSet) -> None:
    block, names = function.body.block, Names(function.body.block)
    for op in block.ops:
        _reject_unfinished(op)
    raise_all([*argument_errors(function), *result_errors(function, mesh)])
    known: dict[object, _Typed] = {}
    # Last op first: an op is then read while its operands still have their global types.
    for op in reversed(list(block.ops)):
        if isinstance(op, CallOp):  # of a layer, which is localized too
            for result in op.results:
                _localize_value(result, mesh)
        if not isinstance(op, ValueOp):
            continue
        typed = _typed(op, mesh, rules, known) if isinstance(op, AtenOp) else None
        op.attributes.pop(EXPANSION, None)  # which speaks of global values
        of = tuple([_localize_value(result, mesh) for result in op.results])
        if any(entry is not None for entry in of):
            op.properties["of"] = ShapesAttr(of)
        if typed is None or typed.rule is None:
            continue
        if typed.has_form:
            _replace(op, typed.rule, typed.choice, mesh, names)
        elif typed.arguments is not None:
            op.properties["arguments"] = typed.arguments
    of = [_localize_value(argument, mesh) for argument in block.args]
    _set_argument_shapes(function, of)
    returned = ir.terminator(function).operand_types
    function.properties["function_type"] = FunctionType.from_lists([a.type for a in block.args], returned)
    function.attributes["spmd.local"] = UnitAttr()
    join_blocks(function, mesh)
    trust(function)


def _reject_unfinished(op: Any) -> None:
    location = location_of(op)
    if isinstance(op, (ReshardOp, ConstraintOp)):
        raise UnsupportedError(f"localize found '{op.name}'; run lower-reshard first", location)
    if not isinstance(op, ValueOp):
        return
    if op.needs is not None:
        raise UnsupportedError(f"localize found '{op.name}' with unmet needs; run insert-reshard first", location)
    for meta, sharding in zip(op.metas, op.shardings, strict=True):
        if meta is not None and sharding is None:
            raise ShardingError(f"'{op.name}' has a value without a sharding; run propagate first", location)
        if isinstance(op, ConstantOp) and sharding and sharding.entries:
            raise ShardingError(f"a constant is replicated, found <{sharding}>; slice it", location)


@attrs.frozen
class _Typed:
    """What localize does to equal ops.

    Attributes:
        rule: None if there is none.
        choice: the strategies that the shardings use.
        has_form: whether the local form of the rule replaces the op.
        arguments: the arguments of one rank where they are others.
    """

    rule: OpRule | None
    choice: Choice
    has_form: bool = False
    arguments: ArgumentsAttr | None = None


def _typed(op: AtenOp, mesh: Mesh, rules: RuleSet, known: dict[object, _Typed]) -> _Typed:
    """Return what is done to `op`, noted in `known`: a program has few ops that differ in what this depends on.

    Raises:
        SpmdirError: `op` is ill typed, or no rank can do its share of it; located.
    """
    properties = op.properties
    operands = tuple([(meta_of(operand.type), sharding_of(operand)) for operand in op.operands])
    key = (op.name, is_split(op), operands, op.metas, *map(properties.get, ("arguments", "structure", "sharding")))
    if key not in known:
        known[key] = _type_of_op(op, mesh, rules)
    return known[key]


def _type_of_op(op: AtenOp, mesh: Mesh, rules: RuleSet) -> _Typed:
    rule, choice = strategies_of(op, mesh, rules)
    rewrites = {strategy.rewrite for strategy in choice.values()}
    if "expand" in rewrites:
        raise UnsupportedError(
            f"'{op.name}' reduces inside along a dimension that is sharded; run expand first",
            location_of(op),
        )
    has_form = bool(rewrites & {"local", SPLIT})
    if rule is None or has_form:
        return _Typed(rule, choice, has_form)
    meta, sharding = rule.call.results[0], op.shardings[0]
    if not rule.shape_arguments or meta is None or not sharding:
        return _Typed(rule, choice)
    try:
        sizes = local_sizes(meta, sharding, mesh)
    except UnsupportedError as error:
        raise error.about(op.name, location_of(op)) from None
    arguments = {**op.argument, **{name: sizes for name in rule.shape_arguments if name in op.argument}}
    return _Typed(rule, choice, False, ArgumentsAttr(tuple(sorted(arguments.items()))))


def factor_shards(op: ValueOp, rule: OpRule, choice: Choice, mesh: Mesh) -> dict[int, Local]:
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


def _replace(op: ValueOp, rule: OpRule, choice: Choice, mesh: Mesh, names: Names) -> None:
    """Put the local form of `op` in its place."""
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
            new.attributes[NOTE] = note(op, rule.call, needs, places_in(form, len(needs)))
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
    shards = factor_shards(op, rule, choice, mesh)
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


LOCAL_CLASSES = {**HALO_CLASSES, **SHARD_INDEX_CLASSES, **RING_CLASSES, WaitOp.name: WaitOp}
"""Name of an op of spmdir that local forms have → its class."""

FORMS = 1 << 14
"""The most ranks on which a local form is compared."""


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
    if math.prod(map(len, told)) > FORMS:
        raise UnsupportedError(
            f"'{op.name}' has a local form of its own on each of {math.prod(map(len, told))} kinds of ranks; expected "
            f"at most {FORMS}; shard it over fewer axes, or evenly",
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
    """Raise RuleError unless `value` is of the type of result `index` of `op` where that has a joint placement."""
    for strategy in choice.values():
        placement, text = strategy.results[index], strategy.text
        if text is None or not isinstance(placement, JointPlacement):
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
    _retype(value, op.results[index].type)
    take_name(value, op.results[index])


def _common(metas: Sequence[TensorMeta | None]) -> TensorMeta | None:
    """Return the type that the ranks' types have in common; sizes that differ are DYNAMIC."""
    first = metas[0]
    if first is None:
        return None
    shapes = zip(*(meta.shape for meta in metas if meta is not None), strict=True)
    return TensorMeta(tuple(sizes[0] if len(set(sizes)) == 1 else DYNAMIC for sizes in shapes), first.dtype)


def _localize_value(value: SSAValue, mesh: Mesh) -> Of | None:
    """Give a value its local type; return its global type if the local one does not tell it."""
    meta, sharding = meta_of(value.type), sharding_of(value)
    if meta is None or sharding is None:
        return None
    local, of = _local_type(meta, sharding, mesh)
    _retype(value, retyped(value.type, local))
    return of


@lru_cache(maxsize=65536)
def _local_type(meta: TensorMeta, sharding: Sharding, mesh: Mesh) -> tuple[TensorMeta, Of | None]:
    """Return the type that the ranks have in common of a tensor, and its global type if that does not tell it."""
    traits = {placement.trait for _, placement in sharding.entries}
    if traits <= {"partial"}:
        return meta, None
    if "other" in traits:
        local = common_type(sharding, meta, mesh)
    else:
        sizes = tuple(DYNAMIC if isinstance(s, Local) else s for s in local_sizes(meta, sharding, mesh))
        local = TensorMeta(sizes, meta.dtype)
    return local, of_type(meta, local) if DYNAMIC in local.shape or "other" in traits else None


def _retype(value: SSAValue, type_: Attribute) -> None:
    value._type = type_  # pyright: ignore[reportPrivateUsage]  # a new value would lose its name


def _set_argument_shapes(function: FuncOp, of: list[Of | None]) -> None:
    if all(entry is None for entry in of):
        return
    attributes = []
    for index, shape in enumerate(of):
        entries: dict[str, Attribute] = function_attrs(function, "arg_attrs", index)
        if shape is not None:
            entries["spmd.of"] = ShapesAttr((shape,))
        attributes.append(DictionaryAttr(entries))
    function.properties["arg_attrs"] = ArrayAttr(attributes)
