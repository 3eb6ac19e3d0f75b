"""A lower bound on the cost of every decision, by message passing between classes of equal nodes.

A class has the states of the search, on all axes together. A *message* is a number of seconds for each placement of an
operand or a result. It is subtracted from the cost of the nodes and added to the cost of the values there. So it does
not change the cost of any decision. Every decision costs at least

    sum over nodes of min over states of (own seconds − messages)
    + sum over values of min over placements of (seconds of the reshards + messages)

whatever the messages are. For example, a node produces p0 or p1 for 0 or 1 s, its only user needs r0 or r1 for 1 or
0 s, and a reshard between different placements costs 2 s. Without messages the bound is 0 + 0 + 0. With the messages
(0, 1) of the producer and (0, −1) of the user, nodes cost min(0, 0) + min(1, 1), the value costs
min(0 + 0, 2 − 1, 1 + 2, 1 − 1) = 0, and the bound is 1 s.

The messages start at 0 and rise as in `message_passing.py`. Nodes of a class share their messages. The bound does not
assume that they are decided alike, because each minimum is taken for each node and each value by itself.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.standard import Partial, R, Shard
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.collectives import keep_bounds
from spmdir.search.certificate.equal_values import EqualUses, EqualValues, NodeMessage
from spmdir.search.colour_refinement import colours, producers_of
from spmdir.search.joint_placements import JointPlacements, Numbers
from spmdir.search.joint_states import StateFinder
from spmdir.search.joint_strategies import LIMIT
from spmdir.search.merged_nodes import Quotient, quotient
from spmdir.search.placement_catalogue import catalogue
from spmdir.search.problem import Problem
from spmdir.search.reshard_prices import IMPOSSIBLE, Prices

MOST_USES = 6
"""The largest number of different uses of a value that are bounded together. If a value has more, each group of uses
counts a part of its price: the tree to all uses costs at least as much as the tree to any group."""

UNEVEN = 0.9
"""The factor for prices of placements with chunks of different lengths until they are planned. Plans of such reshards
were up to 4 % faster than with equal chunks."""

MOST_PLANS = 2600
"""The largest number of reshards that are planned for a bound."""

MOMENTUM = 0.8
"""The largest fraction of a message's last change that is added once more."""


_ValueKey = tuple[int, int, tuple[tuple[tuple[int, int], int], ...]]
"""The class of a value's producer, the result index, and ((class of a user, operand index), number of uses) pairs."""


