"""Writes a search result into the IR: shardings with the nesting order of their axes, and what operands need.

The search places each axis by itself. Where several axes divide one dimension, an op keeps the order in which
its largest operand already nests them; axes that join are innermost, as every collective adds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue

from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of, sharding_attr, shardings_attr
from spmdir.dialects.spmd import function_attrs
from spmdir.dialects.value_op import ValueOp
from spmdir.mesh import Mesh
from spmdir.placement import Placement
from spmdir.planner.problem import Row
from spmdir.sharding import Sharding

Maker = SSAValue | ValueOp | int
"""What a node of the search stands for: a function argument, an op, or a function result by index."""


def annotate(function: FuncOp, mesh: Mesh, makers: Sequence[Maker], rows: Mapping[str, Sequence[Row]]) -> None:
    """Give every value of `function` its sharding, and every op the shardings it needs its operands in.

    Args:
        makers: what each node of the search stands for.
        rows: axis → the row of each node.
    """
    shardings: dict[SSAValue, Sharding] = {}
    outputs = list(ir.terminator(function).operands)
    wanted: dict[int, Sharding] = {}
    for node, maker in enumerate(makers):
        chosen = {axis: rows[axis][node] for axis in mesh.axis_names}
        if isinstance(maker, int):
            wanted[maker] = _assemble(
                mesh,
                chosen,
                "operands",
                0,
                _order(mesh, chosen, [shardings[outputs[maker]]], [_given(function, "res_attrs", maker)]),
            )
        elif isinstance(maker, ValueOp):
            _annotate_op(maker, mesh, chosen, shardings)
        else:
            given = _given(function, "arg_attrs", maker.index)  # type: ignore  # a block argument
            shardings[maker] = _assemble(mesh, chosen, "results", 0, _order(mesh, chosen, [], [given]))
    arguments = {index: shardings[argument] for index, argument in enumerate(function.args)}
    _write(function, "arg_attrs", len(function.args), arguments)
    _write(function, "res_attrs", len(outputs), wanted)


def _annotate_op(op: ValueOp, mesh: Mesh, chosen: Mapping[str, Row], shardings: dict[SSAValue, Sharding]) -> None:
    held = [shardings[operand] for operand in op.operands]
    by_size = sorted(range(len(held)), key=lambda i: -_bytes(op.operands[i]))
    order = _order(mesh, chosen, [held[i] for i in by_size], op.shardings)
    needed = [_assemble(mesh, chosen, "operands", index, order) for index in range(len(held))]
    results = [_assemble(mesh, chosen, "results", index, order) for index in range(len(op.results))]
    shardings.update(zip(op.results, results, strict=True))
    op.set_shardings(results)
    needs = tuple(None if need == has else need for need, has in zip(needed, held, strict=True))
    if any(need is not None for need in needs):
        op.properties["needs"] = shardings_attr(needs)
    else:
        op.properties.pop("needs", None)


def _bytes(value: SSAValue) -> int:
    meta = meta_of(value.type)
    return meta.bytes if meta else 0


def _order(
    mesh: Mesh, chosen: Mapping[str, Row], held: Iterable[Sharding], given: Iterable[Sharding | None]
) -> tuple[str, ...]:
    """The mesh axes in the order in which this op nests them: as given, else as held, else as in the mesh."""
    order: list[str] = []
    for sharding in (*given, *held):
        if sharding is None:
            continue
        for axis, placement in sharding.entries:
            if placement.trait == "shard" and chosen[axis].factor is not None and axis not in order:
                order.append(axis)
    return (*order, *(axis for axis in mesh.axis_names if axis not in order))


def _assemble(mesh: Mesh, chosen: Mapping[str, Row], which: str, index: int, order: Sequence[str]) -> Sharding:
    entries: list[tuple[str, Placement]] = [(axis, getattr(chosen[axis], which)[index]) for axis in order]
    return Sharding(entries, mesh.name)


def _given(function: FuncOp, which: str, index: int) -> Sharding | None:
    attribute = function_attrs(function, which, index).get("spmd.sharding")
    return attribute.data if attribute else None


def _write(function: FuncOp, which: str, count: int, shardings: Mapping[int, Sharding]) -> None:
    entries: list[DictionaryAttr] = []
    for index in range(count):
        attrs: dict[str, Attribute] = function_attrs(function, which, index)
        attrs["spmd.sharding"] = sharding_attr(shardings[index])
        entries.append(DictionaryAttr(attrs))
    function.properties[which] = ArrayAttr(entries)
