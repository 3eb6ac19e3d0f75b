"""Functions of the equal layers of a program, with calls in their places."""

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
from spmdir.dialects.names import distinguish, keep_name, name_of, take_name
from spmdir.dialects.stage import STAGE
from spmdir.dialects.values import function_attrs, sharding_of
from spmdir.rules import RuleSet
from spmdir.transforms.layers.layer_names import function_name
from spmdir.transforms.layers.segments import Segment, repeated_segments


def outline_layers(module: ModuleOp, rules: RuleSet) -> None:
    """Make functions of the equal layers of each function that calls none; `rules` tell what is computed backward.

    Raises:
        UnsupportedError: the function keeps what was annotated, by names that values of layers do not keep; located.
    """
    for function in ir.functions(module):
        if any(isinstance(op, CallOp) for op in function.body.block.ops):
            continue
        taken = {one.sym_name.data for one in ir.functions(module)}
        found = layers_of(function, rules, taken)
        if found and GIVEN in function.attributes:
            raise UnsupportedError(
                f"outline-layers found {GIVEN}, whose names values of a layer do not keep; expected a program that was "
                "decided without origins: outline that one, and ask about this one",
                location_of(function),
            )
        for layers in found:
            outputs = sorted({output for segment in layers.segments for output in segment.outputs()})
            new = function_of(layers.segments[0], outputs, layers.name, function)
            new.sym_visibility, new.attributes[LAYER] = StringAttr("private"), StringAttr(layers.text(0))
            Rewriter.insert_op(new, InsertPoint.before(function))
            for number, segment in enumerate(layers.segments):
                _call(segment, layers.name, outputs, layers.text(number))


@attrs.frozen(eq=False)
class Layers:
    """Layers that are equal.

    Attributes:
        name: that of their function.
        segments: what each is, in program order.
    """

    name: str
    segments: Sequence[Segment]

    def text(self, number: int) -> str:
        """Return how text names one of them, as "model.layers.3"."""
        layer = self.segments[number].layer
        return f"{layer[0]}{layer[1]}" if layer else f"part.{number}"


def layers_of(function: FuncOp, rules: RuleSet, taken: Collection[str] = (), in_flight: bool = False) -> list[Layers]:
    """Return the layers that `function` has more than once, and those among them that differ.

    Args:
        taken: names that their functions do not have.
        in_flight: whether what is in flight may go across, so that they may be none.
    """
    groups, used, found = repeated_segments(function, in_flight), set(taken), list[Layers]()
    phase_of = phases(function, memory_classes(function, rules)) if groups else {}
    for group in groups:
        alike: dict[Hashable, list[Segment]] = {}
        for segment in group:
            alike.setdefault(segment.form, []).append(segment)
        usual = max(alike.values(), key=len)
        for segments in alike.values():
            numbers = [segment.layer[1] for segment in segments if segment.layer is not None]
            prefix = segments[0].layer[0] if segments[0].layer is not None else None
            which = None if segments is usual else numbers[0] if numbers else group.index(segments[0])
            name = function_name(prefix, which, _phase(group, phase_of), used)
            used.add(name)
            found.append(Layers(name, segments))
    return found


def _phase(group: Sequence[Segment], phase_of: Mapping[Operation, str]) -> str:
    """Return what most ops of a group are for."""
    return Counter(phase_of[op] for segment in group for op in segment.ops).most_common(1)[0][0]


def function_of(segment: Segment, outputs: Sequence[tuple[int, int]], name: str, around: FuncOp) -> FuncOp:
    """Return a function of a part of a function, which takes and gives what the part takes and gives.

    Args:
        outputs: (op, result) of what it returns.
        around: the function that the part is of.
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
        keep_name(new, _without(hint, layer)) if hint else take_name(new, old)
    returned = [values[segment.ops[place].results[index]] for place, index in outputs]
    block.add_op(ReturnOp(*returned))
    distinguish(block)
    made = FuncOp(
        name,
        ([value.type for value in block.args], [value.type for value in returned]),
        Region(block),
        arg_attrs=_stated(map(_value_attrs, inputs)),
        res_attrs=_stated(_result_attrs(segment.ops[place].results[index]) for place, index in outputs),
    )
    made.location = segment.ops[0].location
    if STAGE in around.attributes:
        made.attributes[STAGE] = around.attributes[STAGE]
    return made


def _without(name: str, layer: str) -> str:
    """Return a name without the layer in it, as `exp_avg.w` for `exp_avg.layers.0.w`."""
    before, dot, after = f".{name}".partition(f".{layer}.")
    return f"{before}.{after}".strip(".") if layer and dot else name


def _call(segment: Segment, name: str, outputs: Sequence[tuple[int, int]], layer: str) -> None:
    """Put a call in the place of a segment."""
    first, results = segment.ops[0], [segment.ops[place].results[index] for place, index in outputs]
    call = CallOp(name, segment.inputs(), [value.type for value in results])
    call.attributes[LAYER] = StringAttr(layer)
    call.location = first.location
    Rewriter.insert_op(call, InsertPoint.before(first))
    for old, new in zip(results, call.results, strict=True):
        take_name(new, old)
        old.replace_all_uses_with(new)
    for op in reversed(segment.ops):
        Rewriter.erase_op(op)


def _value_attrs(value: SSAValue) -> Mapping[str, Attribute]:
    """Return what an argument says of the value that it takes."""
    if isinstance(value, BlockArgument):
        said = function_attrs(value.owner.parent_op(), "arg_attrs", value.index)
        return {key: said[key] for key in ("spmd.sharding", "spmd.of") if key in said}
    assert isinstance(value, OpResult)
    found, of = dict(_result_attrs(value)), value.op.properties.get("of")
    if isinstance(of, ShapesAttr) and of.data[value.index] is not None:
        found["spmd.of"] = ShapesAttr((of.data[value.index],))
    return found


def _result_attrs(value: SSAValue) -> Mapping[str, Attribute]:
    sharding = sharding_of(value)
    return {} if sharding is None else {"spmd.sharding": sharding_attr(sharding)}


def _stated(attrs: Iterable[Mapping[str, Any]]) -> ArrayAttr[DictionaryAttr]:
    return ArrayAttr(map(DictionaryAttr, attrs))  # type: ignore[arg-type]