class DualBound:
    """A lower bound that rises with each turn.

    The extra price of reshards along `Problem.apart` does not count, so the bound holds with and without it.

    Args:
        depth: the number of steps to which neighbourhoods of nodes are compared.
        counted_fractions: [value], the fraction of the time of its reshards that counts; 1 if empty. Of merged values,
            the least fraction counts.

    Attributes:
        shared: the program with one part for each class of nodes.
        states: [class], its states.
        placements: the joint placements of these states.
        planned: the number of reshards that were planned.

    Raises:
        UnsupportedError: a node has more than `LIMIT` joint strategies.
    """

    def __init__(self, problem: Problem, depth: int, counted_fractions: Sequence[float] = ()):
        _reject_many_strategies(problem)
        # Merge nodes of equal neighbourhoods into classes.
        _, classes = colours(problem, depth)
        merged = quotient(attrs.evolve(problem, apart=()), classes)
        self._count = merged.weight  # [class], its number of nodes
        # Costs are those of one node or value, and are multiplied by their numbers in `bound`.
        self.shared = shared = attrs.evolve(
            merged, weight=[1] * len(merged.nodes), value_weight=[1] * len(merged.values)
        )
        if counted_fractions:
            least_fractions = [1.0] * len(shared.values)
            for value, fraction in zip(shared.value_class, counted_fractions, strict=True):
                least_fractions[value] = min(least_fractions[value], fraction)
            self.shared = shared = attrs.evolve(shared, exposed=tuple(least_fractions))
        mesh, rank = problem.mesh, max((meta.rank for meta in shared.values), default=0)
        axes = mesh.axis_names
        self.placements = placements = JointPlacements(mesh, axes, catalogue(rank, shared.plugin_placements))
        finder = StateFinder(problem, shared, placements)
        self.states = [finder.of(part, range(len(axes)), None) for part in range(len(shared.nodes))]
        # Plans may also pass joint placements that no state has.
        number_all(placements, rank)
        self._tables = _Tables(shared, placements, mesh)
        self._messages: list[list[NodeMessage]] = [[] for _ in shared.nodes]  # [class], the messages of its operands
        self._known_messages: dict[tuple[int, str, int, int], tuple[NodeMessage, Numbers]] = {}  # see `_message`
        self._values = list(self._equal_values(_count_equal_values(problem, classes)))
        self._shares = [self._shares_of(part) for part in range(len(shared.nodes))]
        self._previous: list[Numbers] = []  # the messages before the last turn
        self._rising_turns, self.planned = 0, 0

    def _equal_values(self, counts: Mapping[_ValueKey, int]) -> Iterator[EqualValues]:
        """Yield the values with equal producers and uses, and add the messages of their ends to `_messages`.

        A value with more than `MOST_USES` different uses is yielded once for each group of uses, with a part of its
        price. For example, 10 different uses are groups of 6 and 4, and each counts half of the price.

        Args:
            counts: as of `_count_equal_values`.
        """
        value_of_producer = {producer: value for value, producer in enumerate(self.shared.producer)}
        for (part, result_index, uses), count in counts.items():
            value = value_of_producer[part, result_index]
            table = self._tables.of(value)
            groups = [uses[start : start + MOST_USES] for start in range(0, len(uses), MOST_USES)]
            for group, uses_of_group in enumerate(groups):
                producer, produced = self._message(part, "result", result_index, group)
                equal_uses: list[EqualUses] = []
                for (user, operand_index), use_count in uses_of_group:
                    message, needed = self._message(user, "operand", operand_index)
                    equal_uses.append(EqualUses(message, use_count, table.row[needed]))
                end_classes = [part, *(user for (user, _), _ in uses_of_group)]
                equal_values = EqualValues(
                    count,
                    value,
                    list(dict.fromkeys(end_classes)),
                    table.price,
                    fraction=1 / len(groups),
                    producer=producer,
                    produced=table.row[produced],
                    uses=equal_uses,
                )
                messages = [producer, *(use.message for use in equal_uses)]
                for position, (message, end_class) in enumerate(zip(messages, end_classes, strict=True)):
                    message.ends.append((equal_values, position - 1))  # the index of the use; −1 is the producer
                    message.sharers = max(message.sharers, end_classes.count(end_class))
                yield equal_values

    def _message(self, part: int, side: str, index: int, group: int = 0) -> tuple[NodeMessage, Numbers]:
        """Return the message of an operand or result of a class, and the joint placement of each of its placements.

        Args:
            side: "operand" or "result".
            index: of the operand or the result.
            group: for a result, the number of the group of uses; see `_equal_values`. A result has one message for each
                group.

        Returns: the message, and [placement of the message], the number of the joint placement.
        """
        key = part, side, index, group
        if key not in self._known_messages:
            states = self.states[part]
            column = (states.results if side == "result" else states.operands)[:, index]
            numbers, placement_of_state = np.unique(column, return_inverse=True)
            message = NodeMessage(placement_of_state, np.zeros(len(numbers)))
            self._known_messages[key] = message, numbers
            self._messages[part].append(message)
        return self._known_messages[key]

    def _shares_of(self, part: int) -> tuple[list[float], list[float]]:
        """Return two lists of the shares of messages in the excess of a class, for the forward and the reverse pass.

        Messages to values that a class later in the pass shares have equal shares. The others have none. For example,
        if two of three messages are to such values, the shares are 1/2, 1/2 and 0.
        """
        messages = self._messages[part]
        has_later = [any(values.last > part for values, _ in message.ends) for message in messages]
        has_earlier = [any(values.first < part for values, _ in message.ends) for message in messages]
        return _equal_shares(has_later), _equal_shares(has_earlier)

    def turn(self) -> float:
        """Run one pass in program order and one in reverse, and return the bound that holds then."""
        self._add_momentum()
        for part in range(len(self._messages)):
            self._pass_on(part, self._shares[part][0])
        for part in reversed(range(len(self._messages))):
            self._pass_on(part, self._shares[part][1])
        return self.bound()

    def _add_momentum(self) -> None:
        """Change each message by a fraction of its last change."""
        messages = list(itertools.chain(*self._messages))
        latest = [message.seconds for message in messages]
        if self._previous:
            # Momentum grows from turn to turn, as in Nesterov's method: 0.4, 0.57, 0.67, …, up to MOMENTUM.
            momentum = min(MOMENTUM, self._rising_turns / (self._rising_turns + 1.5))
            for message, seconds, previous_seconds in zip(messages, latest, self._previous, strict=True):
                message.change(seconds + momentum * (seconds - previous_seconds))
        self._previous = latest
        self._rising_turns += 1

    def _pass_on(self, part: int, shares: Sequence[float]) -> None:
        """Add the least costs of its values to the states of a class, and send the excess to values of later classes.

        The excess of a state is its cost above the cheapest state. For example, states cost 3 and 1 s, and their
        placements of the only value cost at least 0 and 4 s. Then the states cost 3 and 5 s in total, and the message
        sends an excess of 0 and 2 s, in exchange for the 0 and 4 s that the value paid.

        Args:
            shares: [message], its share of the excess.
        """
        messages, cost = self._messages[part], self.states[part].seconds
        collected = [message.collect() for message in messages]
        for message, seconds in zip(messages, collected, strict=True):
            cost = cost + seconds[message.placement_of_state]
        cost = cost - cost.min()
        for message, seconds, share in zip(messages, collected, shares, strict=True):
            sent_seconds = share * message.least_by_placement(cost) if share else 0.0
            message.change(sent_seconds - seconds)

    def bound(self) -> float:
        """Return the lower bound, in seconds."""
        node_seconds = math.fsum(
            count * float(self._reduced_costs(part).min()) for part, count in enumerate(self._count)
        )
        return node_seconds + math.fsum(values.count * values.least() for values in self._values)

    def floor(self) -> float:
        """Return the sum of the least seconds of each node, without reshards."""
        return math.fsum(
            count * float(table.seconds.min()) for count, table in zip(self._count, self.states, strict=True)
        )

    def _reduced_costs(self, part: int) -> Numbers:
        """Return for each state of a class the seconds of a node minus its messages."""
        cost = self.states[part].seconds
        for message in self._messages[part]:
            cost = cost - message.seconds[message.placement_of_state]
        return cost

    def restart_momentum(self) -> None:
        """Forget the last changes of messages."""
        self._previous, self._rising_turns = [], 0

    def add_plans(self, slack: float) -> int:
        """Replace bounds of reshards by exact plans where this may raise the bound; return how many plans were made.

        These are reshards between placements of states within `slack` seconds of the cheapest state. If the search
        estimates some of them higher than the bound does, only those are planned. Otherwise all are.
        """
        return self._add_plans(slack, is_last=False) or self._add_plans(slack, is_last=True)

    def _add_plans(self, slack: float, is_last: bool) -> int:
        """Plan reshards as `add_plans` does, and return how many plans were made.

        Args:
            is_last: whether to plan also those that the search does not estimate higher.
        """
        costs = [self._reduced_costs(part) for part in range(len(self._messages))]
        is_near = [cost <= cost.min() + slack for cost in costs]
        near_placements = {  # message → its placements in states that are near the cheapest one
            id(message): np.unique(message.placement_of_state[is_near[part]])
            for part, messages in enumerate(self._messages)
            for message in messages
        }
        planned_before = self.planned
        for equal_values in self._values:
            produced = near_placements[id(equal_values.producer)]
            needed = [near_placements[id(use.message)] for use in equal_values.uses]
            pairs = dict.fromkeys(equal_values.tight_reshards(produced, needed, slack))
            self.planned += self._tables.plan(equal_values.value, pairs, MOST_PLANS - self.planned, is_last)
        for equal_values in self._values:
            equal_values.read()
        return self.planned - planned_before


