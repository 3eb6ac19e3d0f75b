"""localize: replace global types by those of one rank, and adapt the sizes among the literal arguments.

An evenly sharded dimension gets its local size. If the sizes of ranks differ, the type has `?`, and `of` contains the
global shape. A size among the literal arguments becomes `size(extent, axes)`, which each rank evaluates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import attrs
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.local_forms import EXPANSION, LOCAL_FORM, is_split, places_among, replaced_op_attribute
from spmdir.analysis.local_programs.signature_checks import argument_errors, result_errors
from spmdir.analysis.local_programs.type_check_cache import trust
from spmdir.analysis.type_check import Choice, strategies_of
from spmdir.core.errors import ShardingError, UnsupportedError, raise_all
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Call, Local, shard_of
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import DYNAMIC, ArgumentsAttr, Of, ShapesAttr, meta_of, of_type, retyped
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.context import IRContext
from spmdir.dialects.locations import errors_at, location_of
from spmdir.dialects.names import Names, copy_name
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.ring_ops import AssembleOp, RotateStartOp
from spmdir.dialects.sharding_checks import common_type
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.stage import is_local, write_stage
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, global_type, sharding_of
from spmdir.pipeline.base_passes import flat_functions, reject_open_sizes
from spmdir.rules import OpRule, RuleSet
from spmdir.rules.strategies.split_products import SPLIT
from spmdir.transforms.replace_by_local_form import replace_by_local_form, retype


def replace_gathers_by_assembles(function: FuncOp, mesh: Mesh) -> None:
    """Replace each gather in a local `function` by `spmd.assemble`, if a ring already brings all its blocks to a rank.

    The ring is that of a split product of the same value along the same axes. For example, a ring over `tp = 4` of the
    shard %x receives three further blocks: a later all_gather of %x on tp needs no communication.
    """
    blocks_of_ring: dict[tuple[SSAValue, tuple[str, ...]], list[SSAValue]] = {}  # (first block, axes) → all blocks
    first_block: dict[SSAValue, SSAValue] = {}  # block → the block that the ring started with
    for op in list(function.body.block.ops):
        start = op.operands[0].owner if isinstance(op, WaitOp) else None
        if isinstance(start, RotateStartOp):
            sent, received = start.operands[0], op.results[0]
            first = first_block[received] = first_block.get(sent, sent)
            blocks_of_ring.setdefault((first, start.axes), [first]).append(received)
        elif isinstance(op, Collective) and op.spec.traits == ("shard", "replicated") and len(op.operands) == 1:
            blocks = blocks_of_ring.get((op.operands[0], op.axes), [])
            if not op.IS_START and len(blocks) == mesh.group_size(op.axes):  # all blocks were received before `op`
                _assemble_blocks(op, blocks, mesh)


def _assemble_blocks(op: Collective, blocks: list[SSAValue], mesh: Mesh) -> None:
    """Replace the gather `op` by an op that assembles the `blocks` of its operand.

    The new op has an attribute that describes the gather, from which verify-spmd restores the global program.
    """
    (operand,), (result,) = op.operands, op.results
    call = Call(op.name, tuple(filter(None, [global_type(operand, mesh)])), (), (global_type(result, mesh),))
    arguments = (("axes", op.axes), ("dim", op.dim))
    assemble: Operation = AssembleOp.build_op(blocks, op.metas, arguments, op.shardings, location=op.location)
    if op.of is not None:
        assemble.properties["of"] = op.of
    assemble.attributes[LOCAL_FORM] = replaced_op_attribute(
        op, call, [sharding_of(operand)], places_among([assemble], [operand], assemble.results)
    )
    Rewriter.insert_op(assemble, InsertPoint.before(op))
    copy_name(assemble.results[0], result)
    result.replace_all_uses_with(assemble.results[0])
    Rewriter.erase_op(op)


@dataclass(frozen=True)
class LocalizePass(ModulePass):
    """Replaces global types by those of one rank, and adapts sizes and offsets among the arguments."""

    name = "localize"
    requires: ClassVar[str] = "decided"
    produces: ClassVar[str | None] = "local"
    takes_layers: ClassVar[bool] = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Localize each function that is not local yet, also those of outlined layers.

        Raises:
            SpmdirErrors: the module has symbolic sizes, or a function is ill typed or not lowered; located.
        """
        assert isinstance(ctx, IRContext)
        reject_open_sizes(op, self.name)
        mesh = ir.mesh(op)
        for function in flat_functions(op, with_layers=True):
            if not is_local(function):
                _localize(function, mesh, ctx.rules)


