"""Restore the global program of a local program: the inverse of `localize`.

For example, a lookup in a table of 10 rows, sharded over 2 ranks, is a local form of six ops on 5 rows:

    %_0.local_index = spmd.local_index %ids {of = shard(10, tp)} : tensor<6xi64> attributes {spmd.form = …}
    … aten.clamp, aten.embedding(%w, …) with %w : tensor<5x4xf32>, aten.ge.Scalar, aten.unsqueeze
    %0 = aten.where.ScalarOther(…) {other = 0} : tensor<6x4xf32> <tp: P(sum)>
    %_0.reshard = spmd.reduce_scatter %0 on [tp] dim 0 op sum : tensor<3x4xf32> <tp: S(0)>

The restored program has %w : tensor<10x4xf32>, and these ops with global types:

    %0 = aten.embedding(%w, %ids) : tensor<6x4xf32> <tp: P(sum)>
    %_0.reshard = spmd.reduce_scatter %0 on [tp] dim 0 op sum : tensor<6x4xf32> <tp: S(0)>

The first op comes from the attribute `spmd.form`. Nothing is checked here: verify-spmd type-checks the result,
localizes it again, and reports any difference from the local program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from spmdir.analysis.local_forms import LOCAL_FORM, ReplacedOp, read_replaced_op, value_at
from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import ArgumentsAttr, meta_of, retyped, sharding_attr, shardings_attr
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.context import IRContext
from spmdir.dialects.locations import errors_at
from spmdir.dialects.names import full_name, keep_name
from spmdir.dialects.row_exchanges import is_exchange_start
from spmdir.dialects.stage import STAGE
from spmdir.dialects.values import function_attrs, global_type

Unit = Sequence[Operation]
"""The ops that a schedule moves together: the ops of a local form or of a part of one, or one op."""


def globalize(module: ModuleOp, function: FuncOp, ctx: IRContext) -> ModuleOp:
    """Return the global module that localize converts to `module`, according to its types and `spmd.form` attributes.

    Operands that a local form does not use become additional arguments of the function.

    Raises:
        SpmdirError: types and `spmd.form` attributes contradict each other; located.
    """
    return ModuleOp([ir.mesh_op(module).clone(), _Globalizer(function, ir.mesh(module), ctx).function()])


def units_of(block: Block) -> Iterator[tuple[ReplacedOp | None, Unit]]:
    """Yield (replaced op, ops) for each local form of a local function, and (None, [op]) for each other op, in order.

    A form whose exchange of rows is divided into a start and a wait has two parts: the ops up to the start, and the ops
    from the wait on. Both units have the same replaced op.

    Raises:
        ShardingError: the attribute of a local form is malformed, or the form is longer than the function; located.
    """
    ops = list(block.ops)[:-1]  # without the return op
    second_parts: dict[Operation, tuple[ReplacedOp | None, int]] = {}  # start → (replaced op, number of remaining ops)
    position = 0
    while position < len(ops):
        op = ops[position]
        with errors_at(op, ShardingError):
            if isinstance(op, WaitOp) and op.start in second_parts:
                replaced, count = second_parts.pop(op.start)
            else:
                replaced = read_replaced_op(op)
                count = 1 if replaced is None else replaced.places.op_count
            if not 0 < count <= len(ops) - position:
                raise ShardingError(
                    f"{LOCAL_FORM} is for {count} ops, but {len(ops) - position} follow; expected all ops of the local "
                    f"form: leave the ops and {LOCAL_FORM} as localize wrote them"
                )
        unit = ops[position : position + count]
        exchange = next((index for index, op in enumerate(unit) if is_exchange_start(op)), None)
        if exchange is not None:
            second_parts[unit[exchange]] = replaced, count - exchange
            unit = unit[: exchange + 1]
        yield replaced, unit
        position += len(unit)


class _Globalizer:
    """Build the global function in one walk over a local function.

    Attributes:
        block: the global ops so far.
        values: local value → global value, for values outside local forms.
        attributes: for each global argument, its attributes.
    """

    def __init__(self, local: FuncOp, mesh: Mesh, ctx: IRContext):
        self.local, self.mesh, self.ctx = local, mesh, ctx
        self.block = Block(arg_types=[self.type(argument) for argument in local.args])
        self.values: dict[SSAValue, SSAValue] = dict(zip(local.args, self.block.args, strict=True))
        attributes = [function_attrs(local, "arg_attrs", index) for index in range(len(local.args))]
        self.attributes = [{name: a for name, a in arguments.items() if name != "spmd.of"} for arguments in attributes]

    def function(self) -> FuncOp:
        """Return the global function: the ops that are not in local forms, and one op for each local form."""
        for argument, global_argument in self.values.items():
            keep_name(global_argument, full_name(argument) or "")
        for replaced, ops in units_of(self.local.body.block):
            with errors_at(ops[0]):
                self.block.add_op(self.op(ops[0]) if replaced is None else self.global_op(replaced, ops))
        end = ir.terminator(self.local)
        returned = ReturnOp(*(self.value(value) for value in end.operands))
        returned.location = end.location
        self.block.add_op(returned)
        types = FunctionType.from_lists(self.block.arg_types, returned.operand_types)
        arguments = ArrayAttr(map(DictionaryAttr, self.attributes))
        function = FuncOp.create(
            properties={**self.local.properties, "function_type": types, "arg_attrs": arguments},
            attributes={name: attribute for name, attribute in self.local.attributes.items() if name != STAGE},
            regions=[Region(self.block)],
        )
        function.location = self.local.location
        return function

    def op(self, op: Operation) -> Operation:
        """Return the global op of a local op that is not in a local form, and record its results.

        Arguments that are shapes, such as those of a view, become the global shape.
        """
        properties = {name: attribute for name, attribute in op.properties.items() if name != "of"}
        types = [self.type(result) for result in op.results]
        if isinstance(op, AtenOp) and (sizes := op.argument.keys() & self.ctx.rules.shape_arguments(op.name)):
            meta, sharding = meta_of(types[0]), op.shardings[0]
            if meta is not None and sharding is not None:
                arguments = {**op.argument, **dict.fromkeys(sizes, meta.shape)}
                properties["arguments"] = ArgumentsAttr(tuple(sorted(arguments.items())))
        operands = [self.value(operand) for operand in op.operands]
        new = type(op).create(operands=operands, result_types=types, properties=properties, location=op.location)
        self.map_values(op.results, new.results)
        return new

    def global_op(self, replaced: ReplacedOp, ops: Sequence[Operation]) -> Operation:
        """Return the op that a local form replaces, and record its results.

        Args:
            replaced: the description of this op on the first op of the form.
            ops: the ops of the form.

        Raises:
            ShardingError: `replaced` contradicts the ops, or names an op that has no local forms.
        """
        kind = self.ctx.get_optional_op(replaced.op)
        traits = kind.SPEC.traits if kind is not None and issubclass(kind, Collective) else None
        # A gather is the only collective with a local form.
        is_gather = traits == ("shard", "replicated")
        if kind is None or not (issubclass(kind, AtenOp) or is_gather):
            raise ShardingError(
                f"{LOCAL_FORM} names '{replaced.op}', an op without local forms; "
                f"expected an op of torch: leave {LOCAL_FORM} as localize wrote it"
            )
        operands = []
        for index, place in enumerate(replaced.places.operands):
            value = value_at(ops, place, "operands")
            if value is None:
                operands.append(self.add_unread_argument(replaced.operands[index], replaced.operand_shardings[index]))
            else:
                operands.append(self.value(value))
        properties = {**replaced.properties, "sharding": shardings_attr(replaced.result_shardings)}
        new = kind.create(
            operands=operands,
            result_types=replaced.results,
            properties=properties,
            attributes=replaced.attributes,
            location=ops[0].location,
        )
        for index, place in enumerate(replaced.places.results):
            value = value_at(ops, place, "results")
            if value is not None:
                self.map_values([value], [new.results[index]])
        return new

    def add_unread_argument(self, type_: Attribute, sharding: Sharding | None) -> SSAValue:
        """Add an argument to the global function for an operand that a local form does not use, and return it."""
        if sharding is None:
            raise ShardingError(
                f"{LOCAL_FORM} has an operand without a sharding; expected one for each: leave it as localize wrote it"
            )
        self.attributes.append({"spmd.sharding": sharding_attr(sharding)})
        argument = self.block.insert_arg(type_, len(self.block.args))
        keep_name(argument, f"unread_{argument.index}")
        return argument

    def map_values(self, old: Sequence[SSAValue], new: Sequence[SSAValue]) -> None:
        """Record the global values of local ones, with the same names."""
        for before, after in zip(old, new, strict=True):
            self.values[before] = after
            keep_name(after, full_name(before) or "")

    def value(self, value: SSAValue) -> SSAValue:
        """Return the global value of a local one; raise ShardingError if it is inside a local form."""
        if value not in self.values:
            raise ShardingError(
                "uses a value from inside a local form; expected a result of the form, or a value from outside: "
                "leave the ops of a form together"
            )
        return self.values[value]

    def type(self, value: SSAValue) -> Attribute:
        """Return the global type of a local value; its own type if it is not a tensor of the mesh."""
        meta = global_type(value, self.mesh)
        return value.type if meta is None else retyped(value.type, meta)
