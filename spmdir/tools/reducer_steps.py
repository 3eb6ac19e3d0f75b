"""The steps of `spmd-reduce`: each returns the possible deletions of one kind, or smaller forms, of a program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, MutableMapping
from functools import partial

import attrs
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation
from xdsl.rewriter import Rewriter

from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.attributes import ArgumentsAttr, ShardingAttr, ShardingsAttr
from spmdir.dialects.collectives import Collective
from spmdir.dialects.mesh_op import MeshAttr, MeshOp
from spmdir.dialects.value_op import DECIDED, ValueOp
from spmdir.dialects.values import function_attrs, sharding_of
from spmdir.passes.inline import InlinePass
from spmdir.transforms.layers.inlining import calls_in

Deletion = Callable[[], None]
"""Deletes one part of its module."""


def call_replacements(module: ModuleOp) -> list[Deletion]:
    """Return a list with one change, which inlines all calls; an empty list if there are no calls."""
    calls = any(calls_in(function) for function in _functions(module))
    return [partial(InlinePass().apply, Context(), module)] if calls else []


def declarations(module: ModuleOp) -> list[Deletion]:
    """Return a deletion for each function, for the mesh and for the sizes."""
    return [partial(Rewriter.erase_op, op) for op in module.body.block.ops]


def results(module: ModuleOp) -> list[Deletion]:
    """Return a deletion for each result of a function, the last one first."""
    indices = [(function, index) for function in _functions(module) for index in range(_result_count(function))]
    return [partial(_drop_result, function, index) for function, index in reversed(indices)]


def ops(module: ModuleOp) -> list[Deletion]:
    """Return a deletion for each op except returns, users first. A new argument replaces each result that is used."""
    all_ops = [(function, op) for function in _functions(module) for op in function.body.block.ops]
    return [partial(_drop_op, function, op) for function, op in reversed(all_ops) if not isinstance(op, ReturnOp)]


def arguments(module: ModuleOp) -> list[Deletion]:
    """Return a deletion for each unused argument, the last one first."""
    all_arguments = [(function, value) for function in _functions(module) for value in function.args]
    unused = [(function, value.index) for function, value in all_arguments if not any(value.uses)]
    return [partial(_drop_argument, function, index) for function, index in reversed(unused)]


def mesh_axes(module: ModuleOp) -> list[Deletion]:
    """Return a deletion for each axis of the mesh. It also removes the axis from all shardings and collectives."""
    mesh_ops = [op for op in module.body.block.ops if isinstance(op, MeshOp)]
    return [partial(_drop_axis, module, op, axis) for op in mesh_ops for axis in op.mesh.axis_names]


def shardings(module: ModuleOp) -> list[Deletion]:
    """Return a deletion for each entry (one axis) of the shardings of arguments and results."""
    deletions: list[Deletion] = []
    for function in _functions(module):
        for attribute_name, index in _signature(function):
            sharding = function_attrs(function, attribute_name, index).get("spmd.sharding")
            for axis, _ in sharding.data.entries if isinstance(sharding, ShardingAttr) else ():
                deletions.append(partial(_drop_entry, function, attribute_name, index, axis))
    return deletions


def attributes(module: ModuleOp) -> list[Deletion]:
    """Return a deletion for each attribute of a function, argument, result or op, including `sharding` and `needs`."""
    deletions: list[Deletion] = []
    for function in _functions(module):
        deletions += [partial(_pop, function.attributes, name) for name in function.attributes]
        for attribute_name, index in _signature(function):
            for name in function_attrs(function, attribute_name, index):
                deletions.append(partial(_drop_attribute, function, attribute_name, index, name))
        for op in function.body.block.ops:
            deletions += [partial(_pop, op.attributes, name) for name in op.attributes]
            deletions += [partial(_pop, op.properties, name) for name in ("needs", "sharding") if name in op.properties]
    return deletions


STEPS = (call_replacements, declarations, results, ops, arguments, mesh_axes, shardings, attributes)
"""The deletion steps, in the order of trial."""


def size_replacements(text: str) -> list[Callable[[], Iterator[str]]]:
    """Return for each size in `text` a function that yields texts with smaller sizes, the smallest first.

    Sizes of mesh axes come first, then different sizes of tensors, the largest first.
    """
    mesh = re.search(r"^spmd\.mesh.*$", text, re.MULTILINE)
    axes = re.compile(r"(?<== )[0-9]+").finditer(text, mesh.start(), mesh.end()) if mesh else ()
    dims = {int(dim) for shape in _SHAPE.findall(text) for dim in shape.split("x") if dim.isdecimal()}
    replacements = [partial(_texts_with_smaller_axis, text, *axis.span()) for axis in axes]
    return [*replacements, *(partial(_texts_with_smaller_size, text, size) for size in sorted(dims, reverse=True))]


def _texts_with_smaller_axis(text: str, start: int, end: int) -> Iterator[str]:
    """Yield the text with smaller sizes of the mesh axis whose size is between two offsets."""
    for new in _powers_of_two_below(int(text[start:end]), 2):
        yield f"{text[:start]}{new}{text[end:]}"


def _texts_with_smaller_size(text: str, size: int) -> Iterator[str]:
    """Yield the text with smaller numbers in place of one size of tensors."""
    for new in _powers_of_two_below(size, 1):
        yield _replace_size(text, size, new)


_SHAPE = re.compile(r"(?<=tensor<)(?:[0-9?]+x)+")
_LITERAL = re.compile(r"(?<== )(?:\[[-0-9, ]+\]|[0-9]+)(?=[,}])")


def _powers_of_two_below(size: int, least: int) -> list[int]:
    """Return the powers of two from `least` up to below `size`."""
    return [1 << bits for bits in range(size.bit_length()) if least <= 1 << bits < size]


def _replace_size(text: str, old: int, new: int) -> str:
    """Return `text` with a size replaced in all tensor types, and in the arguments of ops."""

    def replace(match: re.Match[str]) -> str:
        """Return the matched shape or literal with the new size."""
        return re.sub(rf"(?<![-0-9]){old}(?![0-9])", str(new), match[0])

    lines = (
        line if line.startswith("spmd.mesh") else _LITERAL.sub(replace, _SHAPE.sub(replace, line))
        for line in text.splitlines(keepends=True)
    )
    return "".join(lines)


def count_ops(module: ModuleOp) -> int:
    """Return the number of ops in the functions, without returns."""
    return len(ops(module))


def _functions(module: ModuleOp) -> list[FuncOp]:
    """Return the functions with one block that ends in a return. An invalid program may have others."""
    functions = []
    for function in ir.functions(module):
        blocks = function.body.blocks
        if len(blocks) == 1 and isinstance(blocks[0].last_op, ReturnOp):
            functions.append(function)
    return functions


def _signature(function: FuncOp) -> Iterator[tuple[str, int]]:
    """Yield (list of attributes, index) of each argument and result: ("arg_attrs", 0), …, ("res_attrs", 0), …"""
    for index in range(len(function.args)):
        yield "arg_attrs", index
    for index in range(_result_count(function)):
        yield "res_attrs", index


def _pop(entries: MutableMapping[str, Attribute], name: str) -> None:
    """Delete the attribute `name`. This function exists because a `Deletion` cannot be a `del` statement."""
    del entries[name]


def _result_count(function: FuncOp) -> int:
    """Return the number of results of a function."""
    return len(function.function_type.outputs.data)


def _without(entries: ArrayAttr[DictionaryAttr] | None, index: int) -> ArrayAttr[DictionaryAttr] | None:
    """Return the attributes of arguments or results without those at `index`."""
    return entries and ArrayAttr([*entries.data[:index], *entries.data[index + 1 :]])


def _retype(function: FuncOp) -> None:
    """Set the type of a function to that of its arguments and returned values."""
    outputs = [value.type for value in ir.terminator(function).operands]
    function.function_type = FunctionType.from_lists([value.type for value in function.args], outputs)


def _drop_result(function: FuncOp, index: int) -> None:
    """Delete a result of a function."""
    returned = ir.terminator(function)
    returned.operands = [value for position, value in enumerate(returned.operands) if position != index]
    function.res_attrs = _without(function.res_attrs, index)
    _retype(function)


def _drop_argument(function: FuncOp, index: int) -> None:
    """Delete an unused argument of a function."""
    function.body.block.erase_arg(function.args[index])
    function.arg_attrs = _without(function.arg_attrs, index)
    _retype(function)


def _drop_op(function: FuncOp, op: Operation) -> None:
    """Delete an op. A new argument of the function, with the same sharding, replaces each result that is used."""
    for result in op.results:
        if not any(result.uses):
            continue
        arguments = range(len(function.args))
        arg_attrs = [DictionaryAttr(function_attrs(function, "arg_attrs", index)) for index in arguments]
        sharding = sharding_of(result)
        arg_attrs.append(DictionaryAttr({} if sharding is None else {"spmd.sharding": ShardingAttr(sharding)}))
        argument = function.body.block.insert_arg(result.type, len(function.args))
        argument.name_hint = result.name_hint
        result.replace_all_uses_with(argument)
        function.arg_attrs = ArrayAttr(arg_attrs)
    Rewriter.erase_op(op)
    _retype(function)


def _set_attribute(function: FuncOp, attribute_name: str, index: int, name: str, value: Attribute | None) -> None:
    """Set the attribute `name` of an argument (`arg_attrs`) or a result (`res_attrs`); None deletes it."""
    count = len(function.args) if attribute_name == "arg_attrs" else _result_count(function)
    entries = [function_attrs(function, attribute_name, position) for position in range(count)]
    entries[index].pop(name, None)
    if value is not None:
        entries[index][name] = value
    function.properties[attribute_name] = ArrayAttr([DictionaryAttr(entry) for entry in entries])


def _drop_attribute(function: FuncOp, attribute_name: str, index: int, name: str) -> None:
    """Delete the attribute `name` of an argument or a result."""
    _set_attribute(function, attribute_name, index, name, None)


def _drop_entry(function: FuncOp, attribute_name: str, index: int, axis: str) -> None:
    """Delete an axis from the sharding of an argument or a result."""
    sharding = function_attrs(function, attribute_name, index)["spmd.sharding"].data
    remaining = Sharding([entry for entry in sharding.entries if entry[0] != axis], sharding.mesh)
    _set_attribute(function, attribute_name, index, "spmd.sharding", ShardingAttr(remaining))


def _drop_axis(module: ModuleOp, mesh_op: MeshOp, axis: str) -> None:
    """Delete an axis from the mesh, from all shardings, and from all collectives."""
    mesh = mesh_op.mesh
    axes = tuple(entry for entry in mesh.axes if entry[0] != axis)
    intra_node = mesh.intra_node and tuple(name for name in mesh.intra_node if name != axis)
    mesh_op.declared = MeshAttr(attrs.evolve(mesh, axes=axes, intra_node=intra_node))
    for function in _functions(module):
        for attribute_name, index in _signature(function):
            sharding = function_attrs(function, attribute_name, index).get("spmd.sharding")
            if isinstance(sharding, ShardingAttr):
                value = ShardingAttr(_without_axis(sharding.data, axis))
                _set_attribute(function, attribute_name, index, "spmd.sharding", value)
        for op in list(function.body.block.ops):
            if isinstance(op, ValueOp):
                _drop_axis_of_op(op, axis)


def _drop_axis_of_op(op: ValueOp, axis: str) -> None:
    """Delete an axis from the shardings of an op, and from the axes of a collective.

    A collective over no other axis is erased: its first operand replaces its first result.
    """
    for name in DECIDED:
        shardings = op.properties.get(name)
        if isinstance(shardings, ShardingsAttr):
            remaining = [sharding and _without_axis(sharding, axis) for sharding in shardings.data]
            op.properties[name] = ShardingsAttr(tuple(remaining))
    if not isinstance(op, Collective) or not op.spec.names_axes:
        return
    axes = tuple(name for name in op.axes if _root_axis(name) != axis)
    if axes:
        op.properties["arguments"] = ArgumentsAttr(tuple(sorted({**op.argument, "axes": axes}.items())))
    else:
        op.results[0].replace_all_uses_with(op.operands[0])
        Rewriter.erase_op(op)


def _without_axis(sharding: Sharding, axis: str) -> Sharding:
    """Return a sharding without an axis and its sub-axes."""
    return Sharding([entry for entry in sharding.entries if _root_axis(entry[0]) != axis], sharding.mesh)


def _root_axis(axis: str) -> str:
    """Return the mesh axis of a sub-axis, or `axis` itself."""
    return axis.partition("(")[0]
