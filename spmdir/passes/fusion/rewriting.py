"""The engine that applies rewrites of collectives: match, type, weigh, build.

Every rewrite gives the same global value if both sides are well typed, because a collective changes how a value is
held and not the value, and a local op computes the same value under every strategy of its rule. So the engine types
what it builds, with the transitions of the planner and the rules of the ops, and trusts no rewrite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any

import attrs
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.core.call import TensorMeta
from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.standard import Shard
from spmdir.core.sharding import Sharding
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of, shardings_attr
from spmdir.dialects.collectives import Collective as CollectiveOp
from spmdir.dialects.collectives import build_collective
from spmdir.dialects.names import Names, take_name
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.passes.fusion.rewrite_text import Apply, Collective, Rewrite, Term, Value
from spmdir.passes.type_check.type_check import match, rule_of
from spmdir.reshard.collectives import collective
from spmdir.reshard.conditions import refinement
from spmdir.reshard.cost import local_bytes, step_sizes, step_traffic
from spmdir.reshard.steps import Step, make_step, pending_placement
from spmdir.rules import OpRule, RuleSet

PROPERTIES: dict[str, Callable[[AtenOp, OpRule], bool]] = {
    "is cheap": lambda op, rule: not rule.flops,
    "keeps dtype": lambda op, rule: len({meta.dtype for meta in (*op.call().operands, *op.metas) if meta}) == 1,
}
"""What a rewrite may ask of f: that it has no contraction to repeat, or that it changes no element type."""

Bindings = Mapping[str, Any]
"""Variable → axes (upper case), dimension or reduction (lower case)."""

Cost = tuple[float, int, float, int]
"""Wire bytes a rank sends, collectives that send, bytes that are touched locally, ops."""

_FREE: Cost = (0.0, 0, 0.0, 0)


@attrs.frozen
class Move:
    """A collective to be made on an existing value or on another node."""

    operand: Node
    step: Step


@attrs.frozen
class Computed:
    """The local op `op` on other operands, its result held as `sharding`."""

    op: AtenOp
    operands: tuple[Node, ...]
    sharding: Sharding


Node = SSAValue | Move | Computed


@attrs.frozen
class Found:
    """One way in which a left side matches.

    Attributes:
        ops: the ops that it covers, outermost first.
        value: what x stands for, where there is no f.
        function: the op that f stands for.
        operands: what x stands for in each operand of f; None for those not of the form.
    """

    bindings: Bindings
    ops: tuple[ValueOp, ...]
    value: SSAValue | None = None
    function: AtenOp | None = None
    operands: tuple[SSAValue | None, ...] = ()


@attrs.frozen
class Engine:
    """Applies rewrites to the ops of one module.

    Attributes:
        mesh: the mesh of the module, whose types are global.
        rules: the rules of its ops.
        names: the names of its values.
    """

    mesh: Mesh
    rules: RuleSet
    names: Names

    def rewrite(self, op: ValueOp, rewrite: Rewrite) -> list[SSAValue]:
        """Replace `op` by the cheapest form that `rewrite` gives it, if that is cheaper.

        Returns: the values whose users changed; none if `op` stays.
        """
        best: tuple[Cost, Node, list[ValueOp]] | None = None
        for found in _match_op(rewrite.left, op, {}, ()):
            if any(found.bindings.get(a) == found.bindings.get(b) for a, b in rewrite.differ):
                continue
            for node in _Builder(self, rewrite, found).results(op):
                dying = _dying(found.ops, node)
                if found.function is not None and found.function not in dying:
                    continue
                made, gone = map(self._node_cost, _nodes(node)), map(self._op_cost, dying)
                change = _difference(self._sum(made), self._sum(gone))
                if change < _FREE and (best is None or change < best[0]):
                    best = change, node, dying
        return [] if best is None else _replace(op, *best[1:], self.names)

    def _op_cost(self, op: ValueOp) -> Cost:
        meta, sharding = op.metas[0], op.shardings[0]
        assert meta is not None and sharding is not None
        return (
            _step_cost(op.step(self.mesh), meta, self.mesh)
            if isinstance(op, CollectiveOp)
            else _touched(sharding, meta, self.mesh)
        )

    def _node_cost(self, node: Move | Computed) -> Cost:
        meta = _meta(node)
        if isinstance(node, Move):
            return _step_cost(node.step, meta, self.mesh)
        return _touched(node.sharding, meta, self.mesh)

    @staticmethod
    def _sum(costs: Iterable[Cost]) -> Cost:
        wire, sends, touched, ops = zip(_FREE, *costs, strict=True)
        return sum(wire), sum(sends), sum(touched), sum(ops)


@lru_cache(maxsize=65536)
def _step_cost(step: Step, meta: TensorMeta, mesh: Mesh) -> Cost:
    """Touched is the larger side where pieces along a dimension other than the first have to be packed."""
    traffic, itemsize = step_traffic(step, meta.dtype.itemsize, mesh)
    sizes = step_sizes(step, meta.shape, itemsize, mesh)
    if sizes.group == 1:
        return 0.0, 0, 0.0, 1
    packed = max(sizes.source, sizes.target) if sizes.dim or sizes.to_dim else 0.0
    return traffic.wire(sizes), int(traffic.crossing is not None), packed, 1


@lru_cache(maxsize=65536)
def _touched(sharding: Sharding, meta: TensorMeta, mesh: Mesh) -> Cost:
    return 0.0, 0, local_bytes(sharding, meta.shape, meta.dtype.itemsize, mesh), 1


def _difference(after: Cost, before: Cost) -> Cost:
    """after − before; wire bytes that differ by rounding alone are equal."""
    wire = after[0] - before[0]
    wire = wire if abs(wire) > 1e-9 * before[0] else 0.0
    return wire, after[1] - before[1], after[2] - before[2], after[3] - before[3]


def _match_op(term: Term, op: Operation, bindings: Bindings, ops: tuple[ValueOp, ...]) -> Iterator[Found]:
    if isinstance(term, Collective) and isinstance(op, CollectiveOp):
        for bound in _bind(term, op, bindings):
            yield from _match_value(term.operand, op.operands[0], bound, (*ops, op))
    elif isinstance(term, Apply) and isinstance(op, AtenOp) and _is_local_function(term.operand, op):
        yield from _match_function(term.operand, op, bindings, (*ops, op))


def _is_local_function(form: Term, op: AtenOp) -> bool:
    """Whether `op` has an operand that may be of `form`, has one result, and all about it is decided."""
    if not any(_may_match(form, value) for value in op.operands):  # which is rare, and cheap to ask
        return False
    values = (*op.operands, *op.results)
    decided = all(meta_of(value.type) is not None and sharding_of(value) is not None for value in values)
    return len(op.results) == 1 and op.needs is None and decided


def _may_match(term: Term, value: SSAValue) -> bool:
    return not isinstance(term, Collective) or getattr(value.owner, "name", None) == f"spmd.{term.kind}"


def _match_value(term: Term, value: SSAValue, bindings: Bindings, ops: tuple[ValueOp, ...]) -> Iterator[Found]:
    if isinstance(term, Value):
        yield Found(bindings, ops, value)
    elif isinstance(value.owner, Operation):
        yield from _match_op(term, value.owner, bindings, ops)


def _match_function(form: Term, op: AtenOp, bindings: Bindings, ops: tuple[ValueOp, ...]) -> Iterator[Found]:
    """Matches of `f(form, ...)`: one for each binding of axes and reductions that some operand gives."""
    own = {form.dim, form.to_dim} if isinstance(form, Collective) else set()
    forms = [list(_match_value(form, operand, bindings, ())) for operand in op.operands]
    shared: list[Bindings] = []
    for found in (found for matches in forms for found in matches):
        common = {name: value for name, value in found.bindings.items() if name not in own}
        if common not in shared:
            shared.append(common)
    for common in shared:
        chosen = [next((f for f in matches if common.items() <= f.bindings.items()), None) for matches in forms]
        inner = dict.fromkeys(inner for found in chosen if found for inner in found.ops)
        yield Found(common, (*ops, *inner), None, op, tuple(found and found.value for found in chosen))


def _bind(term: Collective, op: CollectiveOp, bindings: Bindings) -> Iterator[Bindings]:
    argument = op.argument
    if op.name != f"spmd.{term.kind}" or argument.get("asynchronous"):
        return
    bound = dict(bindings)
    for name, value in ((term.dim, "dim"), (term.to_dim, "to_dim"), (term.op, "op")):
        if name is not None and bound.setdefault(name, argument[value]) != argument[value]:
            return
    axes: Any = argument["axes"]
    # Rewrites name a dimension, by which S is meant.
    if not all(side[axis].splits for side in (op.source, op.target) if side for axis in axes):
        return
    yield from _bind_axes(term.axes, axes, not op.spec.orders_axes, bound)


def _bind_axes(
    pattern: tuple[tuple[str, bool], ...], axes: tuple[str, ...], unordered: bool, bindings: Bindings
) -> Iterator[Bindings]:
    """Every way to read `axes` as the lists of `pattern`, one after the other."""
    if not pattern:
        if not axes:
            yield bindings
        return
    (name, optional), rest = pattern[0], pattern[1:]
    if name not in bindings:
        for length in range(0 if optional else 1, len(axes) + 1):
            yield from _bind_axes(rest, axes[length:], unordered, {**bindings, name: axes[:length]})
        return
    known = bindings[name]
    if unordered and set(known) <= set(axes):
        yield from _bind_axes(rest, tuple(axis for axis in axes if axis not in known), unordered, bindings)
    elif axes[: len(known)] == known:
        yield from _bind_axes(rest, axes[len(known) :], unordered, bindings)


@attrs.define(slots=False)
class _Builder:
    """The well-typed right sides of one match."""

    engine: Engine
    rewrite: Rewrite
    found: Found

    def results(self, root: ValueOp) -> Iterator[Node]:
        """The nodes that may stand for the result of `root`."""
        target, term, value = root.shardings[0], self.rewrite.right, self.found.value
        if target is None:
            return
        if value is None:
            yield from self._giving(term, target)
        else:
            yield from (node for node in self._made(term, value) if _sharding(node) == target)

    @cached_property
    def rule(self) -> OpRule | None:
        """The rule of f, if f is what the rewrite asks for."""
        assert self.found.function is not None
        rule = rule_of(self.found.function, self.engine.rules)
        wanted = (PROPERTIES[name] for name in self.rewrite.properties)
        return rule if rule is not None and all(holds(self.found.function, rule) for holds in wanted) else None

    @cached_property
    def axis(self) -> str:
        """An axis that the rewrite is about."""
        return next(axes[0] for name, axes in self.found.bindings.items() if name.isupper() and axes)

    def _made(self, term: Term, value: SSAValue) -> Iterator[Node]:
        """What `term`, without f, makes of `value`."""
        if isinstance(term, Value):
            yield value
            return
        assert isinstance(term, Collective)
        axes = self._axes(term)
        for operand in self._made(term.operand, value):
            if not axes:
                yield operand
                continue
            for given in self._arguments(term, _meta(operand).rank):
                step = self._step(term.kind, _sharding(operand), _meta(operand), axes, given)
                if step is not None:
                    yield Move(operand, step)

    def _giving(self, term: Term, target: Sharding) -> Iterator[Node]:
        """What `term`, around f, makes so that the result is held as `target`."""
        if isinstance(term, Apply):
            yield from self._computed(term.operand, target)
            return
        assert isinstance(term, Collective) and self.found.function is not None
        axes, meta = self._axes(term), self.found.function.metas[0]
        assert meta is not None
        for given in self._arguments(term, meta.rank):
            before = _before(term.kind, target, axes, given, self.engine.mesh)
            step = self._step(term.kind, before, meta, axes, given)
            if step is not None and step.target == target:
                yield from (Move(operand, step) for operand in self._giving(term.operand, step.source))

    def _computed(self, form: Term, target: Sharding) -> Iterator[Node]:
        """f on operands of which some have the right side's form, as each of its strategies wants them."""
        rule, function = self.rule, self.found.function
        assert function is not None
        for row in rule.strategies(self.engine.mesh.sizes[self.axis]) if rule else ():
            if row.results[0] != target.along(self.axis, self.engine.mesh):
                continue
            operands: list[Node] = []
            for wanted, old, value in zip(row.operands, function.operands, self.found.operands, strict=True):
                options = [*(self._made(form, value) if value is not None else ()), old]
                held = ((node, _sharding(node).along(self.axis, self.engine.mesh)) for node in options)
                operands += [node for node, placed in held if placed == wanted][:1]
            if len(operands) == len(function.operands) and operands != list(function.operands):
                held = tuple(map(_sharding, operands))
                if _well_typed(rule, held, target, self.engine.mesh):  # type: ignore  # rows come from a rule
                    yield Computed(function, tuple(operands), target)

    def _axes(self, term: Collective) -> tuple[str, ...]:
        return self.engine.mesh.merge(axis for name, _ in term.axes for axis in self.found.bindings[name])

    def _arguments(self, term: Collective, rank: int) -> Iterator[dict[str, Any]]:
        """The arguments of `term`; a dimension that the left side does not bind can be any."""
        bindings, choices = self.found.bindings, [{}]
        for name, variable in (("dim", term.dim), ("to_dim", term.to_dim), ("op", term.op)):
            if variable is not None:
                values = [bindings[variable]] if variable in bindings else range(rank)
                choices = [{**choice, name: value} for choice in choices for value in values]
        yield from choices

    def _step(
        self, kind: str, source: Sharding, meta: TensorMeta, axes: tuple[str, ...], given: dict[str, Any]
    ) -> Step | None:
        return _legal_step(kind, source, self.engine.mesh, meta.shape, axes, tuple(given.items()))


