"""`sdy` text as a program of the IR: the inverse of `export_sdy`, also of text that Shardy's passes changed.

Rules of ops are not read: spmdir has its own. A custom call whose name contains a dot is a torch op.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from spmdir.core.errors import ParseError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Literal, Structure
from spmdir.core.placement.literals import LiteralError, parse_arguments
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.attributes import (
    ArgumentsAttr,
    StructureAttr,
    as_structure,
    meta_of,
    sharding_attr,
    shardings_attr,
    type_of,
)
from spmdir.dialects.locations import errors_at
from spmdir.dialects.mesh_op import MeshOp
from spmdir.dialects.names import copy_name, keep_name, name_of, text_name
from spmdir.dialects.op_lookup import class_of
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.verifier import verify
from spmdir.shardy.sdy_dialect import (
    CustomCallOp,
    Sdy,
    SdyLayoutOp,
    SdyMeshOp,
    StableHLO,
    TensorShardingAttr,
    TensorShardingPerValueAttr,
)
from spmdir.shardy.tensor_sharding import TensorSharding, errors_of, from_tensor_sharding

_LAYOUT_OPS = {"sdy.sharding_constraint": ConstraintOp, "sdy.reshard": ReshardOp}

_IGNORED = re.compile(r"sdy\.sharding_rule|api_version|(stablehlo|mhlo|jax)\..*")
"""Attributes of other dialects that do not affect the results of the program."""

_NUMBERED = re.compile(r"_[0-9]+\Z")


def import_sdy(text: str, filename: str = "<text>") -> ModuleOp:
    """Return the program that `sdy` text contains, verified.

    Raises:
        ParseError: the text is malformed.
        SpmdirError: spmdir cannot represent a part of it; located.
    """
    module = ir.parse_with((Sdy, StableHLO), text, filename)
    meshes = [op for op in module.body.block.ops if isinstance(op, SdyMeshOp)]
    if len(meshes) != 1:
        with errors_at(meshes[1] if meshes else module):
            raise UnsupportedError(
                f"the module declares {len(meshes)} meshes; expected one `sdy.mesh`: declare exactly one"
            )
    with errors_at(meshes[0]):
        mesh = _read_mesh(meshes[0])
    translated: list[Operation] = [MeshOp.build(mesh)]
    translated[0].location = meshes[0].location
    for op in module.body.block.ops:
        if isinstance(op, FuncOp):
            translated.append(_Importer(mesh).function(op))
        elif op is not meshes[0]:
            with errors_at(op):
                raise UnsupportedError("is not part of a function; expected one `sdy.mesh` and functions: remove it")
    imported = ModuleOp(translated)
    imported.location = module.location
    verify(imported)
    return imported


def _read_mesh(op: SdyMeshOp) -> Mesh:
    """Return the mesh that an op declares, with the axes inside a node if `export_sdy` wrote them."""
    intra = op.attributes.get("spmd.intra")
    if not isinstance(intra, ArrayAttr):
        return op.mesh(None)
    return op.mesh(tuple(entry.data for entry in intra.data if isinstance(entry, StringAttr)))


class _Importer:
    """Translates one function, op by op."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self.values: dict[SSAValue, SSAValue] = {}

    def function(self, function: FuncOp) -> FuncOp:
        """Return the function in the IR. Its ops, arguments and results keep names, shardings and attributes of `spmd`.

        Raises:
            SpmdirError: spmdir cannot represent it.
        """
        types = function.function_type
        with errors_at(function):
            if not function.body.blocks:
                raise UnsupportedError("the function has no body; expected a body: define the function, or remove it")
            arguments = [
                self._attributes(function.arg_attrs, argument.index, argument.type, f"argument {text_name(argument)}")
                for argument in function.args
            ]
            results = [
                self._attributes(function.res_attrs, index, type_, f"result {index}")
                for index, type_ in enumerate(types.outputs)
            ]
            carried = _carried(function.attributes)
        block = Block(arg_types=[argument.type for argument in function.args])
        for argument, translated in zip(function.args, block.args, strict=True):
            self._bind(argument, translated)
        for op in function.body.block.ops:
            with errors_at(op):
                translated = self._op(op)
                translated.location = op.location
                block.add_op(translated)
        arguments = [_name_argument(value, entries) for value, entries in zip(block.args, arguments, strict=True)]
        visibility = function.sym_visibility
        imported = FuncOp(
            function.sym_name.data,
            types,
            Region(block),
            None if visibility is None or visibility.data == "public" else visibility,
            arg_attrs=_array_attr(arguments),
            res_attrs=_array_attr(results),
        )
        imported.attributes.update(carried)
        imported.location = function.location
        return imported

    def _attributes(
        self, attributes: ArrayAttr[DictionaryAttr] | None, index: int, type_: Attribute, subject: str
    ) -> dict[str, Attribute]:
        """Return the attributes of an argument or result, with its sharding in the form of the IR.

        Args:
            subject: the argument or result, for errors.
        """
        translated: dict[str, Attribute] = {}
        for name, value in attributes.data[index].data.items() if attributes is not None else ():
            with errors_of(subject):
                if isinstance(value, TensorShardingAttr):
                    translated["spmd.sharding"] = sharding_attr(self._sharding(value.data, type_))
                else:
                    translated |= _carried({name: value})
        return translated

    def _bind(self, value: SSAValue, translated: SSAValue) -> None:
        """Record the translation of a value, and give it the same name."""
        copy_name(translated, value)
        self.values[value] = translated

    def _op(self, op: Operation) -> Operation:
        """Translate one op, and record its results."""
        operands = [self.values[operand] for operand in op.operands]
        if isinstance(op, ReturnOp):
            return ReturnOp(*operands)
        if isinstance(op, SdyLayoutOp):
            sharding = self._sharding(op.sharding.data, op.output.type)
            translated = _LAYOUT_OPS[op.name].build(operands[0], sharding)
            self._bind(op.output, translated.results[0])
            return translated
        if not isinstance(op, CustomCallOp):
            raise UnsupportedError(
                "has no counterpart in the IR; expected custom calls of torch ops, and sdy.reshard: export the "
                "program from torch"
            )
        translated = self._torch_op(op, operands)
        present = (result for result in translated.results if meta_of(result.type) is not None)
        for result, translated_result in zip(op.results, present, strict=True):
            self._bind(result, translated_result)
        return translated

    def _torch_op(self, op: CustomCallOp, operands: list[SSAValue]) -> ValueOp:
        """Translate a custom call to the torch op or constant that it names.

        `backend_config` has the literal arguments, `spmd.slots` the structure of the operands, and `spmd.results` the
        results that the op does not return.

        Raises:
            SpmdirError: the call names no torch op, or one of these attributes does not fit the call.
        """
        callee = op.callee.data
        kind = ConstantOp if callee == ConstantOp.name else class_of(callee)
        if kind is None or not issubclass(kind, ValueOp):
            raise UnsupportedError(f"calls @{callee}; expected a torch op, as in @aten.mm")
        attributes = dict(op.attributes)
        properties: dict[str, Attribute] = {}
        arguments = _literals(attributes.pop("backend_config", StringAttr("")), "backend_config")
        if arguments:
            properties["arguments"] = ArgumentsAttr(arguments)
        slots = _literals(attributes.pop("spmd.slots", StringAttr("")), "spmd.slots")
        if slots:
            properties["structure"] = StructureAttr(_structure(dict(slots).get("slots"), len(operands)))
        has_result = attributes.pop("spmd.results", None)
        types = _with_absent(op.result_types, has_result)
        sharding = attributes.pop("sdy.sharding", None)
        if isinstance(sharding, TensorShardingPerValueAttr):
            if len(sharding.data) != len(op.results):
                raise ParseError(
                    f"has {len(sharding.data)} shardings for {len(op.results)} results; expected one for each result"
                )
            typed_shardings = zip(sharding.data, op.result_types, strict=True)
            present = iter([self._sharding(entry, type_) for entry, type_ in typed_shardings])
            shardings = [None if meta_of(type_) is None else next(present) for type_ in types]
            properties["sharding"] = shardings_attr(tuple(shardings))
        return kind.create(
            operands=operands, result_types=types, properties=properties, attributes=_carried(attributes)
        )  # type: ignore[return-value]  # of `kind`

    def _sharding(self, sharding: TensorSharding, type_: Attribute) -> Sharding:
        """Return the sharding of a tensor of this type in the form of the IR."""
        meta = meta_of(type_)
        if meta is None:
            raise UnsupportedError(f"has a sharding of {type_}; expected a tensor")
        return from_tensor_sharding(sharding, self.mesh, meta.shape)


