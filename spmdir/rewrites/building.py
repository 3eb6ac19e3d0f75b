"""The right side of a rewrite for one match: every graph of ops that has its form and type-checks."""

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
from spmdir.dialects.collectives import Collective as CollectiveOp
from spmdir.dialects.value_op import ValueOp
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import collective
from spmdir.reshard.conditions import refinement
from spmdir.reshard.steps import Step, make_step, partial_placement
from spmdir.rewrites.clauses import names_axes
from spmdir.rewrites.matching import Match
from spmdir.rewrites.replacement import (
    Copy,
    NewCollective,
    NewWait,
    Node,
    meta_at,
    sharding_at,
)
from spmdir.rewrites.terms import Collective, Function, Term, Value
from spmdir.rules import OpRule, RuleSet, Strategy

Arguments = tuple[tuple[str, Any], ...]
"""(Name, value) pairs: the keyword arguments of a step."""


@attrs.frozen
class Rejection:
    """Why something was not built; its text is put together only if somebody asks."""

    form: str
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        return self.form.format(*map(_shown, self.arguments))


def _shown(argument: Any) -> str:
    if isinstance(argument, tuple):
        return ", ".join(f"<{sharding}>" for sharding in argument)
    return argument.message if isinstance(argument, ShardingError) else str(argument)