@lru_cache(maxsize=65536)
def _legal_step(
    kind: str,
    source: Sharding,
    mesh: Mesh,
    shape: tuple[int, ...],
    axes: tuple[str, ...],
    given: tuple[tuple[str, Any], ...],
) -> Step | None:
    try:
        return make_step(kind, source, mesh, shape, axes=axes, **dict(given))
    except ShardingError:
        return None


def _before(kind: str, target: Sharding, axes: tuple[str, ...], given: dict[str, Any], mesh: Mesh) -> Sharding:
    """The sharding from which a step of `kind` gives `target`, if there is one."""
    try:
        fine = refinement(mesh, target, axes)
    except ShardingError:
        return target
    parts = [part for axis in axes for part in fine.parts(axis)]
    rest = [(axis, placement) for axis, placement in target.refined(fine).entries if axis not in parts]
    trait = collective(kind).before
    if trait == "shard":
        rest += [(axis, Shard(given["dim"])) for axis in parts]
    if trait == "partial":
        rest += [(axis, pending_placement(given["op"])) for axis in parts]
    return Sharding(rest, target.mesh).merged(mesh)


@lru_cache(maxsize=65536)
def _well_typed(rule: OpRule, operands: tuple[Sharding, ...], result: Sharding, mesh: Mesh) -> bool:
    """Whether the op may run as it is; strategies that need it replaced are those of an earlier pass."""
    try:
        choice = match(rule, operands, [result], mesh)
    except ShardingError:
        return False
    return all(strategy.rewrite != "expand" for strategy in choice.values())