@attrs.frozen(eq=False)
class _Table:
    """Lower bounds of the prices of reshards of equal values.

    Attributes:
        price: [before, after], seconds.
        may_rise: [before, after], whether the estimate of the search is higher, or there is none.
        numbers: [row], the number of the joint placement.
        row: [number of a joint placement], its row; -1 if it has none.
        planned: the (before, after) of prices that are the planner's.
    """

    price: Numbers
    may_rise: Numbers
    numbers: Numbers
    row: Numbers
    planned: set[tuple[int, int]] = attrs.field(factory=set)


class _Tables:
    """Lower bounds of the prices of reshards. Equal values have one table."""

    def __init__(self, shared: Quotient, placements: JointPlacements, mesh: Mesh):
        self._shared = shared
        self._bounds = Prices(mesh, shared, placements, is_bound=True)
        self._estimates = Prices(mesh, shared, placements)
        self._tables: dict[object, _Table] = {}
        catalogue = placements.catalogue
        dims = [-1 if placement.dim is None else placement.dim for placement in catalogue.placements]
        # for each joint placement, the last dimension that it shards, and whether it has a plug-in placement
        self._last_dim = np.array([max(dims[number] for number in placed) for placed in placements.all])
        plugins = {catalogue.index[placement] for placement in catalogue.plugins}
        self._is_plugin = np.array([not plugins.isdisjoint(placed) for placed in placements.all])

    def of(self, value: int) -> _Table:
        """Return the table of a value: of the joint placements whose dimensions the value has.

        The prices are the lower bounds of `Prices`, lowered where these may not hold: to 0 for plug-in placements, and
        by the factor `UNEVEN` for chunks of different lengths.
        """
        shared = self._shared
        # `exposed` is empty if all reshards count in full.
        key = shared.values[value], value in shared.ties, shared.exposed and shared.exposed[value]
        if key not in self._tables:
            numbers = np.flatnonzero(self._last_dim < max(shared.values[value].rank, 1))
            row = np.full(len(self._last_dim), -1)
            row[numbers] = np.arange(len(numbers))
            price = np.minimum(self._bounds.table(numbers, value), IMPOSSIBLE)
            if value in shared.ties:  # it is never resharded, so all prices are final
                may_rise = np.zeros(price.shape, dtype=bool)
            else:
                # A plug-in's placement or collective may make reshards cheaper than the table, so their bound is 0.
                has_no_bound = self._is_plugin[numbers] | (not keep_bounds(shared.collectives))
                price[has_no_bound] = price[:, has_no_bound] = 0.0
                may_rise = price < self._estimates.table(numbers, value) * (1 - 1e-9)
                has_uneven_shards = self._is_uneven(shared.values[value], numbers)
                is_uneven_reshard = has_uneven_shards[:, None] | has_uneven_shards  # [before, after]
                price[is_uneven_reshard] *= UNEVEN
                may_rise |= is_uneven_reshard
            self._tables[key] = _Table(price, may_rise, numbers, row)
        return self._tables[key]

    def _is_uneven(self, meta: TensorMeta, numbers: Numbers) -> Numbers:
        """Return for each of the joint placements `numbers` whether chunks of a value have different lengths."""
        placements, counts = self._bounds.placements, self._bounds.counts
        dims = np.array([-1 if p.dim is None else p.dim for p in placements.catalogue.placements])
        dim_on_axis = dims[np.array(placements.all)[numbers]]
        is_uneven = np.zeros(len(numbers), dtype=bool)
        for dim, size in enumerate(meta.shape):
            chunks = np.prod(np.where(dim_on_axis == dim, counts, 1), axis=1)
            is_uneven |= size % chunks != 0
        return is_uneven

    def plan(self, value: int, pairs: Iterable[tuple[int, int]], most: int, is_last: bool) -> int:
        """Enter the planner's seconds of at most `most` reshards of a value, and return how many plans were made.

        Reshards of ties, and those that were planned before, are skipped.

        Args:
            pairs: (before, after), two rows of the table.
            is_last: whether to plan also those that the search does not estimate higher.
        """
        table, added = self.of(value), 0
        if value in self._shared.ties:
            return 0
        for before, after in pairs:
            if before == after or (before, after) in table.planned or not (is_last or table.may_rise[before, after]):
                continue
            if added >= most:
                break
            table.planned.add((before, after))
            added += 1
            table.price[before, after] = self._bounds.exact(table.numbers[before], table.numbers[after], value)
        return added


