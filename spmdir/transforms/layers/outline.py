"""Outline the equal layers of a program into functions, and replace the layers by calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import attrs
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.memory_classes import memory_classes
from spmdir.analysis.phases import phases
from spmdir.core.errors import UnsupportedError
from spmdir.dialects import ir
from spmdir.dialects.attributes import ShapesAttr, sharding_attr
from spmdir.dialects.function_checks import GIVEN
from spmdir.dialects.layer_calls import LAYER
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import copy_name, keep_name, make_names_unique, name_of
from spmdir.dialects.stage import STAGE
from spmdir.dialects.values import function_attrs, sharding_of
from spmdir.rules import RuleSet
from spmdir.transforms.layers.layer_names import function_name
from spmdir.transforms.layers.segments import Segment, repeated_segments


def outline_layers(module: ModuleOp, rules: RuleSet) -> None:
    """Outline the equal layers of each function without calls.

    Args:
        rules: the rules of ops, for the phase of each layer.

    Raises:
        UnsupportedError: the function has `spmd.given`, whose names values of outlined layers lose; located.
    """
    for function in ir.functions(module):
        if any(isinstance(op, CallOp) for op in function.body.block.ops):
            continue
        names = {other.sym_name.data for other in ir.functions(module)}
        groups = layers_of(function, rules, names)
        if groups and GIVEN in function.attributes:
            raise UnsupportedError(
                f"the function has {GIVEN}, whose names would be lost in outlined layers; expected a program that was "
                "decided without origins: outline that program, and use this one for explanations",
                location_of(function),
            )
        for layers in groups:
            outputs = sorted({output for segment in layers.segments for output in segment.outputs()})
            new = function_of(layers.segments[0], outputs, layers.name, function)
            new.sym_visibility, new.attributes[LAYER] = StringAttr("private"), StringAttr(layers.text(0))
            Rewriter.insert_op(new, InsertPoint.before(function))
            for number, segment in enumerate(layers.segments):
                _replace_by_call(segment, layers.name, outputs, layers.text(number))


@attrs.frozen(eq=False)
class Layers:
    """Equal layers.

    Attributes:
        name: the name of their function.
        segments: the ops of each layer, in program order.
    """

    name: str
    segments: Sequence[Segment]

    def text(self, number: int) -> str:
        """Return the path of one layer, such as "model.layers.3"; "part.3" if the path is unknown."""
        layer = self.segments[number].layer
        return f"{layer[0]}{layer[1]}" if layer else f"part.{number}"


def layers_of(
    function: FuncOp, rules: RuleSet, used_names: Collection[str] = (), in_flight: bool = False
) -> list[Layers]:
    """Return groups of equal layers of `function`. Layers of equal ops but different shardings are separate groups.

    Args:
        used_names: names that the functions of layers must not have.
        in_flight: allow values in flight between layers. Such layers cannot be outlined.
    """
    groups, names, all_layers = repeated_segments(function, in_flight), set(used_names), list[Layers]()
    phase_of = phases(function, memory_classes(function, rules)) if groups else {}
    for group in groups:
        segments_of_form: dict[Hashable, list[Segment]] = {}
        for segment in group:
            segments_of_form.setdefault(segment.form, []).append(segment)
        most_common = max(segments_of_form.values(), key=len)
        for segments in segments_of_form.values():
            layer_number = None
            if segments is not most_common:
                numbers = [segment.layer[1] for segment in segments if segment.layer is not None]
                # Layers without names are numbered by their position in the group.
                layer_number = numbers[0] if numbers else group.index(segments[0])
            prefix = segments[0].layer[0] if segments[0].layer is not None else None
            name = function_name(prefix, layer_number, _phase(group, phase_of), names)
            names.add(name)
            all_layers.append(Layers(name, segments))
    return all_layers


def _phase(group: Sequence[Segment], phase_of: Mapping[Operation, str]) -> str:
    """Return the phase, such as "forward", of most ops of a group."""
    return Counter(phase_of[op] for segment in group for op in segment.ops).most_common(1)[0][0]


def function_of(segment: Segment, outputs: Sequence[tuple[int, int]], name: str, parent: FuncOp) -> FuncOp:
    """Return a new function with the ops of a segment. Its arguments are the inputs of the segment.

    Args:
        outputs: (index of an op, index of a result) of each value to return.
        parent: the function of the segment.
    """
    inputs, layer = segment.inputs(), "{}{}".format(*segment.layer) if segment.layer else ""
    block = Block(arg_types=[value.type for value in inputs])
    values: dict[SSAValue, SSAValue] = dict(zip(inputs, block.args, strict=True))
    for op in segment.ops:
        new = op.clone(values)
        new.location = op.location
        block.add_op(new)
    for old, new in values.items():
        hint = name_of(old)
        keep_name(new, _remove_layer(hint, layer)) if hint else copy_name(new, old)
    returned = [values[segment.ops[place].results[index]] for place, index in outputs]
    block.add_op(ReturnOp(*returned))
    make_names_unique(block)
    function = FuncOp(
        name,
        ([value.type for value in block.args], [value.type for value in returned]),
        Region(block),
        arg_attrs=_array_of(map(_value_attrs, inputs)),
        res_attrs=_array_of(_result_attrs(segment.ops[place].results[index]) for place, index in outputs),
    )
    function.location = segment.ops[0].location
    if STAGE in parent.attributes:
        function.attributes[STAGE] = parent.attributes[STAGE]
    return function


def _remove_layer(name: str, layer: str) -> str:
    """Return a name without the layer in it, such as `exp_avg.w` for `exp_avg.layers.0.w`."""
    # Dots on both sides make sure that the layer matches whole components of the name.
    before, dot, after = f".{name}".partition(f".{layer}.")
    return f"{before}.{after}".strip(".") if layer and dot else name


def _replace_by_call(segment: Segment, name: str, outputs: Sequence[tuple[int, int]], layer: str) -> None:
    """Replace a segment by a call of the function `name`.

    Args:
        outputs: as for `function_of`.
        layer: the name of the layer, for the attribute of the call.
    """
    first_op, results = segment.ops[0], [segment.ops[place].results[index] for place, index in outputs]
    call = CallOp(name, segment.inputs(), [value.type for value in results])
    call.attributes[LAYER] = StringAttr(layer)
    call.location = first_op.location
    Rewriter.insert_op(call, InsertPoint.before(first_op))
    for old, new in zip(results, call.results, strict=True):
        copy_name(new, old)
        old.replace_all_uses_with(new)
    for op in reversed(segment.ops):
        Rewriter.erase_op(op)


def _value_attrs(value: SSAValue) -> Mapping[str, Attribute]:
    """Return the attributes of an argument that receives `value`."""
    if isinstance(value, BlockArgument):
        attributes = function_attrs(value.owner.parent_op(), "arg_attrs", value.index)
        return {key: attributes[key] for key in ("spmd.sharding", "spmd.of") if key in attributes}
    assert isinstance(value, OpResult)
    argument_attributes, of = dict(_result_attrs(value)), value.op.properties.get("of")
    if isinstance(of, ShapesAttr) and of.data[value.index] is not None:
        argument_attributes["spmd.of"] = ShapesAttr((of.data[value.index],))
    return argument_attributes


def _result_attrs(value: SSAValue) -> Mapping[str, Attribute]:
    """Return the attributes of a result that returns `value`."""
    sharding = sharding_of(value)
    return {} if sharding is None else {"spmd.sharding": sharding_attr(sharding)}


def _array_of(attrs: Iterable[Mapping[str, Any]]) -> ArrayAttr[DictionaryAttr]:
    """Return the attributes of all arguments or results as one attribute."""
    return ArrayAttr(map(DictionaryAttr, attrs))  # type: ignore[arg-type]