def _sharding(node: Node) -> Sharding:
    if isinstance(node, SSAValue):
        sharding = sharding_of(node)
        assert sharding is not None
        return sharding
    return node.step.target if isinstance(node, Move) else node.sharding


def _meta(node: Node) -> TensorMeta:
    while isinstance(node, Move):
        node = node.operand
    meta = meta_of(node.type if isinstance(node, SSAValue) else node.op.results[0].type)
    assert meta is not None
    return meta


def _nodes(node: Node) -> list[Move | Computed]:
    """What has to be made for `node`, itself last; equal nodes are made once."""
    if isinstance(node, SSAValue):
        return []
    operands = (node.operand,) if isinstance(node, Move) else node.operands
    return list(dict.fromkeys([*(inner for operand in operands for inner in _nodes(operand)), node]))


def _dying(ops: tuple[ValueOp, ...], node: Node) -> list[ValueOp]:
    """Those of `ops`, outermost first, that nothing uses once `node` stands for the result of the first one."""
    kept = {leaf.owner for leaf in _leaves(node)}
    dying = [ops[0]]
    for op in ops[1:]:
        uses = (use for result in op.results for use in result.uses)
        if op not in dying and op not in kept and all(use.operation in dying for use in uses):
            dying.append(op)
    return dying


def _leaves(node: Node) -> Iterator[SSAValue]:
    """The existing values that `node` uses."""
    if isinstance(node, SSAValue):
        yield node
        return
    for operand in (node.operand,) if isinstance(node, Move) else node.operands:
        yield from _leaves(operand)