def local_size(dim: int, size: int, sharding: Sharding, mesh: Mesh) -> int | Local:
    """Return the local size of dimension `dim` with `size` elements.

    It is an int if the dimension is sharded evenly, else a `Local`, which each rank evaluates.
    """
    axes = sharding.dim_axes(dim)
    if sharding.is_even(dim, size, mesh):
        return size // mesh.group_size(axes)
    return attrs.evolve(shard_of(size, [(axis, sharding[axis]) for axis in axes]), kind="size")


def local_sizes(meta: TensorMeta, sharding: Sharding, mesh: Mesh) -> tuple[int | Local, ...]:
    """Return the local sizes of a tensor of type `meta`. A size is an int if it is equal on all ranks.

    Raises:
        UnsupportedError: a plug-in placement has local tensors of different sizes that are not shards.
    """
    if not sharding.has_own_type:
        return tuple(local_size(dim, size, sharding, mesh) for dim, size in enumerate(meta.shape))
    sizes = common_type(sharding, meta, mesh).shape
    if DYNAMIC in sizes:
        raise UnsupportedError(
            f"requires the sizes of its result as arguments, but local tensors of <{sharding}> differ in size and are "
            "not shards; expected a sharding such as S(0): add a spmd.constraint with it on the result"
        )
    return sizes


def _localize(function: FuncOp, mesh: Mesh, rules: RuleSet) -> None:
    """Replace the global types of a function by local ones, in place, and replace ops by their local forms.

    Raises:
        SpmdirErrors: an op is ill typed or not lowered yet; located.
    """
    block, names = function.body.block, Names(function.body.block)
    for op in block.ops:
        _reject_unfinished(op)
    raise_all([*argument_errors(function), *result_errors(function, mesh)])
    typing_by_key: dict[object, _LocalTyping] = {}
    # From the last op to the first: the operands of an op still have global types when it is processed.
    for op in reversed(list(block.ops)):
        if isinstance(op, CallOp):  # calls a layer, which is localized too
            for result in op.results:
                _localize_value(result, mesh)
        if not isinstance(op, ValueOp):
            continue
        typing = _local_typing(op, mesh, rules, typing_by_key) if isinstance(op, AtenOp) else None
        op.attributes.pop(EXPANSION, None)  # its shardings and types are global
        of = tuple([_localize_value(result, mesh) for result in op.results])
        if any(entry is not None for entry in of):
            op.properties["of"] = ShapesAttr(of)
        if typing is None or typing.rule is None:
            continue
        if typing.has_form:
            replace_by_local_form(op, typing.rule, typing.choice, mesh, names)
        elif typing.arguments is not None:
            op.properties["arguments"] = typing.arguments
    of = [_localize_value(argument, mesh) for argument in block.args]
    _set_argument_shapes(function, of)
    returned = ir.terminator(function).operand_types
    function.properties["function_type"] = FunctionType.from_lists([arg.type for arg in block.args], returned)
    write_stage(function, "local")
    replace_gathers_by_assembles(function, mesh)
    trust(function)


def _reject_unfinished(op: Any) -> None:
    """Raise a located SpmdirError if an earlier pass did not run.

    Then the op is a reshard or a constraint, has `needs`, or has a result without a sharding. A constant that is not
    replicated is an error too.
    """
    location = location_of(op)
    if isinstance(op, (ReshardOp, ConstraintOp)):
        raise UnsupportedError(
            f"localize found '{op.name}'; expected collectives instead of reshards: run lower-reshard first", location
        )
    if not isinstance(op, ValueOp):
        return
    if op.needs is not None:
        raise UnsupportedError(
            f"localize found '{op.name}' with `needs`, whose operands have other shardings than it "
            "requires; expected reshards of these operands: run insert-reshard first",
            location,
        )
    for meta, sharding in zip(op.metas, op.shardings, strict=True):
        if meta is not None and sharding is None:
            raise ShardingError(
                f"'{op.name}' has a value without a sharding; expected a sharding for each value: run propagate first",
                location,
            )
        if isinstance(op, ConstantOp) and sharding and sharding.entries:
            raise ShardingError(
                f"a constant has the sharding <{sharding}>; expected <>, since each rank has the whole "
                "constant: reshard its result instead",
                location,
            )


