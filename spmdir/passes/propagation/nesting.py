"""Writes a search result into the IR: shardings with the nesting order of their axes, and what operands need.

The search places each axis by itself. Where several axes shard one dimension, their order is free unless it
is annotated, or they shard several factors of it: then the axes of the major ones come first. Dimensions that ops
pass on undisturbed share one order; it is the one that most of the bytes around them prefer: axes that leave or
join there want to be innermost, shardings that were given want theirs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.standard import Placement
from spmdir.core.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of, sharding_attr, shardings_attr
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs
from spmdir.rules import OpRule
from spmdir.search.problem import NodeStrategy

Maker = SSAValue | ValueOp | int
"""The function argument, op or function result (by index) that a node of the search stands for."""

Key = tuple[object, object]
"""A sharded dimension: (value, dimension), or (node, factor or factors) for an op."""

Order = tuple[str, ...]


def annotate(
    function: FuncOp,
    mesh: Mesh,
    makers: Sequence[Maker],
    rules: Sequence[OpRule | None],
    strategies: Mapping[str, Sequence[NodeStrategy]],
) -> None:
    """Give every value of `function` its sharding, and every op the shardings it needs its operands in.

    Args:
        mesh: that of the search, whose axes may be sub-axes.
        makers: what each node of the search stands for.
        rules: the rule of each node that is a torch op.
        strategies: axis → the strategy of each node.
    """
    outputs = list(ir.terminator(function).operands)
    nodes = [
        _Node(index, maker, rule, function, outputs, mesh, strategies)
        for index, (maker, rule) in enumerate(zip(makers, rules, strict=True))
    ]
    orders = _Orders(mesh, nodes)
    known: dict[SSAValue, Sharding] = {}
    decided: dict[str, dict[int, Sharding]] = {"arg_attrs": {}, "res_attrs": {}}
    for node in nodes:
        made = [_assemble(mesh, v, p, orders, lambda dim, _, v=v: (v, dim)) for v, p in node.results]
        known.update(zip((value for value, _ in node.results), made, strict=True))
        needed = [_assemble(mesh, v, p, orders, node.factor_key) for v, p in node.operands]
        if isinstance(node.maker, int):
            decided["res_attrs"][node.maker] = needed[0]
        elif isinstance(node.maker, ValueOp):
            _annotate_op(node.maker, made, needed, [known[value] for value, _ in node.operands])
        else:
            decided["arg_attrs"][node.maker.index] = made[0]  # type: ignore  # a block argument
    for which, count in (("arg_attrs", len(function.args)), ("res_attrs", len(outputs))):
        _write(function, which, count, decided[which])


class _Node:
    """A node of the search with its placements.

    Attributes:
        results, operands: (value, axis → placement) of each.
        annotations: its user annotations.
        factors: axis → the factor that it shards.
    """

    def __init__(
        self,
        index: int,
        maker: Maker,
        rule: OpRule | None,
        function: FuncOp,
        outputs: Sequence[SSAValue],
        mesh: Mesh,
        strategies: Mapping[str, Sequence[NodeStrategy]],
    ):
        self.index, self.maker = index, maker
        self.strategies = {axis: strategies[axis][index] for axis in mesh.axis_names}
        if isinstance(maker, int):
            results, operands, annotations = [], [outputs[maker]], [_annotation(function, "res_attrs", maker)]
        elif isinstance(maker, ValueOp):
            results, operands, annotations = list(maker.results), list(maker.tensors), list(maker.shardings)
        else:
            results, operands, annotations = [maker], [], [_annotation(function, "arg_attrs", maker.index)]  # type: ignore
        self.results = [
            (v, {a: strategy.results[i] for a, strategy in self.strategies.items()}) for i, v in enumerate(results)
        ]
        self.operands = [
            (v, {a: strategy.operands[i] for a, strategy in self.strategies.items()}) for i, v in enumerate(operands)
        ]
        self.annotations = [sharding.refined(mesh) for sharding in annotations if sharding is not None]
        self.factors: dict[str, int] = {
            a: strategy.factors[0] for a, strategy in self.strategies.items() if strategy.factors
        }
        self._majors = rule.majors if rule and len(set(self.factors.values())) > 1 else {}

    def factor_key(self, _dim: int, axes: Order) -> Key:
        """Return the key of what the node shards by `axes`: one factor, or several adjacent ones."""
        factors = {self.factors[axis] for axis in axes}
        return (self.index, self.factors[axes[0]] if len(factors) == 1 else tuple(sorted(factors)))

    def fixed(self) -> dict[object, Order]:
        """Return, per factor, the annotated nesting order of its axes; per several factors, that of all their axes."""
        found: dict[object, Order] = {}
        for sharding in self.annotations:
            for dim in {p.dim for _, p in sharding.entries if p.dim is not None}:
                axes = sharding.dim_axes(dim)
                if len(axes) > 1 and len({self.factors.get(axis) for axis in axes} - {None}) == 1:
                    found.setdefault(self.factors[axes[0]], axes)
        for placed in (placed for _, placed in (*self.results, *self.operands)):
            for axes in _sharded(placed).values():
                factors = sorted({self.factors[axis] for axis in axes}, key=lambda f: len(self._majors.get(f, ())))
                parts = {f: tuple(axis for axis in axes if self.factors[axis] == f) for f in factors}
                parts = {f: order if set(order := found.get(f, ())) == {*part} else part for f, part in parts.items()}
                if len(factors) > 1:
                    found.update((f, part) for f, part in parts.items() if len(part) > 1)
                    found[tuple(sorted(factors))] = tuple(axis for f in factors for axis in parts[f])
        return found


class _Orders:
    """The nesting order of every dimension that several axes shard."""

    def __init__(self, mesh: Mesh, nodes: Sequence[_Node]):
        self._mesh = mesh
        self._parent: dict[Key, Key] = {}
        self._fixed: dict[Key, Order] = {}
        self._requests: dict[Key, dict[Order, float]] = {}
        made: dict[SSAValue, dict[str, Placement]] = {}
        for node in nodes:
            made.update(node.results)
            fixed = node.fixed()
            for factor, order in fixed.items():
                self._fixed[node.index, factor] = order
            for value, placed in node.results:
                for dim, axes in _sharded(placed).items():
                    self._join((value, dim), node.factor_key(dim, axes), 0.0)
            for value, wanted in node.operands:
                self._meet(node, value, made[value], wanted)
        self._chosen: dict[Key, Order] = {}

    def _meet(
        self, node: _Node, value: SSAValue, made: Mapping[str, Placement], wanted: Mapping[str, Placement]
    ) -> None:
        """Join the dimensions of a value that the node `node` leaves alone; request an order for the others."""
        before, after = _sharded(made, 1), _sharded(wanted, 1)
        for dim in {**before, **after}:
            had, has = before.get(dim, ()), after.get(dim, ())
            size = _bytes(value, self._mesh, made)
            if set(had) == set(has):
                if len(had) > 1:
                    self._join((value, dim), node.factor_key(dim, has), size)
                continue
            kept = [axis for axis in had if axis in has]
            for axes, key in ((had, (value, dim)), (has, node.factor_key(dim, has) if has else None)):
                moved = [axis for axis in axes if axis not in kept]
                if len(axes) > 1 and key is not None:
                    for outer, inner in itertools.product(kept, moved):
                        self._request(key, (outer, inner), size)

    def _find(self, key: Key) -> Key:
        root = key
        while self._parent.get(root, root) != root:
            root = self._parent[root]
        while self._parent.get(key, key) != root:
            self._parent[key], key = root, self._parent[key]
        return root

    def _join(self, value: Key, factor: Key, size: float) -> None:
        """Make a value and a node share one order; annotated orders stay, and are requested from the other."""
        if factor in self._fixed and not size:
            self._fixed[value] = self._fixed[factor]
        elif factor in self._fixed or value in self._fixed:
            for key, other in ((value, factor), (factor, value)):
                if other in self._fixed and key not in self._fixed:
                    self._request(key, self._fixed[other], size)
        else:
            one, other = self._find(value), self._find(factor)
            if one != other:
                self._parent[other] = one
                for order, weight in self._requests.pop(other, {}).items():
                    self._request(one, order, weight)

    def _request(self, key: Key, order: Order, weight: float) -> None:
        requests = self._requests.setdefault(self._find(key), {})
        requests[order] = requests.get(order, 0.0) + weight

    def order(self, key: Key, axes: Order, fits: Callable[[Order], bool], is_demanding: bool) -> Order:
        """Return the nesting order of `axes`, which shard the dimension `key`; one that `fits`, if there is one.

        Args:
            is_demanding: whether some orders may not fit here that fit elsewhere.
        """
        if key in self._fixed and set(self._fixed[key]) == set(axes):
            return self._fixed[key]
        root = self._find(key)
        chosen = self._chosen.get(root)
        if chosen is None or (is_demanding and set(chosen) == set(axes) and not fits(chosen)):
            requests = self._requests.get(root, {})
            orders = itertools.permutations(axes)
            chosen = max(orders, key=lambda order: (fits(order), _satisfied(order, requests)))
            self._chosen.setdefault(root, chosen)
        return chosen if set(chosen) == set(axes) else axes


def _satisfied(order: Order, requests: Mapping[Order, float]) -> float:
    """Return the weight of the requested orders whose axes `order` nests alike."""
    return sum(weight for wanted, weight in requests.items() if tuple(a for a in order if a in wanted) == wanted)


def _sharded(placed: Mapping[str, Placement], least: int = 2) -> dict[int, Order]:
    """Return, per dimension, the axes that shard it, in mesh order, where at least `least` do."""
    found: dict[int, list[str]] = {}
    for axis, placement in placed.items():
        if placement.dim is not None:
            found.setdefault(placement.dim, []).append(axis)
    return {dim: tuple(axes) for dim, axes in found.items() if len(axes) >= least}


def _assemble(
    mesh: Mesh, value: SSAValue, placed: Mapping[str, Placement], orders: _Orders, key: Callable[[int, Order], Key]
) -> Sharding:
    def fits(order: Order) -> bool:
        meta = meta_of(value.type)
        with contextlib.suppress(ShardingError):
            Sharding([(axis, placed[axis]) for axis in order], mesh.name).check_shape(mesh, meta.shape if meta else ())
            return True
        return False

    entries = [(axis, placement) for axis, placement in placed.items() if placement.dim is None]
    for dim, axes in _sharded(placed, 1).items():
        if len(axes) > 1:
            axes = orders.order(key(dim, axes), axes, fits, any(placed[axis].is_demanding for axis in axes))
        entries += [(axis, placed[axis]) for axis in axes]
    return Sharding(entries, mesh.name).merged(mesh)


def _annotate_op(op: ValueOp, made: Sequence[Sharding], needed: Sequence[Sharding], known: Sequence[Sharding]) -> None:
    op.set_shardings([sharding if meta else None for sharding, meta in zip(made, op.metas, strict=True)])
    needs = tuple(None if need == has else need for need, has in zip(needed, known, strict=True))
    if any(need is not None for need in needs):
        op.properties["needs"] = shardings_attr(needs)
    else:
        op.properties.pop("needs", None)


def _bytes(value: SSAValue, mesh: Mesh, placed: Mapping[str, Placement]) -> float:
    meta = meta_of(value.type)
    shards = mesh.group_size(axis for axis, placement in placed.items() if placement.dim is not None)
    return (meta.bytes if meta else 0) / shards


def _annotation(function: FuncOp, which: str, index: int) -> Sharding | None:
    attribute = function_attrs(function, which, index).get("spmd.sharding")
    return attribute.data if attribute else None


def _write(function: FuncOp, which: str, count: int, shardings: Mapping[int, Sharding]) -> None:
    entries: list[DictionaryAttr] = []
    for index in range(count):
        attrs: dict[str, Attribute] = function_attrs(function, which, index)
        attrs["spmd.sharding"] = sharding_attr(shardings[index])
        entries.append(DictionaryAttr(attrs))
    function.properties[which] = ArrayAttr(entries)
