"""Initial nesting orders of the axes that shard one dimension.

The search places each axis separately, so it leaves the order open. An annotation fixes the order. If the axes shard
several factors of the dimension, axes of major factors are outermost. Dimensions that ops pass on unchanged share one
order. Where an axis is added or removed, a reshard requests this axis innermost, weighted by its bytes. The order with
the largest weight of requests is chosen.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence

import attrs

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding
from spmdir.rules import OpRule
from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.problem import Problem

Order = tuple[str, ...]
"""The axes that shard a dimension, outermost first."""

Key = tuple[int, object]
"""A sharded dimension: (~value, dimension) as produced, or (node, factor or sorted factors) as the node shards it."""


@attrs.define(eq=False)
class Placed:
    """The placements of a value on all axes. Equal placements are one object.

    Attributes:
        placements: axis → placement.
        shards: dimension → the axes that shard it, in mesh order.
        nested: dimension → the axes that shard it, for dimensions that several axes shard.
        shardings: nesting orders of the dimensions in `nested` → the sharding. It is a cache.
    """

    placements: Mapping[str, Placement]
    shards: Mapping[int, Order]
    nested: Mapping[int, Order]
    shardings: dict[tuple[Order, ...], Sharding] = attrs.field(factory=dict)

    def sharding(self, orders: tuple[Order, ...], mesh: Mesh) -> Sharding:
        """Return the sharding with these nesting orders of the dimensions in `nested`."""
        if orders not in self.shardings:
            axes_by_dim = {**self.shards, **dict(zip(self.nested, orders, strict=True))}  # outermost first
            entries = [(axis, placement) for axis, placement in self.placements.items() if placement.dim is None]
            entries += [(axis, self.placements[axis]) for axes in axes_by_dim.values() for axis in axes]
            self.shardings[orders] = Sharding(entries, mesh.name).merged(mesh)
        return self.shardings[orders]


@attrs.frozen(eq=False)
class Form:
    """The placements and factors of nodes with equal strategies.

    Attributes:
        operands, results: the placements of each operand and each result.
        factors: axis → the first factor that it shards. Axes that shard nothing are not listed.
    """

    operands: tuple[Placed, ...]
    results: tuple[Placed, ...]
    factors: Mapping[str, int]

    def key(self, node: int, axes: Order) -> Key:
        """Return the key of the dimension that a node shards over `axes`.

        It is (node, factor) if all axes shard the same factor, else (node, sorted factors).
        """
        factors = {self.factors[axis] for axis in axes}
        return (node, self.factors[axes[0]] if len(factors) == 1 else tuple(sorted(factors)))


@attrs.frozen(eq=False)
class PlacementDifference:
    """The difference between the produced and the needed placements of a value.

    Attributes:
        alike: (dimension, axes) of the dimensions that the same axes shard on both sides. Both should have one order.
        requests: (dimension, whether the request is for the order that the node needs or, if not, for the order that is
            produced, the axes on this side, requested (outer, inner) pairs of axes).
        is_ambiguous: whether another order may be better than one that satisfies all requests.
    """

    alike: tuple[tuple[int, Order], ...]
    requests: tuple[tuple[int, bool, Order, tuple[Order, ...]], ...]
    is_ambiguous: bool


class Orders:
    """The nesting orders of all dimensions that several axes shard.

    Args:
        strategies: axis → the strategy of each node.
        annotations: [node], its user annotations.
        rules: [node], its rule; None if it is not a torch op.

    Attributes:
        forms: [node], its placements and factors.
        placed: [value], its produced placements.
        uses: [value], the nodes that use it and the placements that they need.
        chosen: key of a dimension → its order. A dimension is entered when `sharding` is first called for it. Later
            calls use the order in this table, so callers may change it.
    """

    def __init__(
        self,
        problem: Problem,
        strategies: Mapping[str, Sequence[Strategy]],
        annotations: Sequence[Sequence[Sharding]],
        rules: Sequence[OpRule | None],
    ):
        self.problem, self._mesh = problem, problem.mesh
        self._placed_of_placements: dict[tuple[Placement, ...], Placed] = {}  # [axis] placements → the shared object
        # (produced, needed) → their difference
        self._differences: dict[tuple[Placed, Placed], PlacementDifference] = {}
        self._parent: dict[Key, Key] = {}  # a union-find forest of the dimensions that share one order
        self._fixed: dict[Key, Order] = {}  # the orders that annotations or major factors fix
        self._requests: dict[Key, dict[Order, float]] = {}  # key → requested (outer, inner) axes → weight in bytes
        self.chosen: dict[Key, Order] = {}
        self._demanding: set[Key] = set()  # the dimensions with placements that only some orders allow
        self.forms = self._forms_of(strategies)
        self.placed: list[Placed] = [Placed({}, {}, {})] * len(problem.values)
        self.uses: list[list[tuple[int, Placed]]] = [[] for _ in problem.values]
        for index, (node, form) in enumerate(zip(problem.nodes, self.forms, strict=True)):
            for factor, order in _fixed_orders(form, annotations[index], rules[index]).items():
                self._fixed[index, factor] = order
            # A dimension of a result has the order of the factor that the node shards. Operands may be resharded.
            for value, placed in zip(node.results, form.results, strict=True):
                self.placed[value] = placed
                for dim, axes in placed.nested.items():
                    self._join((~value, dim), form.key(index, axes), 0.0)  # 0: the node produces the value
            for value, needed in zip(node.operands, form.operands, strict=True):
                self.uses[value].append((index, needed))
                self._add_requests(index, form, value, needed)

    def is_free(self, key: Key) -> bool:
        """Return whether any order of the axes of a dimension is legal; False if it is not in `chosen`."""
        return key in self.chosen and key not in self._demanding

    def is_satisfied(self, key: Key) -> bool:
        """Return whether the order of a dimension satisfies all requests."""
        requests = self._requests.get(key, {})
        return _satisfied(self.chosen[key], requests) == sum(requests.values())

    def difference(self, produced: Placed, needed: Placed) -> PlacementDifference:
        """Return the difference between produced and needed placements of a value."""
        if (produced, needed) not in self._differences:
            self._differences[produced, needed] = _difference(produced, needed)
        return self._differences[produced, needed]

    def produced_sharding(self, value: int) -> Sharding:
        """Return the produced sharding of a value."""
        return self.sharding(value, self.placed[value], None)

    def sharding(self, value: int, placed: Placed, node: int | None) -> Sharding:
        """Return the sharding that `node` needs of a value, or the produced sharding if `node` is None.

        Dimensions without an order get one, which is entered in `chosen`.

        Args:
            placed: the placements that `node` needs, or the produced placements.
        """
        shape = self.problem.values[value].shape
        orders = [
            self._order(self._key(value, dim, axes, node), axes, placed, shape) for dim, axes in placed.nested.items()
        ]
        return placed.sharding(tuple(orders), self._mesh)

    def keys(self, value: int, placed: Placed, node: int | None) -> list[Key]:
        """Return the keys of the nested dimensions of a value, for `node` or, if it is None, for the producer."""
        return [self._find(self._key(value, dim, axes, node)) for dim, axes in placed.nested.items()]

    def _key(self, value: int, dim: int, axes: Order, node: int | None) -> Key:
        """Return the key of a dimension of a value, at `node` or, if it is None, at the producer."""
        return (~value, dim) if node is None else self.forms[node].key(node, axes)

    def _forms_of(self, strategies: Mapping[str, Sequence[Strategy]]) -> list[Form]:
        """Return the form of each node. Nodes with equal strategies share one.

        Args:
            strategies: axis → the strategy of each node.
        """
        axes = self._mesh.axis_names
        form_of_joint: dict[tuple[int, ...], Form] = {}
        forms: list[Form] = []
        for joint in zip(*(strategies[axis] for axis in axes), strict=True):  # the strategies of a node on all axes
            key = tuple(map(id, joint))  # equal strategies are mostly one object
            if key not in form_of_joint:
                operands = zip(*(strategy.operands for strategy in joint), strict=True)
                results = zip(*(strategy.results for strategy in joint), strict=True)
                form_of_joint[key] = Form(
                    tuple(map(self._placed_by, operands)),
                    tuple(map(self._placed_by, results)),
                    {axis: strategy.factors[0] for axis, strategy in zip(axes, joint, strict=True) if strategy.factors},
                )
            forms.append(form_of_joint[key])
        return forms

    def _placed_by(self, placements: tuple[Placement, ...]) -> Placed:
        """Return the placements of a value, one for each axis of the mesh, as a shared object."""
        if placements not in self._placed_of_placements:
            shards: dict[int, Order] = {}
            for axis, placement in zip(self._mesh.axis_names, placements, strict=True):
                if placement.dim is not None:
                    shards[placement.dim] = (*shards.get(placement.dim, ()), axis)
            nested = {dim: axes for dim, axes in shards.items() if len(axes) > 1}
            by_axis = dict(zip(self._mesh.axis_names, placements, strict=True))
            self._placed_of_placements[placements] = Placed(by_axis, shards, nested)
        return self._placed_of_placements[placements]

    def _add_requests(self, index: int, form: Form, value: int, needed: Placed) -> None:
        """Join the dimensions of a value with equal axes at the node `index`; request orders for the others.

        The weight of a join or a request is the bytes of the local shard.
        """
        produced = self.placed[value]
        difference = self.difference(produced, needed)
        if not difference.alike and not difference.requests:
            return
        ranks = self._mesh.group_size(axis for axes in produced.shards.values() for axis in axes)
        weight = self.problem.values[value].bytes / ranks
        for dim, axes in difference.alike:
            self._join((~value, dim), form.key(index, axes), weight)
        for dim, is_node, axes, orders in difference.requests:
            for order in orders:
                self._request(form.key(index, axes) if is_node else (~value, dim), order, weight)

    def _find(self, key: Key) -> Key:
        """Return the representative of the dimensions that share their order with `key`, and shorten the path to it."""
        root = key
        while self._parent.get(root, root) != root:
            root = self._parent[root]
        while self._parent.get(key, key) != root:
            self._parent[key], key = root, self._parent[key]
        return root

    def _join(self, value: Key, factor: Key, weight: float) -> None:
        """Let a dimension of a value and one of a node share their order.

        If the order of one side is fixed, it is requested for the other side instead. If both are, nothing happens.

        Args:
            value, factor: the keys of the dimension of the value and of the node.
            weight: bytes, the weight of such a request. 0 if the node produces the value: then an order that is fixed
                for the node is fixed for the value too.
        """
        if factor in self._fixed and not weight:
            self._fixed[value] = self._fixed[factor]
        elif factor in self._fixed or value in self._fixed:
            for key, other_key in ((value, factor), (factor, value)):
                if other_key in self._fixed and key not in self._fixed:
                    self._request(key, self._fixed[other_key], weight)
        else:
            root, other_root = self._find(value), self._find(factor)
            if root != other_root:
                self._parent[other_root] = root
                for order, requested_weight in self._requests.pop(other_root, {}).items():
                    self._request(root, order, requested_weight)

    def _request(self, key: Key, order: Order, weight: float) -> None:
        """Add `weight` to the requests for a relative order of some axes of the dimension."""
        requests = self._requests.setdefault(self._find(key), {})
        requests[order] = requests.get(order, 0.0) + weight

    def _order(self, key: Key, axes: Order, placed: Placed, shape: tuple[int, ...]) -> Order:
        """Return the nesting order of `axes`, which shard the dimension `key`; a legal one if possible.

        A fixed order of these axes is returned. Otherwise, the order in `chosen` is returned if it is legal for this
        value. If the dimension has no order in `chosen`, or an illegal one, the result is the legal order with the
        largest weight of satisfied requests. This order is entered in `chosen` only if the dimension had none. If the
        order in `chosen` is of other axes, the result is `axes`, in mesh order.

        Args:
            placed: the placements of the value.
            shape: the shape of the value.
        """
        if key in self._fixed and set(self._fixed[key]) == set(axes):
            return self._fixed[key]
        root = self._find(key)
        chosen = self.chosen.get(root)
        is_demanding = root in self._demanding or any(placed.placements[axis].is_demanding for axis in axes)
        if is_demanding:
            self._demanding.add(root)
        # An order that is legal for another value of the dimension may be illegal for this one.
        if chosen is None or (is_demanding and set(chosen) == set(axes) and not self._fits(chosen, placed, shape)):
            requests = self._requests.get(root, {})
            orders = itertools.permutations(axes)
            chosen = max(orders, key=lambda order: (self._fits(order, placed, shape), _satisfied(order, requests)))
            self.chosen.setdefault(root, chosen)
        return chosen if set(chosen) == set(axes) else axes

    def _fits(self, order: Order, placed: Placed, shape: tuple[int, ...]) -> bool:
        """Return whether the axes may shard a tensor of this shape in this nesting order."""
        with contextlib.suppress(ShardingError):
            entries = [(axis, placed.placements[axis]) for axis in order]
            Sharding(entries, self._mesh.name).check_shape(self._mesh, shape)
            return True
        return False


def _fixed_orders(form: Form, annotations: Sequence[Sharding], rule: OpRule | None) -> dict[object, Order]:
    """Return the nesting orders of a node that placements, annotations or the majors of its rule fix.

    For example, a view combines a major and a minor factor to one dimension, which a and b shard. If a shards the minor
    factor and b the major one, the order of this dimension is (b, a).

    Args:
        rule: the rule of the node; None if it is not a torch op.

    Returns: factor, or sorted factors of one dimension → the order of the axes that shard them.
    """
    order_of_factor: dict[object, Order] = {}
    # the placements of each operand and result, with the axes of each of its nested dimensions
    all_nested = [(placed, axes) for placed in (*form.results, *form.operands) for axes in placed.nested.values()]
    # Placements that require the order of the mesh.
    for placed, axes in all_nested:
        if sum(placed.placements[axis].nests_as_mesh for axis in axes) > 1:
            order_of_factor[form.factors[axes[0]]] = axes
    # Annotated orders of axes that shard one factor.
    for sharding in annotations:
        for dim in {p.dim for _, p in sharding.entries if p.dim is not None}:
            axes = sharding.dim_axes(dim)
            factors_of_dim = {form.factors.get(axis) for axis in axes} - {None}
            if len(axes) > 1 and len(factors_of_dim) == 1:
                order_of_factor.setdefault(form.factors[axes[0]], axes)
    # Dimensions of several factors: the axes of a major factor are outside those of its minor factors.
    majors = rule.majors if rule else {}
    for _, axes in all_nested:
        factors_of_dim = {form.factors[axis] for axis in axes}
        if len(factors_of_dim) < 2:
            continue
        major_first = sorted(factors_of_dim, key=lambda factor: len(majors.get(factor, ())))
        order_of_dim: list[str] = []
        for factor in major_first:
            factor_axes = tuple(axis for axis in axes if form.factors[axis] == factor)
            if {*order_of_factor.get(factor, ())} == {*factor_axes}:
                factor_axes = order_of_factor[factor]  # the annotated order
            if len(factor_axes) > 1:
                order_of_factor[factor] = factor_axes
            order_of_dim += factor_axes
        order_of_factor[tuple(sorted(factors_of_dim))] = tuple(order_of_dim)
    return order_of_factor


def _difference(produced: Placed, needed: Placed) -> PlacementDifference:
    """Return the difference between two placements of a value, as orders that a reshard between them requests.

    Axes that shard a dimension on both sides should be outside those that shard it on one side only. For example,
    `a: S(0), b: S(0)` to `a: S(0)` requests the order (a, b): then the reshard is one all-gather over b. With more than
    one axis of either kind, requests leave a choice between their orders, so the difference is ambiguous.
    """
    alike: list[tuple[int, Order]] = []
    requests: list[tuple[int, bool, Order, tuple[Order, ...]]] = []
    is_ambiguous = False
    for dim in {**produced.shards, **needed.shards}:
        axes_before, axes_after = produced.shards.get(dim, ()), needed.shards.get(dim, ())
        if axes_before == axes_after:
            if len(axes_after) > 1:
                alike.append((dim, axes_after))
            continue
        common_axes = [axis for axis in axes_before if axis in axes_after]
        for axes, is_node in ((axes_before, False), (axes_after, True)):
            moved = [axis for axis in axes if axis not in common_axes]
            if len(axes) > 1 and common_axes and moved:
                requests.append((dim, is_node, axes, tuple(itertools.product(common_axes, moved))))
            if len(axes) > 1 and (len(common_axes), len(moved)) != (1, 1):
                is_ambiguous = True
    return PlacementDifference(tuple(alike), tuple(requests), is_ambiguous)


def _satisfied(order: Order, requests: Mapping[Order, float]) -> float:
    """Return the weight of the requests that `order` satisfies.

    For example, (a, c, b) satisfies the request (a, b), and does not satisfy (b, c).

    Args:
        requests: requested order of some of the axes → its weight in bytes.
    """
    return sum(
        weight
        for requested, weight in requests.items()
        if tuple(axis for axis in order if axis in requested) == requested
    )
