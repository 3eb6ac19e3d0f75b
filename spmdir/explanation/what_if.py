"""`what_if`: compare a decision with the decision under other annotations."""

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
from spmdir.dialects.reshard_ops import ConstraintOp, unresharded
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, sharding_of
from spmdir.explanation.decided_program import DecidedProgram
from spmdir.explanation.difference import Constrained, Difference, diff
from spmdir.explanation.selectors import matches, no_match_error, selected_module
from spmdir.explanation.undecided_program import PROGRAM, KeepsSource, resolve_program, undecided_copy
from spmdir.pipeline.pipeline import PARTITIONING, PIPELINE, Pipeline, parse_steps
from spmdir.pipeline.remaining_passes import resolve_names
from spmdir.reshard.plan_tree import Planner, plan_tree

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.dialects.func import FuncOp


_OPEN = parse_placement("?")


def changed_constraints(before: DecidedProgram, after: DecidedProgram) -> Iterator[Constrained]:
    """Yield the constraints of `after` that `before` does not have, or has with another sharding.

    Each has the planned steps and time of its reshard: none if the producer has the sharding already.
    """
    targets_before = {text_name(op.results[0]): op.target for op in _constraints(before)}
    root, problem = after.mesh.root or after.mesh, after.problem
    planner = Planner(root, problem.topology, problem.collectives)
    for op in _constraints(after):
        produced, for_users, meta = op.source, op.target, meta_of(op.results[0].type)
        if produced is None or for_users is None or meta is None:
            continue
        if targets_before.get(text_name(op.results[0])) == for_users:
            continue
        name = text_name(unresharded(op.operands[0]))
        if produced == for_users:
            yield Constrained(name, produced, for_users, (), 0.0)
            continue
        tree = plan_tree(meta, produced, (for_users,), planner)
        yield Constrained(name, produced, for_users, tuple(map(str, tree.steps.values())), tree.seconds)


def _constraints(program: DecidedProgram) -> Iterator[ConstraintOp]:
    """Yield the constraints of a decided program."""
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
    """Compare a program with the same program under other annotations. The program itself does not change.

    Args:
        module: a program before propagate, or a result of `parallelize` or `rank_programs`.
        shardings: name, module path or glob → a sharding for these values, on the axes that it lists. A module path
            selects the last value that the forward of the module produces.
        forbid: name, module path or glob → placements that are not allowed for these values.
        drop_annotations: names or globs of the arguments, constraints and ops whose annotations are dropped.
        pipeline: the pipeline whose propagate decides; if None that of `module`, else the standard one. If it does not
            partition the program, the standard passes do.

    Raises:
        SpmdirError: a name matches no value, or the program cannot be decided with the changes.

    Example:
        >>> print(spmdir.report.what_if(module, {"%x": "dp: S(1)"}))
    """
    original, pipeline = resolve_program(module, pipeline)
    module, pipeline = undecided_copy(original, pipeline)
    before = DecidedProgram(module, pipeline)
    changed = module.clone()
    function, mesh = ir.main_function(changed), ir.mesh(changed)
    all_names = {text_name(value) for value, _ in _values(function)}
    names = resolve_names(original, [*drop_annotations, *(shardings or {}), *(forbid or {})], all_names)
    for selector in drop_annotations:
        _drop_annotations(function, selector, names[selector], mesh)
    for selector, sharding in (shardings or {}).items():
        placements = _placements(sharding, mesh)
        for value in _last_values(function, names[selector], pipeline):
            _annotate(value, _override(sharding_of(value), placements, mesh.axis_names), mesh.axis_names)
    after = DecidedProgram(changed, pipeline)
    forbidden: list[tuple[str, str, Placement]] = []
    for selector, sharding in (forbid or {}).items():
        for value in _last_values(function, names[selector], pipeline):
            for axis, placement in _placements(sharding, mesh).items():
                forbidden.append((text_name(value), axis, placement))
    if forbidden:
        after.forbid(forbidden)
    if not any(step.name == "localize" for step in pipeline.steps):
        pipeline = pipeline.with_steps((*pipeline.through("propagate").steps, *parse_steps(PARTITIONING)))
    constraints = tuple(changed_constraints(before, after))
    return attrs.evolve(diff(before.module, after.module, pipeline), constraints=constraints)


