"""The right side of a rewrite for one match: all graphs of ops that have its form and type-check."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import attrs
from xdsl.ir import SSAValue

from spmdir.analysis.type_check import match, rule_of
from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Shard, plugins
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.caches import is_version
from spmdir.dialects.collectives import Collective as CollectiveOp
from spmdir.dialects.value_op import ValueOp
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import collective
from spmdir.reshard.conditions import refinement
from spmdir.reshard.steps import Step, make_step, partial_placement
from spmdir.rewrites.matching import Match
from spmdir.rewrites.replacement import (
    Copy,
    NewCollective,
    NewWait,
    Node,
    meta_at,
    sharding_at,
)
from spmdir.rewrites.rewrite_ops import names_axes
from spmdir.rewrites.terms import Collective, Function, Term, Value
from spmdir.rules import OpRule, RuleSet, Strategy

Arguments = tuple[tuple[str, Any], ...]
"""The keyword arguments of a step, as (name, value) pairs."""


@attrs.frozen
class Rejection:
    """The reason why a right side, or a term in it, was not built. Its text is composed only on demand.

    Attributes:
        form: the text, with one `{}` for each of `arguments`.
    """

    form: str
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        return self.form.format(*map(_argument_text, self.arguments))


def _argument_text(argument: Any) -> str:
    """Return the text of a sequence of shardings, of an error, or of another value, for a Rejection."""
    if isinstance(argument, tuple):
        return ", ".join(f"<{sharding}>" for sharding in argument)
    return argument.message if isinstance(argument, ShardingError) else str(argument)


@attrs.define(slots=False)
class Builder:
    """Builds the right side of a rewrite.

    The sharding of `x` propagates outwards through a term. The sharding of the root's result propagates inwards. `f`,
    and ops that name no axes, connect both directions.

    For example, `slice f(all_gather x on A dim d, ...) on A dim e => f(x, ...)` matches a transpose. `x` has `<tp:
    S(0)>` and the result of the slice has `<tp: S(1)>`. The transpose has a strategy from `S(0)` to `S(1)`, so the
    right side is the transpose of `x`.

    Attributes:
        mesh: the mesh of the module.
        right: the right side.
        match: the match of the left side.
        rules: the rules of the ops.
        rejections: the reasons why terms were not built.
    """

    mesh: Mesh
    right: Term
    match: Match
    rules: RuleSet
    rejections: list[Rejection] = attrs.field(factory=list)

    def replacements(self, root: ValueOp) -> Iterator[Node]:
        """Yield the well-typed replacements of `root` whose result has the sharding of its result."""
        target = root.shardings[0]
        if target is None:
            self.reject("the result of {} has no sharding", root.name)
            return
        for node in self._build_to_target(self.right, self.match.value, target):
            if isinstance(root, CollectiveOp) and root.IS_START and not _is_start(node):
                self.reject("the result is not pending, but its user is a wait")
            else:
                yield node

    def reject(self, form: str, *arguments: Any) -> None:
        """Record the reason why a term was not built: the text `form`, with one `{}` for each of `arguments`."""
        self.rejections.append(Rejection(form, arguments))

    def _build_to_target(self, term: Term, value: SSAValue | None, target: Sharding) -> Iterator[Node]:
        """Yield the nodes that `term` builds whose result has the sharding `target`."""
        for node in self._build(term, value, target):
            if sharding_at(node) == target:
                yield node
            else:
                self.reject("the result is <{}>; expected <{}>", sharding_at(node), target)

    def _build(self, term: Term, value: SSAValue | None, target: Sharding | None) -> Iterator[Node]:
        """Yield the nodes that `term`, a part of the right side of a rewrite, can stand for in this program.

        There may be several, because the right side may leave open which dimension a collective gathers or scatters.

        Args:
            value: the value that x matches; None in a rewrite of an op f.
            target: the required sharding of the result, if it is known. The nodes may have another sharding, so the
                caller checks them.
        """
        if isinstance(term, Value):
            assert value is not None
            yield value
        elif isinstance(term, Function):
            yield from self._build_functions(term.operand, target)
        elif term.kind == "wait":
            for node in self._build(term.operand, value, target):
                yield NewWait(node) if _is_start(node) else node  # a term that moves nothing has no start to wait for
        elif not names_axes(term.kind):
            yield from self._to_target(term, value, target)
        else:
            axes = self._collective_axes(term)
            if not axes:  # the match binds no axes, so the collective moves nothing
                yield from self._build(term.operand, value, target)
            elif target is not None and term.operand.is_open:  # the target determines the sharding of the operand
                yield from self._backward(term, axes, value, target)
            else:
                yield from self._forward(term, axes, value)

    def _to_target(self, term: Collective, value: SSAValue | None, target: Sharding | None) -> Iterator[Node]:
        """Yield the collectives without named axes that reshard an operand of `term` to `target`.

        An operand that already has this sharding is yielded itself.
        """
        assert target is not None  # the parser rejects a right side without a target
        for operand in self._build(term.operand, value, None):
            if sharding_at(operand) == target:
                yield operand
            else:
                step = self._legal_step_or_none(
                    term.kind, sharding_at(operand), meta_at(operand).shape, (("target", target),)
                )
                if step is not None:
                    yield NewCollective(operand, step, term.is_start)

    def _forward(self, term: Collective, axes: tuple[str, ...], value: SSAValue | None) -> Iterator[Node]:
        """Yield the collectives on `axes` that are legal on an operand of `term`."""
        for operand in self._build(term.operand, value, None):
            meta = meta_at(operand)
            for arguments in self._argument_choices(term, axes, meta.rank):
                step = self._legal_step_or_none(term.kind, sharding_at(operand), meta.shape, arguments)
                if step is not None:
                    yield NewCollective(operand, step, term.is_start)

    def _backward(
        self, term: Collective, axes: tuple[str, ...], value: SSAValue | None, target: Sharding
    ) -> Iterator[Node]:
        """Yield the collectives on `axes` with a result in `target`, on operands in the sharding that this requires."""
        function = self.match.function
        if function is not None:
            meta = function.metas[0]
        else:
            meta = meta_at(value) if value is not None else None
        assert meta is not None
        for arguments in self._argument_choices(term, axes, meta.rank):
            source = _source_sharding(collective(term.kind), target, arguments, self.mesh)
            step = self._legal_step_or_none(term.kind, source, meta.shape, arguments)
            if step is not None and step.target == target:
                for operand in self._build(term.operand, value, source):
                    if sharding_at(operand) == step.source:
                        yield NewCollective(operand, step, term.is_start)

    def _build_functions(self, form: Term, target: Sharding | None) -> Iterator[Node]:
        """Yield copies of f on operands that its strategies allow.

        Each combination of strategies, one for each axis, requires placements of the operands. The first candidate with
        these placements is chosen for each operand: a node of the right side, or the old operand. A combination is
        skipped if an operand has no candidate, or if all operands are the old ones.

        Args:
            form: the term of the operands, as in `f(form, ...)`.
            target: the required sharding of the result; None if it is not known.
        """
        function, rule = self.match.function, self.rule
        assert isinstance(function, AtenOp)
        if rule is None:
            self.reject("f = {} has no rule", function.name)
            return
        strategies_by_axis: list[Sequence[Strategy]] = []
        for axis in self.axes:
            strategies = rule.strategies(self.mesh.sizes[axis], placements=self.plugins)
            if target is not None:
                placement = target.along(axis, self.mesh)
                strategies = [strategy for strategy in strategies if strategy.results[0] == placement]
            strategies_by_axis.append(strategies)
        old_operands, has_candidate = tuple(function.operands), False
        # For each operand of f, the value of x in it, or None if it does not match `form`. No collective may have a
        # version of a cache as its operand, so f keeps these operands.
        matched = [
            None if is_version(old) else value for value, old in zip(self.match.operands, old_operands, strict=True)
        ]
        options = [self._operand_options(form, value, old) for value, old in zip(matched, old_operands, strict=True)]
        for combination in itertools.product(*strategies_by_axis):  # one strategy for each axis
            first_choices: list[Node | None] = []
            for index, value in enumerate(matched):
                required = [strategy.operands[index] for strategy in combination]
                first_choices.append(next(self._choose_operands(options[index], form, value, required, target), None))
            operands = tuple([operand for operand in first_choices if operand is not None])
            if len(operands) < len(old_operands) or operands == old_operands:
                continue
            has_candidate = True
            new_operand = next(new for new, old in zip(operands, old_operands, strict=True) if new is not old)
            placements = [strategy.results[0] for strategy in combination]
            result = target or self._sharding_with(function.results[0], placements, sharding_at(new_operand))
            if result is None:
                continue
            shardings = tuple(map(sharding_at, operands))
            if _is_well_typed(rule, shardings, result, self.mesh):
                yield Copy(function, operands, result)
            else:
                self.reject("the rule of {} does not allow ({}) -> <{}>", function.name, shardings, result)
        if not has_candidate:
            result_text = "" if target is None else f" and gives <{target}>"
            axes = ", ".join(self.axes) or "none"
            self.reject("no strategy of {} has such operands on axis {}{}", function.name, axes, result_text)

    def _operand_options(
        self, form: Term, value: SSAValue | None, old: SSAValue
    ) -> list[tuple[Node, Sequence[Placement | None]]]:
        """Return the candidates for an operand of f, with their placements on the axes: new nodes, then `old`.

        There are new nodes if the operand matches `form` and the sharding of `form` follows only from its operand.
        """
        new = () if value is None or form.is_open else self._build(form, value, None)
        return [(node, [sharding_at(node).along(axis, self.mesh) for axis in self.axes]) for node in (*new, old)]

    def _choose_operands(
        self,
        options: list[tuple[Node, Sequence[Placement | None]]],
        form: Term,
        value: SSAValue | None,
        placements: Sequence[Placement | None],
        target: Sharding | None,
    ) -> Iterator[Node]:
        """Yield the candidates for an operand of f that have `placements` on the axes.

        Args:
            options: the result of `_operand_options` for the operand.
            value: the value of x in the operand; None if the operand does not match.
            target: the sharding of the result of f. An open form takes the nesting order of axes from it.
        """
        if value is not None and form.is_open and target is not None:
            sharding = self._sharding_with(value, placements, target)
            if sharding is not None:
                yield from self._build_to_target(form, value, sharding)
        yield from (node for node, sharding in options if sharding == placements)

    def _sharding_with(
        self, value: SSAValue, new_placements: Sequence[Placement | None], order: Sharding
    ) -> Sharding | None:
        """Return the sharding of `value` with new placements on the axes, nested as in `order`; None if invalid."""
        sharding = sharding_at(value)
        placements = dict(sharding.entries)
        for axis, placement in zip(self.axes, new_placements, strict=True):
            if placement is not None:
                placements[axis] = placement
        axes = dict.fromkeys([*(axis for axis, _ in order.entries), *placements])
        return _sharding([(axis, placements[axis]) for axis in axes if axis in placements], sharding.mesh)

    @cached_property
    def rule(self) -> OpRule | None:
        """Return the rule of f; None if it has none."""
        function = self.match.function
        return rule_of(function, self.rules) if isinstance(function, AtenOp) else None

    @cached_property
    def plugins(self) -> tuple[Placement, ...]:
        """Return the plug-in placements in the shardings of the match."""
        values = (value for op in self.match.ops for value in (*op.operands, *op.results))
        return plugins(placement for value in values for _, placement in sharding_at(value).entries)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Return the axes on which strategies of f are chosen. On other axes, f keeps its placements.

        These are the axes that matched collectives without named axes change. If there are none, it is the first axis
        that a variable of the left side binds. The type check covers all axes together.
        """
        converted_axes = [
            axis
            for op in self.match.ops
            if isinstance(op, CollectiveOp) and not op.spec.names_axes
            for axis in op.step(self.mesh).axes
        ]
        if converted_axes:
            return tuple(dict.fromkeys(converted_axes))
        return next((axes[:1] for name, axes in self.match.bindings.items() if name.isupper() and axes), ())

    def _collective_axes(self, term: Collective) -> tuple[str, ...]:
        """Return the axes of a collective: those that the match binds to its variables."""
        return self.mesh.merge(axis for name, _ in term.axes for axis in self.match.bindings[name])

    def _argument_choices(self, term: Collective, axes: tuple[str, ...], rank: int) -> Iterator[Arguments]:
        """Return the possible arguments of `term`. A dimension that the left side does not bind takes all values."""
        bindings, choices = self.match.bindings, [(("axes", axes),)]
        for name, variable in term.variables:
            values = [bindings[variable]] if variable in bindings else range(rank)
            choices = [(*choice, (name, value)) for choice in choices for value in values]
        return iter(choices)

    def _legal_step_or_none(
        self, kind: str, source: Sharding, shape: tuple[int, ...], arguments: Arguments
    ) -> Step | None:
        """Return a step; None, with a recorded reason, if it is not legal."""
        step = _legal_step(collective(kind), source, self.mesh, shape, arguments)
        if isinstance(step, Step):
            return step
        self.reject("{}", step)
        return None