@attrs.define(slots=False)
class Builder:
    """Builds the right side of a rewrite.

    Shardings go through a term from the inside, where `x` has one, or from the outside, where the result of the root
    has one: those of `f`, and of ops that name no axes, are what both sides ask for.

    Attributes:
        rules: the rules of the ops.
        rejections: why forms were not built.
    """

    mesh: Mesh
    right: Term
    found: Match
    rules: RuleSet
    rejections: list[Rejection] = attrs.field(factory=list)

    def replacements(self, root: ValueOp) -> Iterator[Node]:
        """Return what may replace `root`: well typed, the result in the sharding that it has."""
        target = root.shardings[0]
        if target is None:
            self.reject("the result of {} has no sharding", root.name)
            return
        for node in self._fitting(self.right, self.found.value, target):
            if isinstance(root, CollectiveOp) and root.IS_START and not _is_start(node):
                self.reject("the result would not be pending, but its user waits for it")
            else:
                yield node

    def reject(self, form: str, *arguments: Any) -> None:
        """Note why a form was not built."""
        self.rejections.append(Rejection(form, arguments))

    def _fitting(self, term: Term, value: SSAValue | None, target: Sharding) -> Iterator[Node]:
        for node in self._build(term, value, target):
            if sharding_at(node) == target:
                yield node
            else:
                self.reject("the result would be <{}>; it has to stay <{}>", sharding_at(node), target)

    def _build(self, term: Term, value: SSAValue | None, target: Sharding | None) -> Iterator[Node]:
        """Return what `term` makes of `value` or of f; `target` is the sharding to aim at, if known."""
        if isinstance(term, Value):
            assert value is not None
            yield value
        elif isinstance(term, Function):
            yield from self._functions(term.operand, target)
        elif term.kind == "wait":
            for node in self._build(term.operand, value, target):
                yield NewWait(node) if _is_start(node) else node  # where nothing moves there is nothing to wait for
        elif not names_axes(term.kind):
            yield from self._to_target(term, value, target)
        else:
            axes = self._axes(term)
            if not axes:
                yield from self._build(term.operand, value, target)
            elif target is not None and term.operand.is_open:
                yield from self._backward(term, axes, value, target)
            else:
                yield from self._forward(term, axes, value)

    def _to_target(self, term: Collective, value: SSAValue | None, target: Sharding | None) -> Iterator[Node]:
        """Return the collectives that take what is inside `term` straight to `target`."""
        assert target is not None  # a right side in which nothing says it is an error where it is read
        for operand in self._build(term.operand, value, None):
            if sharding_at(operand) == target:
                yield operand
            else:
                step = self._step(term.kind, sharding_at(operand), meta_at(operand).shape, (("target", target),))
                if step is not None:
                    yield NewCollective(operand, step, term.is_start)

    def _forward(self, term: Collective, axes: tuple[str, ...], value: SSAValue | None) -> Iterator[Node]:
        for operand in self._build(term.operand, value, None):
            meta = meta_at(operand)
            for given in self._arguments(term, axes, meta.rank):
                step = self._step(term.kind, sharding_at(operand), meta.shape, given)
                if step is not None:
                    yield NewCollective(operand, step, term.is_start)

    def _backward(
        self, term: Collective, axes: tuple[str, ...], value: SSAValue | None, target: Sharding
    ) -> Iterator[Node]:
        """Return what `term` makes so that its result is in `target`."""
        function = self.found.function
        meta = function.metas[0] if function else meta_at(value) if value else None
        assert meta is not None
        for given in self._arguments(term, axes, meta.rank):
            before = _before(collective(term.kind), target, given, self.mesh)
            step = self._step(term.kind, before, meta.shape, given)
            if step is not None and step.target == target:
                for operand in self._build(term.operand, value, before):
                    if sharding_at(operand) == step.source:
                        yield NewCollective(operand, step, term.is_start)

    def _functions(self, form: Term, target: Sharding | None) -> Iterator[Node]:
        """Return f on operands of which some have the right side's form, as each strategy of its rule wants them."""
        function, rule = self.found.function, self.rule
        assert isinstance(function, AtenOp)
        if rule is None:
            self.reject("f = {} has no rule", function.name)
            return
        strategies: list[Sequence[Strategy]] = []
        for axis in self.axes:
            found = rule.strategies(self.mesh.sizes[axis], placements=self.plugins)
            if target is not None:
                placement = target.along(axis, self.mesh)
                found = [strategy for strategy in found if strategy.results[0] == placement]
            strategies.append(found)
        old, tried = tuple(function.operands), False
        options = [self._options(form, *of) for of in zip(self.found.operands, old, strict=True)]
        for chosen in itertools.product(*strategies):
            operands: tuple[Node, ...] = ()
            for index, value in enumerate(self.found.operands):
                wanted = [strategy.operands[index] for strategy in chosen]
                operands += tuple(itertools.islice(self._operands(options[index], form, value, wanted, target), 1))
            if len(operands) < len(old) or operands == old:
                continue
            tried = True
            moved = next(new for new, was in zip(operands, old, strict=True) if new is not was)
            placements = [strategy.results[0] for strategy in chosen]
            result = target or self._placed(function.results[0], placements, sharding_at(moved))
            if result is None:
                continue
            shardings = tuple(map(sharding_at, operands))
            if _well_typed(rule, shardings, result, self.mesh):
                yield Copy(function, operands, result)
            else:
                self.reject("{}({}) -> <{}> is not well typed by its rule", function.name, shardings, result)
        if not tried:
            gives = "" if target is None else f" and gives <{target}>"
            axes = ", ".join(self.axes) or "none"
            self.reject("no strategy of {} has such operands on axis {}{}", function.name, axes, gives)

    def _options(
        self, form: Term, value: SSAValue | None, old: SSAValue
    ) -> list[tuple[Node, Sequence[Placement | None]]]:
        """Return what an operand of f may be, of the form or as it is, with its placement along each axis."""
        made = () if value is None or form.is_open else self._build(form, value, None)
        return [(node, [sharding_at(node).along(axis, self.mesh) for axis in self.axes]) for node in (*made, old)]

    def _operands(
        self,
        options: list[tuple[Node, Sequence[Placement | None]]],
        form: Term,
        value: SSAValue | None,
        wanted: Sequence[Placement | None],
        target: Sharding | None,
    ) -> Iterator[Node]:
        """Return what may be an operand of f whose result is in `target`, placed as `wanted` along each axis."""
        if value is not None and form.is_open and target is not None:
            placed = self._placed(value, wanted, target)
            yield from self._fitting(form, value, placed) if placed is not None else ()
        yield from (node for node, placed in options if placed == wanted)

    def _placed(self, value: SSAValue, wanted: Sequence[Placement | None], order: Sharding) -> Sharding | None:
        """Return the sharding of `value` with axes placed as `wanted`, nested as in `order`; None if none is."""
        sharding = sharding_at(value)
        placements = dict(sharding.entries)
        placements.update((a, p) for a, p in zip(self.axes, wanted, strict=True) if p is not None)
        axes = dict.fromkeys([*(axis for axis, _ in order.entries), *placements])
        return _sharding([(axis, placements[axis]) for axis in axes if axis in placements], sharding.mesh)

    @cached_property
    def rule(self) -> OpRule | None:
        """Return the rule of f; None if it has none."""
        function = self.found.function
        return rule_of(function, self.rules) if isinstance(function, AtenOp) else None

    @cached_property
    def plugins(self) -> tuple[Placement, ...]:
        """Return the placements of plug-ins that the values of the match have."""
        values = (value for op in self.found.ops for value in (*op.operands, *op.results))
        return plugins(placement for value in values for _, placement in sharding_at(value).entries)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Return the axes on which strategies of f are chosen; the type check looks at all axes together."""
        moved = [
            axis
            for op in self.found.ops
            if isinstance(op, CollectiveOp) and not op.spec.names_axes
            for axis in op.step(self.mesh).axes
        ]
        if moved:
            return tuple(dict.fromkeys(moved))
        return next((axes[:1] for name, axes in self.found.bindings.items() if name.isupper() and axes), ())

    def _axes(self, term: Collective) -> tuple[str, ...]:
        return self.mesh.merge(axis for name, _ in term.axes for axis in self.found.bindings[name])

    def _arguments(self, term: Collective, axes: tuple[str, ...], rank: int) -> Iterator[Arguments]:
        """Return the arguments of `term`; a dimension that the left side does not bind can be any."""
        bindings, choices = self.found.bindings, [(("axes", axes),)]
        for name, variable in term.variables:
            values = [bindings[variable]] if variable in bindings else range(rank)
            choices = [(*choice, (name, value)) for choice in choices for value in values]
        return iter(choices)

    def _step(self, kind: str, source: Sharding, shape: tuple[int, ...], given: Arguments) -> Step | None:
        step = _legal_step(collective(kind), source, self.mesh, shape, given)
        if isinstance(step, Step):
            return step
        self.reject("{}", step)
        return None


def _is_start(node: Node) -> bool:
    return isinstance(node, NewCollective) and node.is_start


def _sharding(entries: Iterable[tuple[str, Placement]], mesh: str) -> Sharding | None:
    """Return a sharding; None if an axis, or a part of one, would be placed twice."""
    try:
        return Sharding(entries, mesh)
    except ShardingError:
        return None


@lru_cache(maxsize=65536)
def _legal_step(
    spec: CollectiveSpec, source: Sharding, mesh: Mesh, shape: tuple[int, ...], given: Arguments
) -> Step | ShardingError:
    """Return the step, or the error that says why it is not legal."""
    try:
        return make_step(spec.name, source, mesh, shape, **dict(given))
    except ShardingError as error:
        return error


@lru_cache(maxsize=65536)
def _before(spec: CollectiveSpec, target: Sharding, given: Arguments, mesh: Mesh) -> Sharding:
    """Return the sharding from which a step of `spec` gives `target`, if there is one."""
    argument = dict(given)
    axes = argument["axes"]
    try:
        fine = refinement(mesh, target, axes)
    except ShardingError:
        return target
    parts = [part for axis in axes for part in fine.parts(axis)]
    rest = [(axis, placement) for axis, placement in target.refined(fine).entries if axis not in parts]
    trait = spec.before
    if trait == "shard" and "dim" in argument:
        rest += [(axis, Shard(argument["dim"])) for axis in parts]
    if trait == "partial" and "reduction" in argument:
        rest += [(axis, partial_placement(argument["reduction"])) for axis in parts]
    return Sharding(rest, target.mesh).merged(mesh)


@lru_cache(maxsize=65536)
def _well_typed(rule: OpRule, operands: tuple[Sharding, ...], result: Sharding, mesh: Mesh) -> bool:
    """Return whether the op may run as it is; strategies that need it expanded are those of an earlier pass."""
    try:
        choice = match(rule, operands, [result], mesh)
    except ShardingError:
        return False
    return all(strategy.rewrite != "expand" for strategy in choice.values())