def _equal_shares(has_share: Sequence[bool]) -> list[float]:
    """Return equal shares of 1 for the true entries, and 0 for the others, such as [0.5, 0, 0.5]."""
    return [is_shared / max(sum(has_share), 1) for is_shared in has_share]


def _count_equal_values(problem: Problem, classes: Sequence[int]) -> Mapping[_ValueKey, int]:
    """Return how many values of a program have each producer and uses.

    For example, 30 nodes of class 2 produce a value that two nodes of class 3 use as operand 0. Then the result maps
    (2, 0, (((3, 0), 2),)) to 30.

    Args:
        classes: [node], its class.
    """
    uses: list[Counter[tuple[int, int]]] = [Counter() for _ in problem.values]
    for index, node in enumerate(problem.nodes):
        for operand_index, value in enumerate(node.operands):
            uses[value][classes[index], operand_index] += 1
    return Counter(
        (classes[node], result_index, tuple(sorted(uses[value].items())))
        for value, (node, result_index) in enumerate(producers_of(problem))
    )


def number_all(placements: JointPlacements, rank: int) -> None:
    """Number every joint placement that a plan may pass, apart from plug-in placements.

    Reductions of different kinds do not occur together. With each kind that some placement has already, all
    combinations of R, shards of `rank` dimensions and this kind are numbered, in every nesting order.
    """
    catalogue, index = placements.catalogue.placements, placements.catalogue.index
    kinds = {kind for placed in placements.all for number in placed if (kind := catalogue[number].kind)}
    shards = [index[Shard(dim)] for dim in range(rank)]
    # Without reductions, only R and shards are combined.
    for partial in [index[Partial(kind)] for kind in sorted(kinds)] or [index[R]]:
        choices = dict.fromkeys([index[R], *shards, partial])
        for placed in itertools.product(choices, repeat=len(placements.axes)):
            axes_by_dim = [[axis for axis, number in enumerate(placed) if number == shard] for shard in shards]
            for order in _nesting_orders(axes_by_dim, len(placed)):
                placements.number(placed, order)