def _with_absent(types: Sequence[Attribute], has_result: Attribute | None) -> list[Attribute]:
    """Return the types of all results; `none` for results that the op does not return."""
    if not isinstance(has_result, ArrayAttr):
        return list(types)
    present = iter(types)
    flags = [isinstance(flag, IntegerAttr) and bool(flag.value.data) for flag in has_result.data]
    if sum(flags) != len(types):
        raise ParseError(f"has {len(types)} results, but spmd.results lists {sum(flags)}; expected equal numbers")
    return [next(present) if flag else type_of(None) for flag in flags]


def _structure(slots: Literal, count: int) -> Structure:
    """Return how `count` operands fill the tensor arguments of an op, from `spmd.slots`.

    In [1, 0, [1, 1]], the first argument is a tensor, the second is missing, and the third is a list of two tensors.
    """
    with suppress(TypeError, ValueError):
        structure = as_structure(slots)
        filled = sum(sum(entry) if isinstance(entry, tuple) else entry for entry in structure)
        if filled == count:
            return structure
    raise ParseError(f"has {count} operands; expected spmd.slots to place each of them, as in {{slots = [1, [0, 1]]}}")


def _literals(attribute: Attribute, name: str) -> tuple[tuple[str, Literal], ...]:
    """Return (name, literal) of each argument in the text of the attribute `name`."""
    try:
        text = attribute.data if isinstance(attribute, StringAttr) else "?"  # "?" is malformed, so it is an error
        return parse_arguments(text) if text else ()
    except LiteralError as error:
        message = f'{name} is {attribute}; expected the arguments of a torch op, as in "{{dim = 1}}": {error}'
        raise ParseError(message) from None


def _carried(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    """Return the attributes of `spmd`. Known attributes of other dialects are left out.

    Raises:
        UnsupportedError: there is an unknown attribute, which may change the results of the program.
    """
    carried = {name: value for name, value in attributes.items() if not _IGNORED.fullmatch(name)}
    for name in carried:
        if not name.startswith("spmd."):
            raise UnsupportedError(
                f"has the attribute {name}, which spmdir does not support; expected no such attribute: remove it"
            )
    return carried


def _name_argument(argument: SSAValue, attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    """Name an argument by its attribute `spmd.name`, and return the attributes.

    The attribute is removed if the SSA name is the same, and would not be changed by xDSL's tools.
    """
    name = attributes.get("spmd.name")
    if isinstance(name, StringAttr):
        keep_name(argument, name.data)
        if name_of(argument) == name.data and not _NUMBERED.search(name.data):
            del attributes["spmd.name"]
    return attributes


def _array_attr(attributes: list[dict[str, Attribute]]) -> ArrayAttr[DictionaryAttr] | None:
    """Return the attributes of all arguments or results; None if no argument or result has any."""
    return ArrayAttr(map(DictionaryAttr, attributes)) if any(attributes) else None
