"""The decision of `propagate` for a function, and decisions under changed strategies or annotations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import attrs
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, OpResult, SSAValue

from spmdir.analysis.memory_classes import memory_classes
from spmdir.analysis.phases import PHASES, phases
from spmdir.analysis.propagation.op_strategies import OpStrategies
from spmdir.core.errors import Location, ShardingError, UnsupportedError, printable
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement, parse_placement
from spmdir.core.placement.sharding import Sharding
from spmdir.core.progress import say
from spmdir.dialects import ir
from spmdir.dialects.function_checks import GIVEN
from spmdir.dialects.locations import SourcePlaces, location_of, places_of
from spmdir.dialects.names import text_name
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, signature_name
from spmdir.explanation.undecided_program import shardings_by_name, undecided_copy
from spmdir.passes.propagate import PropagatePass
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.pipeline.remaining_passes import resolve_names
from spmdir.reshard.plan_tree import Planner, PlanTree, plan_tree
from spmdir.rules import OpRule
from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.joint_states import Unsolvable
from spmdir.search.nesting import Nested
from spmdir.search.problem import Annotation, StrategySource
from spmdir.search.restricted_node import Restricted, ends_of

_OPEN = parse_placement("?")

_SourceChange = Callable[[StrategySource], StrategySource]
"""Replaces the strategies of a node."""


@attrs.frozen(eq=False)
class Alternative:
    """The decision under a change.

    Attributes:
        strategies: axis → the strategy of each node.
        seconds: its objective.
    """

    strategies: Mapping[str, list[Strategy]]
    seconds: float


class DecidedProgram:
    """The decision of a pipeline for the first function of a module.

    Attributes:
        module: a decided copy of the module.
        mesh: the mesh of the decision.
        search: the search that made the decision.
        solution: the decision.
        seconds: its objective.
        differing: names of the values whose shardings in the text differ from this decision; empty unless the module
            was decided before.
    """

    def __init__(self, module: ModuleOp, pipeline: Pipeline):
        """Decide a copy of `module`. A decided module is decided again from its user annotations.

        Raises:
            SpmdirError: the pipeline has no propagate; propagate or a pass before it rejects the module; or the module
                is decided and keeps no user annotations.
        """
        shardings_in_text = shardings_by_name(module) if GIVEN in ir.main_function(module).attributes else {}
        copy, pipeline = undecided_copy(module, pipeline)
        propagate = next((instance for instance in pipeline.made() if isinstance(instance, PropagatePass)), None)
        if propagate is None:
            raise UnsupportedError(
                f"the pipeline '{pipeline}' has no pass that decides shardings; expected a pipeline with "
                "propagate: add it"
            )
        self._original = module
        copy = run_passes(copy, pipeline.before("propagate"))
        context, self.function = pipeline.context(), ir.main_function(copy)
        self.search, self.solution, self.seconds = propagate.decide(context, copy, self.function)
        decided_shardings = shardings_by_name(copy) if shardings_in_text else {}
        self.differing = tuple(
            [name for name, sharding in shardings_in_text.items() if decided_shardings.get(name, sharding) != sharding]
        )
        self.module, self._rules = copy, pipeline.rules
        self.mesh: Mesh = self.search.problem.mesh
        self.problem = self.search.problem
        self.strategies = self.solution.strategies
        self._alternatives: dict[tuple[int, StrategySource], Alternative | None] = {}

    @cached_property
    def nested(self) -> Nested:
        """The shardings of the decision."""
        return self.search.nested(self.solution)

    @cached_property
    def producer(self) -> dict[int, int]:
        """Value → the node that produces it."""
        return {value: index for index, node in enumerate(self.problem.nodes) for value in node.results}

    @cached_property
    def users(self) -> dict[int, list[tuple[int, int]]]:
        """Value → the (node, operand) pairs that use it."""
        users_of: dict[int, list[tuple[int, int]]] = {value: [] for value in range(len(self.problem.values))}
        for index, node in enumerate(self.problem.nodes):
            for slot, value in enumerate(node.operands):
                if value not in self.problem.ties:
                    users_of[value].append((index, slot))
        return users_of

    @cached_property
    def values(self) -> dict[str, int]:
        """Name in the text → number of the value."""
        numbers: dict[str, int] = {}
        for index, producer in enumerate(self.search.makers):
            results = self.problem.nodes[index].results
            if not isinstance(producer, int):
                values = [producer] if isinstance(producer, SSAValue) else list(producer.results)
                numbers.update((text_name(value), number) for value, number in zip(values, results, strict=False))
        return numbers

    @cached_property
    def names(self) -> dict[int, str]:
        """Number of a value → its name in the text."""
        return {number: name for name, number in self.values.items()}

    def resolve_name(self, selector: str) -> str:
        """Return a selector that matches names of the decided function.

        A name in the function of outlined layers is replaced by the name of that value in the first layer. Any other
        selector is returned unchanged.
        """
        return resolve_names(self._original, [selector], self.values)[selector]

    def rule(self, node: int) -> OpRule | None:
        """Return the rule of a node; None if the node is not a torch op, or has no rule."""
        return self.search.rules[node]

    def name(self, node: int) -> str:
        """Return the name of the first result of a node, or a description of a result of the function.

        A result with the name of an argument is a gradient or the new value: `gradient of w (result 1)`.
        """
        producer = self.search.makers[node]
        if not isinstance(producer, int):
            return self.names[self.problem.nodes[node].results[0]]
        label = function_attrs(self.function, "res_attrs", producer).get("spmd.name")
        if not isinstance(label, StringAttr):
            return f"result {producer}"
        value = ir.terminator(self.function).operands[producer]
        text, gradient_of = label.data, label.data.removeprefix("grad.")
        if gradient_of in self._arguments:
            is_gradient = text != gradient_of or self._kinds.get(value) == "gradients"
            text = f"{'gradient' if is_gradient else 'new value'} of {gradient_of}"
        return f"{printable(text)} (result {producer})"

    def op(self, node: int) -> str:
        """Return the name of the op of a node, `argument` or `result`."""
        producer = self.search.makers[node]
        if isinstance(producer, int):
            return "result"
        return producer.name if isinstance(producer, ValueOp) else "argument"

    def phase(self, node: int) -> int:
        """Return the index in `PHASES` of a node: 0 for arguments, the phase of the producer for results."""
        producer = self.search.makers[node]
        if isinstance(producer, int):
            producer = ir.terminator(self.function).operands[producer]
        op = producer.op if isinstance(producer, OpResult) else producer
        return PHASES.index(self._phases[op]) if isinstance(op, ValueOp) else 0

    @cached_property
    def _phases(self) -> dict[Operation, str]:
        """Op → forward, backward or optimizer."""
        return phases(self.function, self._kinds)

    @cached_property
    def _kinds(self) -> dict[SSAValue, str]:
        """Value → its kind of memory, such as gradients."""
        return memory_classes(self.function, self._rules)

    @cached_property
    def _arguments(self) -> set[str]:
        """The names of the arguments of the function."""
        return {signature_name(self.function, "arg_attrs", index) for index in range(len(self.function.args))}

    @cached_property
    def occurrence(self) -> list[int]:
        """For each node, its index among equal ops from one source line and module; 0 for nodes without a module."""
        counts: Counter[object] = Counter()
        occurrences = []
        for node in range(len(self.problem.nodes)):
            places = self.source_places(node)
            key = tuple(places.paths), tuple(places.frames), self.op(node)
            occurrences.append(counts[key])
            counts[key] += bool(places.paths)  # without a module path, the count stays 0
        return occurrences

    def location(self, node: int) -> Location | None:
        """Return the source location of a node."""
        producer = self.search.makers[node]
        return location_of(producer) if isinstance(producer, ValueOp) else None

    def annotation(self, node: int, axis: str) -> Placement | None:
        """Return the placement that the user annotated for a node on an axis: R if the annotation omits the axis.

        None if the node has no annotation, or all its annotations leave the axis open.
        """
        source = self.problem.nodes[node].source
        for sharding in source.annotations:
            if axis not in sharding.open_axes:
                return sharding[axis]
        return None

    def source_places(self, node: int) -> SourcePlaces:
        """Return the module paths of a node, and the frames of its call stack."""
        producer = self.search.makers[node]
        return places_of(producer.location) if isinstance(producer, ValueOp) else SourcePlaces()

    def plan_reshard(self, value: int, targets: tuple[Sharding, ...]) -> PlanTree:
        """Return the plan that reshards a value from its produced sharding.

        Args:
            targets: the shardings to reach, without the produced one.
        """
        root = self.mesh.root or self.mesh
        planner = Planner(root, self.problem.topology, self.problem.collectives)
        return plan_tree(self.problem.values[value], self.nested.produced[value], targets, planner)

    @cached_property
    def reshard_seconds(self) -> list[float]:
        """For each value, the seconds of all its reshards."""
        seconds = [0.0] * len(self.problem.values)
        for value, users in self.users.items():
            produced = self.nested.produced[value]
            needed = dict.fromkeys(self.nested.needed[node][slot] for node, slot in users)
            targets = tuple([sharding for sharding in needed if sharding != produced])
            seconds[value] = self.plan_reshard(value, targets).seconds if targets else 0.0
        return seconds

    def equal_nodes(self, node: int) -> Sequence[int]:
        """Return the nodes of equal layers that share one decision with `node`, including `node`."""
        return self.search.alike(node)

    def decide_without_strategy(self, node: int, axis: str) -> Alternative | None:
        """Forbid the strategy of a node and its equal nodes on an axis, and decide again.

        Return None if the op has only this strategy.
        """
        chosen = ends_of(self.strategies[axis][node])
        return self._decide_changed(node, self._exclude(axis, lambda strategy: ends_of(strategy) == chosen))

    def decide_with_sharded_result(self, node: int, axis: str, position: int) -> Alternative | None:
        """Require a node and its equal nodes to shard a result on an axis, and decide again; None if they cannot."""
        change = self._exclude(axis, lambda strategy: strategy.results[position].trait != "shard")
        return self._decide_changed(node, change)

    def decide_without_annotation(self, node: int, axis: str) -> Alternative | None:
        """Open an axis in the annotations of a node and its equal nodes, and decide again; None if impossible."""

        def open_axis(source: StrategySource) -> StrategySource:
            if isinstance(source, OpStrategies):
                results = tuple(sharding and sharding.replace(axis, _OPEN) for sharding in source.results)
                return attrs.evolve(source, results=results)
            assert isinstance(source, Annotation) and source.sharding is not None
            return attrs.evolve(source, sharding=source.sharding.replace(axis, _OPEN))

        return self._decide_changed(node, open_axis)

    def forbid(self, placements: Iterable[tuple[str, str, Placement]]) -> None:
        """Forbid placements of values and of their equal values, decide again, and write the decision to the module.

        If the decision does not contain these placements, it does not change.

        Args:
            placements: (name of a value, axis, forbidden placement).

        Raises:
            ShardingError: no placement of a value is left.
        """
        sources: dict[int, StrategySource] = {}
        changes_decision = False
        for name, axis, placement in placements:
            node = self.producer[self.values[name]]
            position = self.problem.nodes[node].results.index(self.values[name])
            changes_decision |= self.strategies[axis][node].results[position] == placement
            for index in self.equal_nodes(node):
                source = sources.get(index, self.problem.nodes[index].source)
                sources[index] = self._exclude_placement(axis, position, placement)(source)
        if not changes_decision:
            return
        try:
            search, solution = self.search.again(sources, self.solution)
        except Unsolvable as error:
            name_of_value = self.names.get(self.problem.nodes[error.node].results[0], "a result")
            raise ShardingError(
                f"all placements of {name_of_value} on axis '{error.axis}' are forbidden; expected at least "
                "one that is allowed: forbid fewer placements"
            ) from None
        search.write(solution)

    def _exclude(self, axis: str, is_excluded: Callable[[Strategy], bool]) -> _SourceChange:
        """Return the change that excludes the strategies of a node on an axis for which `is_excluded` is true."""

        def restrict(source: StrategySource) -> StrategySource:
            candidates = source.candidates(axis, self.mesh.sizes[axis])
            excluded = frozenset([ends_of(strategy) for strategy in candidates if is_excluded(strategy)])
            return Restricted(source, axis, excluded)

        return restrict

    def _exclude_placement(self, axis: str, position: int, placement: Placement) -> _SourceChange:
        """Return the change that excludes a placement of a result on an axis."""
        return self._exclude(axis, lambda strategy: strategy.results[position] == placement)

    def _decide_changed(self, node: int, change: _SourceChange) -> Alternative | None:
        """Change the strategies of a node and its equal nodes, and decide again; None if no strategy is left.

        Decisions are cached.
        """
        nodes = self.equal_nodes(node)
        source = change(self.problem.nodes[node].source)  # equal nodes share their source
        key = nodes[0], source
        if key not in self._alternatives:
            say("explain: deciding again with a change of {}", self.name(nodes[0]))
            self._alternatives[key] = self._decide_with_sources(dict.fromkeys(nodes, source))
        return self._alternatives[key]

    def _decide_with_sources(self, sources: Mapping[int, StrategySource]) -> Alternative | None:
        """Decide again with other strategies for some nodes; None if a node has none left."""
        for source in dict.fromkeys(sources.values()):
            if not all(source.candidates(axis, size) for axis, size in self.mesh.axes):
                return None
        try:
            with collector_paused():
                _, solution = self.search.again(sources, self.solution)
        except Unsolvable:
            return None
        return Alternative(solution.strategies, solution.cost)