def _is_start(node: Node) -> bool:
    return isinstance(node, NewCollective) and node.is_start


def _sharding(entries: Iterable[tuple[str, Placement]], mesh: str) -> Sharding | None:
    """Return a sharding; None if an axis or sub-axis would have two placements."""
    try:
        return Sharding(entries, mesh)
    except ShardingError:
        return None


@lru_cache(maxsize=65536)
def _legal_step(
    spec: CollectiveSpec, source: Sharding, mesh: Mesh, shape: tuple[int, ...], arguments: Arguments
) -> Step | ShardingError:
    """Return the step, or the error if it is not legal."""
    try:
        return make_step(spec.name, source, mesh, shape, **dict(arguments))
    except ShardingError as error:
        return error


@lru_cache(maxsize=65536)
def _source_sharding(spec: CollectiveSpec, target: Sharding, arguments: Arguments, mesh: Mesh) -> Sharding:
    """Return the sharding from which a step of `spec` leads to `target`. If there is none, the result is meaningless.

    The caller checks the step. For example, `all_gather` on [tp] dim 0 leads to <> from <tp: S(0)>.
    """
    argument = dict(arguments)
    axes = argument["axes"]
    try:
        fine = refinement(mesh, target, axes)
    except ShardingError:
        return target
    parts = [part for axis in axes for part in fine.parts(axis)]
    entries = [(axis, placement) for axis, placement in target.refined(fine).entries if axis not in parts]
    trait = spec.before
    if trait == "shard" and "dim" in argument:
        entries += [(axis, Shard(argument["dim"])) for axis in parts]
    if trait == "partial" and "reduction" in argument:
        entries += [(axis, partial_placement(argument["reduction"])) for axis in parts]
    return Sharding(entries, target.mesh).merged(mesh)


@lru_cache(maxsize=65536)
def _is_well_typed(rule: OpRule, operands: tuple[Sharding, ...], result: Sharding, mesh: Mesh) -> bool:
    """Return whether the rule allows the op without an expansion. An earlier pass expands ops."""
    try:
        choice = match(rule, operands, [result], mesh)
    except ShardingError:
        return False
    return all(strategy.rewrite != "expand" for strategy in choice.values())