def _replace(root: ValueOp, node: Node, dying: list[ValueOp], names: Names) -> list[SSAValue]:
    """Put what `node` says in the place of `root`, and remove `root` and the ops that die with it.

    Returns: the values whose users changed.
    """
    made: dict[Node, SSAValue] = {}
    for new in _nodes(node):
        if isinstance(new, Move):
            op: Operation = build_collective(new.step, _value(made, new.operand), root.location)
        else:
            op = type(new.op).create(
                operands=[_value(made, operand) for operand in new.operands],
                result_types=new.op.result_types,
                properties={**new.op.properties, "sharding": shardings_attr((new.sharding,))},
                attributes=new.op.attributes,
                location=new.op.location,
            )
        Rewriter.insert_op(op, InsertPoint.before(root))
        made[new] = op.results[0]
        if isinstance(new, Computed) and new.op in dying:
            take_name(op.results[0], new.op.results[0])
        elif new is node and isinstance(root, CollectiveOp):
            take_name(op.results[0], root.results[0])
        else:
            source = new.op.results[0] if isinstance(new, Computed) else op.operands[0]
            names.give(op.results[0], source, op.name.split(".")[1])
    result = _value(made, node)
    root.results[0].replace_all_uses_with(result)
    gone = {value for op in dying for value in op.results}
    touched = [value for op in dying for value in op.operands if value not in gone]
    for op in dying:
        Rewriter.erase_op(op)
    return [*touched, *_leaves(node), *made.values(), result]


def _value(made: Mapping[Node, SSAValue], node: Node) -> SSAValue:
    return node if isinstance(node, SSAValue) else made[node]
