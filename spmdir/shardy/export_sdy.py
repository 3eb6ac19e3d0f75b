"""A program of the IR as `sdy` text: torch ops are custom calls, each with Shardy's form of its rule.

    %0 = aten.sum.dim_IntList(%x) {dim = [1], keepdim = false} : tensor<4xf32> <dp: S(0)>

becomes

    %0 = stablehlo.custom_call @aten.sum.dim_IntList(%x) {backend_config = "{dim = [1], keepdim = false}",
      sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"dp"}]>]>,
      sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i]) {i=4, j=8} reduction={j}, custom>}
      : (tensor<4x8xf32>) -> tensor<4xf32>

Shardy's passes preserve attributes that they do not define. So the text contains in attributes of `spmd` what `sdy`
cannot represent: names and kinds of arguments, lists and missing tensors among operands, and the axes inside a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    UnitAttr,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue

from spmdir.analysis.type_check import rule_of
from spmdir.core.errors import ShardingError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.literals import print_arguments
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import ShardingAttr, meta_of
from spmdir.dialects.locations import errors_at
from spmdir.dialects.names import copy_name, name_of, text_name
from spmdir.dialects.reshard_ops import ConstraintOp, LayoutOp, ReshardOp
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.stage import is_local
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs
from spmdir.shardy.sdy_dialect import (
    CustomCallOp,
    OpShardingRuleAttr,
    SdyMeshOp,
    SdyReshardOp,
    ShardingConstraintOp,
    TensorShardingAttr,
    TensorShardingPerValueAttr,
)
from spmdir.shardy.sharding_rule import sharding_rule
from spmdir.shardy.tensor_sharding import TensorSharding, errors_of, to_tensor_sharding

if TYPE_CHECKING:
    from spmdir.rules import RuleSet

_LAYOUT_OPS = {ConstraintOp.name: ShardingConstraintOp, ReshardOp.name: SdyReshardOp}

RECORDS = {
    "spmd.calls",
    "spmd.certificate",
    "spmd.decided_by",
    "spmd.given",
    "spmd.objective",
    "spmd.passes",
    "spmd.rule",
    "spmd.stage",
    "spmd.strategies",
    "spmd.topology",
}
"""Attributes that record how passes decided a program. The text omits them."""

_PLAIN = (FloatAttr, IntegerAttr, StringAttr, UnitAttr)


def export_sdy(module: ModuleOp, rules: RuleSet) -> str:
    """Return a program as `sdy` text.

    Args:
        module: before `lower-reshard`, so it contains no collectives.
        rules: the rules of the torch ops.

    Raises:
        SpmdirError: Shardy cannot represent an op, a placement or a size; located.
    """
    mesh_op = ir.mesh_op(module)
    sdy_mesh = SdyMeshOp.build(mesh_op.mesh)
    if mesh_op.mesh.intra_node is not None:
        sdy_mesh.attributes["spmd.intra"] = ArrayAttr(map(StringAttr, mesh_op.mesh.intra_node))
    translated: list[Operation] = [sdy_mesh]
    for op in module.body.block.ops:
        if isinstance(op, FuncOp):
            translated.append(_Exporter(mesh_op.mesh, rules).function(op))
        elif op is not mesh_op:
            with errors_at(op):
                raise UnsupportedError(
                    "the program has symbolic sizes, which Shardy does not have; expected numbers: bind the "
                    "sizes with --bind-sizes"
                )
    return ir.print_ir(ModuleOp(translated))


class _Exporter:
    """Translates one function, op by op."""

    def __init__(self, mesh: Mesh, rules: RuleSet):
        self.mesh = mesh
        self.rules = rules
        self.values: dict[SSAValue, SSAValue] = {}

    def function(self, function: FuncOp) -> FuncOp:
        """Return the function in Shardy's form. The names of values, the order of ops and the signature do not change.

        Raises:
            SpmdirError: Shardy cannot represent it.
        """
        with errors_at(function):
            if is_local(function):
                raise UnsupportedError(
                    "is the program of one rank; expected a program before --localize: export that one"
                )
            if not function.body.blocks:
                raise UnsupportedError("the function has no body; expected a body: define the function, or remove it")
            arguments = [self._argument_attributes(function, argument) for argument in function.args]
            outputs = function.function_type.outputs.data
            results = [
                self._attributes(function, "res_attrs", index, type_, f"result {index}")
                for index, type_ in enumerate(outputs)
            ]
            carried = _carried(function.attributes)
        block = Block(arg_types=[argument.type for argument in function.args])
        for argument, translated in zip(function.args, block.args, strict=True):
            self._bind(argument, translated)
        for op in function.body.block.ops:
            with errors_at(op):
                block.add_op(self._op(op))
        exported = FuncOp(
            function.sym_name.data,
            function.function_type,
            Region(block),
            function.sym_visibility,
            arg_attrs=ArrayAttr(arguments) if any(attributes.data for attributes in arguments) else None,
            res_attrs=ArrayAttr(results) if any(attributes.data for attributes in results) else None,
        )
        exported.attributes.update(carried)
        return exported

    def _argument_attributes(self, function: FuncOp, argument: BlockArgument) -> DictionaryAttr:
        """Return the attributes of an argument, with its name in the IR."""
        subject = f"argument {text_name(argument)}"
        attributes = self._attributes(function, "arg_attrs", argument.index, argument.type, subject)
        name = name_of(argument)
        if name is None or "spmd.name" in attributes.data:
            return attributes
        return DictionaryAttr({**attributes.data, "spmd.name": StringAttr(name)})

    def _attributes(self, function: FuncOp, which: str, index: int, type_: Attribute, subject: str) -> DictionaryAttr:
        """Return the attributes of an argument or result, with its sharding in Shardy's form.

        Args:
            which: `arg_attrs` or `res_attrs`.
            subject: the argument or result, for errors.
        """
        translated: dict[str, Attribute] = {}
        for name, value in function_attrs(function, which, index).items():
            if isinstance(value, ShardingAttr):
                with errors_of(subject):
                    translated["sdy.sharding"] = TensorShardingAttr(self._sharding(value.data, type_))
            else:
                translated |= _carried({name: value})
        return DictionaryAttr(translated)

    def _bind(self, value: SSAValue, translated: SSAValue) -> None:
        """Record the translation of a value, and give it the same name."""
        copy_name(translated, value)
        self.values[value] = translated

    def _op(self, op: Operation) -> Operation:
        """Translate one op, and record its results."""
        if isinstance(op, ReturnOp):
            return ReturnOp(*[self.values[operand] for operand in op.operands])
        if not isinstance(op, (AtenOp, ConstantOp, LayoutOp)):
            raise UnsupportedError(
                "has no counterpart in sdy; expected no collectives, calls and symbolic sizes: export the "
                "program before --lower-reshard"
            )
        if op.needs is not None:
            raise UnsupportedError(
                "requires other shardings of its operands, which sdy cannot represent; expected reshards "
                "of these operands: run --insert-reshard first"
            )
        translated = self._layout_op(op) if isinstance(op, LayoutOp) else self._custom_call(op)
        present = (result for result in op.results if meta_of(result.type) is not None)
        for result, translated_result in zip(present, translated.results, strict=True):
            self._bind(result, translated_result)
        return translated

    def _layout_op(self, op: LayoutOp) -> Operation:
        """Translate a constraint or a reshard."""
        (sharding,) = op.shardings
        assert sharding is not None
        operand = self.values[op.operands[0]]
        return _LAYOUT_OPS[op.name].create(
            operands=[operand],
            result_types=[operand.type],
            properties={"sharding": TensorShardingAttr(self._sharding(sharding, operand.type))},
        )

    def _custom_call(self, op: ValueOp) -> Operation:
        """Translate a torch op or a constant: its arguments, results, shardings and rule become attributes.

        An op without operands, without a rule, or whose rule replicates all values has no rule in the text.

        Raises:
            SpmdirError: only some results have shardings, or Shardy cannot represent a sharding or an attribute.
        """
        attributes: dict[str, Attribute] = {
            "backend_config": StringAttr(print_arguments(op.arguments.data) if op.arguments else "")
        }
        if op.structure is not None:
            attributes["spmd.slots"] = StringAttr(print_arguments([("slots", op.structure.data)]))
        has_result = [meta is not None for meta in op.metas]
        if not all(has_result):
            attributes["spmd.results"] = ArrayAttr(map(IntegerAttr.from_bool, has_result))
        results: list[SSAValue] = []
        decided: list[tuple[Sharding, Attribute]] = []
        for result, sharding, is_present in zip(op.results, op.shardings, has_result, strict=True):
            if is_present:
                results.append(result)
                if sharding is not None:
                    decided.append((sharding, result.type))
        if len(decided) not in (0, len(results)):
            raise UnsupportedError(
                "only some results have shardings; expected a sharding of each result, or of none: add the others"
            )
        if decided:
            translated = [self._sharding(sharding, type_) for sharding, type_ in decided]
            attributes["sdy.sharding"] = TensorShardingPerValueAttr(tuple(translated))
        rule = rule_of(op, self.rules) if isinstance(op, AtenOp) and op.operands else None
        rule_text = sharding_rule(rule) if rule is not None else None
        if rule_text is not None:
            attributes["sdy.sharding_rule"] = OpShardingRuleAttr(rule_text)
        return CustomCallOp.create(
            operands=[self.values[operand] for operand in op.operands],
            result_types=[result.type for result in results],
            properties={"callee": StringAttr(op.name)},
            attributes=attributes | _carried(op.attributes),
        )

    def _sharding(self, sharding: Sharding, type_: Attribute) -> TensorSharding:
        """Return the sharding of a tensor of this type in Shardy's form."""
        meta = meta_of(type_)
        assert meta is not None  # verified
        return to_tensor_sharding(sharding, self.mesh, meta.shape)


def _carried(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    """Return the attributes that the text contains unchanged: all except the records of passes.

    Raises:
        ShardingError: an attribute is not a plain value: for example, it contains a sharding.
    """
    carried = {name: value for name, value in attributes.items() if name not in RECORDS}
    for name, value in carried.items():
        if not _is_plain(value):
            raise ShardingError(
                f"the attribute {name} has no counterpart in sdy; expected a program without it: export the "
                "program before the pass that adds it"
            )
    return carried


def _is_plain(value: Attribute) -> bool:
    """Return whether an attribute is a number, a string, a unit, or an array or dictionary of these."""
    if isinstance(value, ArrayAttr):
        return all(map(_is_plain, value.data))
    if isinstance(value, DictionaryAttr):
        return all(map(_is_plain, value.data.values()))
    return isinstance(value, _PLAIN)