@attrs.frozen
class _LocalTyping:
    """How localize changes an op, and all ops that are equal to it.

    Attributes:
        rule: the rule of the op, if it has one.
        choice: the strategies that the shardings correspond to.
        has_form: whether the local form of the rule replaces the op.
        arguments: the arguments of one rank; None if they do not change.
    """

    rule: OpRule | None
    choice: Choice
    has_form: bool = False
    arguments: ArgumentsAttr | None = None


def _local_typing(op: AtenOp, mesh: Mesh, rules: RuleSet, typing_by_key: dict[object, _LocalTyping]) -> _LocalTyping:
    """Return how localize changes `op`, from the cache `typing_by_key` if an equal op was seen before.

    Raises:
        SpmdirError: `op` is ill typed, or cannot run on one rank; located.
    """
    properties = op.properties
    operands = tuple([(meta_of(operand.type), sharding_of(operand)) for operand in op.operands])
    key = (op.name, is_split(op), operands, op.metas, *map(properties.get, ("arguments", "structure", "sharding")))
    if key not in typing_by_key:
        typing_by_key[key] = _compute_local_typing(op, mesh, rules)
    return typing_by_key[key]


def _compute_local_typing(op: AtenOp, mesh: Mesh, rules: RuleSet) -> _LocalTyping:
    """Return the result of `_local_typing` without its cache.

    An op gets its local form if a strategy requires it. Otherwise, arguments that are the sizes of the result become
    local sizes, as those of `new_zeros`.
    """
    rule, choice = strategies_of(op, mesh, rules)
    rewrites = {strategy.rewrite for strategy in choice.values()}
    if "expand" in rewrites:
        raise UnsupportedError(
            f"'{op.name}' reduces inside a sharded dimension; expected ops that reduce shards: run expand first",
            location_of(op),
        )
    has_form = bool(rewrites & {"local", SPLIT})
    if rule is None or has_form:
        return _LocalTyping(rule, choice, has_form)
    meta, sharding = rule.call.results[0], op.shardings[0]
    if not rule.shape_arguments or meta is None or not sharding:
        return _LocalTyping(rule, choice)
    with errors_at(op, UnsupportedError):
        sizes = local_sizes(meta, sharding, mesh)
    arguments = {**op.argument, **{name: sizes for name in rule.shape_arguments if name in op.argument}}
    return _LocalTyping(rule, choice, False, ArgumentsAttr(tuple(sorted(arguments.items()))))


def _localize_value(value: SSAValue, mesh: Mesh) -> Of | None:
    """Set the local type of a value. Return its global type if that does not follow from the local one."""
    meta, sharding = meta_of(value.type), sharding_of(value)
    if meta is None or sharding is None:
        return None
    local, of = _local_type(meta, sharding, mesh)
    retype(value, retyped(value.type, local))
    return of


@lru_cache(maxsize=65536)
def _local_type(meta: TensorMeta, sharding: Sharding, mesh: Mesh) -> tuple[TensorMeta, Of | None]:
    """Return the local type of a tensor, and its global type if that does not follow from the local one.

    A local size that differs between ranks is DYNAMIC.
    """
    traits = {placement.trait for _, placement in sharding.entries}
    if traits <= {"partial"}:  # replicated or partial: each rank has a tensor of the global shape
        return meta, None
    if "other" in traits:
        local = common_type(sharding, meta, mesh)
    else:
        sizes = tuple(
            DYNAMIC if isinstance(size, Local) or dim in sharding.routed_dims else size
            for dim, size in enumerate(local_sizes(meta, sharding, mesh))
        )
        local = TensorMeta(sizes, meta.dtype)
    return local, of_type(meta, local) if DYNAMIC in local.shape or "other" in traits else None


def _set_argument_shapes(function: FuncOp, of: list[Of | None]) -> None:
    """Write the global types of arguments to the attribute `spmd.of`, where they do not follow from local types."""
    if all(entry is None for entry in of):
        return
    attributes = []
    for index, shape in enumerate(of):
        entries: dict[str, Attribute] = function_attrs(function, "arg_attrs", index)
        if shape is not None:
            entries["spmd.of"] = ShapesAttr((shape,))
        attributes.append(DictionaryAttr(entries))
    function.properties["arg_attrs"] = ArrayAttr(attributes)