def _nesting_orders(axes_by_dim: Sequence[Sequence[int]], axis_count: int) -> Iterator[tuple[int, ...]]:
    """Yield every order of the axes in which only axes that shard the same dimension change places.

    For example, with three axes, of which 0 and 2 shard one dimension: (0, 1, 2) and (2, 1, 0).

    Args:
        axes_by_dim: [dimension], the axes that shard it.
    """
    for nested_by_dim in itertools.product(*map(itertools.permutations, axes_by_dim)):
        order = list(range(axis_count))
        for axes, nested_axes in zip(axes_by_dim, nested_by_dim, strict=True):
            for position, axis in zip(axes, nested_axes, strict=True):
                order[position] = axis
        yield tuple(order)


def _reject_many_strategies(problem: Problem) -> None:
    """Raise UnsupportedError if a node has more than `LIMIT` joint strategies."""
    axes = problem.mesh.axes
    sources = dict.fromkeys(node.source for node in problem.nodes)
    most = max((math.prod(len(source.candidates(*axis)) for axis in axes) for source in sources), default=1)
    if most > LIMIT:
        raise UnsupportedError(
            f"certify enumerates the strategies on all mesh axes together, and a node has {most} on "
            f"{problem.mesh}; expected at most {LIMIT}: use fewer axes, or annotate more values"
        )
