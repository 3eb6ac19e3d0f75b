"""`what_if`: a program decided with other annotations, beside what was decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr
from xdsl.ir import BlockArgument, OpResult, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.memory_classes import memory_classes
from spmdir.analysis.phases import phases
from spmdir.core.arguments import SHARDINGS, accepts, instance, many
from spmdir.core.brackets import split_entries
from spmdir.core.errors import SpmdirError, shown
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, parse_placement
from spmdir.core.placement.sharding import Sharding, ShardingLike, as_sharding
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of, sharding_attr
from spmdir.dialects.locations import SourcePlaces, places_of
from spmdir.dialects.names import text_name
from spmdir.dialects.reshard_ops import ConstraintOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, sharding_of
from spmdir.explanation.asked import PROGRAM, KeepsSource, asked_about, opened
from spmdir.explanation.decided import DecidedProgram
from spmdir.explanation.difference import Difference, diff
from spmdir.explanation.places import is_at, module_named, nothing_there
from spmdir.pipeline.finish import resolve_names
from spmdir.pipeline.pipeline import PARTITIONING, PIPELINE, Pipeline, parse_steps

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.dialects.func import FuncOp


from spmdir.dialects.reshard_ops import unresharded
from spmdir.explanation.difference import Constrained
from spmdir.reshard.plan_tree import Planner, plan_tree

_OPEN = parse_placement("?")


def other_constraints(before: DecidedProgram, after: DecidedProgram) -> Iterator[Constrained]:
    """Yield the constraints of a decided program that another does not have so."""
    known = {text_name(op.results[0]): op.target for op in _constraints(before)}
    root, problem = after.mesh.root or after.mesh, after.problem
    planner = Planner(root, problem.topology, problem.collectives)
    for op in _constraints(after):
        made, given, meta = op.source, op.target, meta_of(op.results[0].type)
        if made is None or given is None or meta is None or known.get(text_name(op.results[0])) == given:
            continue
        name = text_name(unresharded(op.operands[0]))
        if made == given:
            yield Constrained(name, made, given, (), 0.0)
            continue
        tree = plan_tree(meta, made, (given,), planner)
        yield Constrained(name, made, given, tuple(map(str, tree.steps.values())), tree.seconds)


def _constraints(program: DecidedProgram) -> Iterator[ConstraintOp]:
    return (op for op in ir.main_function(program.module).body.block.ops if isinstance(op, ConstraintOp))


@accepts(
    module=PROGRAM,
    shardings=SHARDINGS,
    forbid=SHARDINGS,
    drop_annotations=many(instance(str, expected=""), "a list of names or globs"),
    pipeline=PIPELINE,
)
def what_if(
    module: ModuleOp | KeepsSource,
    shardings: Mapping[str, ShardingLike] | None = None,
    *,
    forbid: Mapping[str, ShardingLike] | None = None,
    drop_annotations: Sequence[str] = (),
    pipeline: Pipeline | str | None = None,
) -> Difference:
    """Return what a program would be with other annotations, beside what it is; the program is left as it is.

    Args:
        module: as it is before propagate, or what `parallelize` or `rank_programs` returned.
        shardings: name, module path or glob → a sharding of what is there, for the axes that it lists; of a module,
            of the last value that its forward makes.
        forbid: the same → placements that are not allowed there.
        drop_annotations: what loses its annotation: names of arguments, constraints and ops, or globs.
        pipeline: whose propagate decides; if None the standard one, or that of `parallelize`. What partitions the
            program is the standard one's if it does not.

    Raises:
        SpmdirError: a name is that of nothing, or the program cannot be decided so.

    Example:
        >>> print(spmdir.report.what_if(module, {"%x": "dp: S(1)"}))
    """
    program, pipeline = asked_about(module, pipeline)
    module, pipeline = opened(program, pipeline)
    before = DecidedProgram(module, pipeline)
    changed = module.clone()
    function, mesh = ir.main_function(changed), ir.mesh(changed)
    known = {text_name(value) for value, _ in _values(function)}
    names = resolve_names(program, [*drop_annotations, *(shardings or {}), *(forbid or {})], known)
    for at in drop_annotations:
        annotated = [value for value in _named(function, names[at]) if _is_annotated(value, mesh.axis_names)]
        if not annotated:
            raise SpmdirError(f"nothing at {shown(at)} is annotated; expected an argument, op or constraint that is")
        for value in annotated:
            _annotate(value, None, mesh.axis_names)
    for at, given in (shardings or {}).items():
        asked = _placements(given, mesh)
        for value in _ends(function, names[at], pipeline):
            _annotate(value, _over(sharding_of(value), asked, mesh.axis_names), mesh.axis_names)
    after = DecidedProgram(changed, pipeline)
    if forbid:
        after.forbid(
            [
                (text_name(value), axis, placement)
                for at, given in forbid.items()
                for value in _ends(function, names[at], pipeline)
                for axis, placement in _placements(given, mesh).items()
            ]
        )
    if not any(step.name == "localize" for step in pipeline.steps):
        pipeline = pipeline.with_steps((*pipeline.through("propagate").steps, *parse_steps(PARTITIONING)))
    constraints = tuple(other_constraints(before, after))
    return attrs.evolve(diff(before.module, after.module, pipeline), constraints=constraints)


def _named(function: FuncOp, at: str) -> list[SSAValue]:
    found = [value for value, places in _values(function) if is_at(places, [text_name(value)], at)]
    if not found:
        raise nothing_there(at, {text_name(value): places for value, places in _values(function)})
    return found


def _values(function: FuncOp) -> Iterator[tuple[SSAValue, SourcePlaces]]:
    for argument in function.args:
        yield argument, SourcePlaces()
    for op in function.body.block.ops:
        if isinstance(op, ValueOp):
            for value in op.results:
                if meta_of(value.type) is not None:
                    yield value, places_of(op.location)


def _ends(function: FuncOp, at: str, pipeline: Pipeline) -> list[SSAValue]:
    """Return the values that `at` names, as `%h` or `%h*`; of modules and lines, the last that each makes, in the
    forward if it makes any there."""
    values = _named(function, at)
    if at.startswith("%"):
        return values
    told = phases(function, memory_classes(function, pipeline.rules))
    last: dict[object, SSAValue] = {}
    for is_forward in (False, True):
        for value in values:
            if not isinstance(value, OpResult):
                last[value] = value
            elif (told[value.op] == "forward") is is_forward:
                last[module_named(places_of(value.op.location), at) or value] = value
    return list(last.values())


def _placements(given: ShardingLike, mesh: Mesh) -> dict[str, Placement]:
    """Return axis → placement of the axes that are named, also of those that are to replicate."""
    sharding, named = as_sharding(given, mesh), mesh.axis_names
    if isinstance(given, str):
        named = [entry.partition(":")[0].strip() for entry in split_entries(given)]
    elif isinstance(given, Mapping):
        named = list(given)
    return {axis: sharding[axis] for axis in named}


def _over(found: Sharding | None, asked: Mapping[str, Placement], axes: Sequence[str]) -> Sharding:
    """Return an annotation with other placements on some axes; axes of neither are open."""
    own = dict(found.entries) if found is not None else dict.fromkeys(axes, _OPEN)
    return Sharding([*asked.items(), *((axis, placement) for axis, placement in own.items() if axis not in asked)])


def _is_annotated(value: SSAValue, axes: Sequence[str]) -> bool:
    sharding = sharding_of(value)
    return sharding is not None and not set(axes) <= set(sharding.open_axes)


def _annotate(value: SSAValue, sharding: Sharding | None, axes: Sequence[str]) -> None:
    """Give a value an annotation in the place of its own, or none; what an op makes gets a constraint."""
    everywhere_open = Sharding([(axis, _OPEN) for axis in axes])
    if isinstance(value, BlockArgument):
        function: Any = value.owner.parent_op()
        entries = [function_attrs(function, "arg_attrs", index) for index in range(len(function.args))]
        entries[value.index]["spmd.sharding"] = sharding_attr(sharding or everywhere_open)
        function.properties["arg_attrs"] = ArrayAttr([DictionaryAttr(entry) for entry in entries])
        return
    op: Any = value.owner
    if isinstance(op, ConstraintOp):
        op.set_shardings([sharding or everywhere_open])
    elif sharding is None:
        op.set_shardings(
            [None if result is value else own for result, own in zip(op.results, op.shardings, strict=True)]
        )
    else:
        constraint = ConstraintOp.build(value, sharding, op.location)
        Rewriter.insert_op(constraint, InsertPoint.after(op))
        value.replace_uses_with_if(constraint.results[0], lambda use: use.operation is not constraint)