def _drop_annotations(function: FuncOp, selector: str, resolved_selector: str, mesh: Mesh) -> None:
    """Drop the annotations of all values that a selector matches.

    Args:
        selector: as the user wrote it, for errors.
        resolved_selector: a selector of names in `function`.

    Raises:
        SpmdirError: the selector matches no annotated value.
    """
    selected = _select_values(function, resolved_selector)
    annotated = [value for value in selected if _is_annotated(value, mesh.axis_names)]
    if not annotated:
        raise SpmdirError(
            f"{shown(selector)} has no annotation to drop; expected an annotated argument, op or constraint"
        )
    for value in annotated:
        _annotate(value, None, mesh.axis_names)


def _select_values(function: FuncOp, selector: str) -> list[SSAValue]:
    """Return the values that a selector matches; raise SpmdirError if there are none."""
    selected = [value for value, places in _values(function) if matches(places, [text_name(value)], selector)]
    if not selected:
        raise no_match_error(selector, {text_name(value): places for value, places in _values(function)})
    return selected


def _values(function: FuncOp) -> Iterator[tuple[SSAValue, SourcePlaces]]:
    """Yield each argument and each tensor result, with the places in the source of the model that produce it."""
    for argument in function.args:
        yield argument, SourcePlaces()
    for op in function.body.block.ops:
        if isinstance(op, ValueOp):
            for value in op.results:
                if meta_of(value.type) is not None:
                    yield value, places_of(op.location)


def _last_values(function: FuncOp, selector: str, pipeline: Pipeline) -> list[SSAValue]:
    """Return the values that a selector such as `%h` or `%h*` matches.

    If it is a module path or a line, return the last value that each module or line produces. Values of the forward
    take precedence over those of other phases.
    """
    values = _select_values(function, selector)
    if selector.startswith("%"):
        return values
    phase_of = phases(function, memory_classes(function, pipeline.rules))
    last_of_module: dict[object, SSAValue] = {}  # module, argument, or result without a module → its last value
    for is_forward in (False, True):  # values of the forward replace those of other phases
        for value in values:
            if not isinstance(value, OpResult):
                last_of_module[value] = value
            elif (phase_of[value.op] == "forward") is is_forward:
                last_of_module[selected_module(places_of(value.op.location), selector) or value] = value
    return list(last_of_module.values())


def _placements(sharding_text: ShardingLike, mesh: Mesh) -> dict[str, Placement]:
    """Return axis → placement for each axis that `sharding_text` lists, including `R`; for a Sharding, for all axes."""
    sharding, axes = as_sharding(sharding_text, mesh), mesh.axis_names
    if isinstance(sharding_text, str):
        axes = [entry.partition(":")[0].strip() for entry in split_entries(sharding_text)]
    elif isinstance(sharding_text, Mapping):
        axes = list(sharding_text)
    return {axis: sharding[axis] for axis in axes}


def _override(annotation: Sharding | None, placements: Mapping[str, Placement], axes: Sequence[str]) -> Sharding:
    """Return `annotation` with `placements`. Other axes keep their placements; without an annotation, they are open."""
    current = dict(annotation.entries) if annotation is not None else dict.fromkeys(axes, _OPEN)
    others = [(axis, placement) for axis, placement in current.items() if axis not in placements]
    return Sharding([*placements.items(), *others])


def _is_annotated(value: SSAValue, axes: Sequence[str]) -> bool:
    """Return whether a value has a sharding that is not open on all axes."""
    sharding = sharding_of(value)
    return sharding is not None and not set(axes) <= set(sharding.open_axes)


def _annotate(value: SSAValue, sharding: Sharding | None, axes: Sequence[str]) -> None:
    """Replace the annotation of a value, or drop it if `sharding` is None.

    A new annotation of the result of an op becomes a constraint, which all users of the result then use.
    """
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
        results_with_shardings = zip(op.results, op.shardings, strict=True)
        op.set_shardings([None if result is value else existing for result, existing in results_with_shardings])
    else:
        constraint = ConstraintOp.build(value, sharding, op.location)
        Rewriter.insert_op(constraint, InsertPoint.after(op))
        value.replace_uses_with_if(constraint.results[0], lambda use: use.operation is not constraint)
