"""A function as `propagate` decides it, and as it would be decided if something were different."""

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
from spmdir.core.collector import collector_paused
from spmdir.core.errors import Location, ShardingError, UnsupportedError, printable
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
from spmdir.explanation.asked import opened, shardings_of_all
from spmdir.passes.propagate import PropagatePass
from spmdir.pipeline.finish import resolve_names
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.reshard.plan_tree import Planner, PlanTree, plan_tree
from spmdir.rules import OpRule
from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.joint_states import Unsolvable
from spmdir.search.nesting import Nested
from spmdir.search.problem import Annotation, StrategySource
from spmdir.search.restricted import Restricted, ends_of

_OPEN = parse_placement("?")

_Change = Callable[[StrategySource], StrategySource]
"""Gives the strategies of a node others."""


@attrs.frozen(eq=False)
class Otherwise:
    """What is decided if something is different.

    Attributes:
        strategies: axis → the strategy of each node.
        seconds: how long a step of a rank takes so.
    """

    strategies: Mapping[str, list[Strategy]]
    seconds: float


class DecidedProgram:
    """The first function of a module as a pipeline decides it.

    Attributes:
        module: as it is decided.
        mesh: over whose axes it is decided.
        search: what decided it.
        solution: what was decided.
        seconds: how long a step of a rank takes so.
        differing: names of the values that have another sharding in the text, of one that keeps what was annotated.
    """

    def __init__(self, module: ModuleOp, pipeline: Pipeline):
        """Decide a copy of `module`; one that was decided, and keeps what was annotated, from there again.

        Raises:
            SpmdirError: the pipeline has no propagate, or a pass before it or propagate itself rejects the module; or
                it was decided, and does not keep what was annotated.
        """
        former = shardings_of_all(module) if GIVEN in ir.main_function(module).attributes else {}
        copy, pipeline = opened(module, pipeline)
        deciding = next((made for made in pipeline.made() if isinstance(made, PropagatePass)), None)
        if deciding is None:
            raise UnsupportedError(f"the pipeline '{pipeline}' decides nothing; expected one with propagate in it")
        self._given = module
        copy = run_passes(copy, pipeline.before("propagate"))
        context, self.function = pipeline.context(), ir.main_function(copy)
        self.search, self.solution, self.seconds = deciding.decide(context, copy, self.function)
        after = shardings_of_all(copy) if former else {}
        self.differing = tuple([name for name, sharding in former.items() if after.get(name, sharding) != sharding])
        self.module, self._rules = copy, pipeline.rules
        self.mesh: Mesh = self.search.problem.mesh
        self.problem = self.search.problem
        self.strategies = self.solution.strategies
        self._otherwise: dict[tuple[int, StrategySource], Otherwise | None] = {}

    @cached_property
    def nested(self) -> Nested:
        """The shardings that the decision means."""
        return self.search.nested(self.solution)

    @cached_property
    def maker(self) -> dict[int, int]:
        """Value → the node that makes it."""
        return {value: index for index, node in enumerate(self.problem.nodes) for value in node.results}

    @cached_property
    def users(self) -> dict[int, list[tuple[int, int]]]:
        """Value → the (node, operand) pairs that use it."""
        found: dict[int, list[tuple[int, int]]] = {value: [] for value in range(len(self.problem.values))}
        for index, node in enumerate(self.problem.nodes):
            for slot, value in enumerate(node.operands):
                if value not in self.problem.ties:
                    found[value].append((index, slot))
        return found

    @cached_property
    def values(self) -> dict[str, int]:
        """The name of each value in text → its number."""
        found: dict[str, int] = {}
        for index, maker in enumerate(self.search.makers):
            results = self.problem.nodes[index].results
            if not isinstance(maker, int):
                named = [maker] if isinstance(maker, SSAValue) else list(maker.results)
                found.update((text_name(value), number) for value, number in zip(named, results, strict=False))
        return found

    @cached_property
    def names(self) -> dict[int, str]:
        """Value → how text names it."""
        return {number: name for name, number in self.values.items()}

    def named(self, at: str) -> str:
        """Return `at`, or the name in the first layer of a value that text names in the function of equal layers."""
        return resolve_names(self._given, [at], self.values)[at]

    def rule(self, node: int) -> OpRule | None:
        """Return the rule of a node; None where it is no torch op, or has none."""
        return self.search.rules[node]

    def name(self, node: int) -> str:
        """Return how a text names what a node makes first; of a result of the function, what it is."""
        maker = self.search.makers[node]
        if not isinstance(maker, int):
            return self.names[self.problem.nodes[node].results[0]]
        said = function_attrs(self.function, "res_attrs", maker).get("spmd.name")
        if not isinstance(said, StringAttr):
            return f"result {maker}"
        value = ir.terminator(self.function).operands[maker]
        told, gradient_of = said.data, said.data.removeprefix("grad.")
        if gradient_of in self._arguments:
            is_gradient = told != gradient_of or self._kinds.get(value) == "gradients"
            told = f"{'gradient' if is_gradient else 'new value'} of {gradient_of}"
        return f"{printable(told)} (result {maker})"

    def op(self, node: int) -> str:
        """Return what a node is: the name of an op, `argument` or `result`."""
        maker = self.search.makers[node]
        return "result" if isinstance(maker, int) else maker.name if isinstance(maker, ValueOp) else "argument"

    def phase(self, node: int) -> int:
        """Return in which of `PHASES` a node is; arguments are in the first, results where they are made."""
        maker = self.search.makers[node]
        if isinstance(maker, int):
            maker = ir.terminator(self.function).operands[maker]
        op = maker.op if isinstance(maker, OpResult) else maker
        return PHASES.index(self._phases[op]) if isinstance(op, ValueOp) else 0

    @cached_property
    def _phases(self) -> dict[Operation, str]:
        return phases(self.function, self._kinds)

    @cached_property
    def _kinds(self) -> dict[SSAValue, str]:
        return memory_classes(self.function, self._rules)

    @cached_property
    def _arguments(self) -> set[str]:
        return {signature_name(self.function, "arg_attrs", index) for index in range(len(self.function.args))}

    @cached_property
    def occurrence(self) -> list[int]:
        """The number of each node among those of its kind that one line of source makes in one module; 0 in none."""
        seen: Counter[object] = Counter()
        found = []
        for node in range(len(self.problem.nodes)):
            places = self.places(node)
            key = tuple(places.paths), tuple(places.frames), self.op(node)
            found.append(seen[key])
            seen[key] += bool(places.paths)
        return found

    def location(self, node: int) -> Location | None:
        """Return where the source has a node."""
        maker = self.search.makers[node]
        return location_of(maker) if isinstance(maker, ValueOp) else None

    def annotated(self, node: int, axis: str) -> Placement | None:
        """Return the placement that a user annotation gives a node on an axis; None if there is none."""
        source = self.problem.nodes[node].source
        for sharding in source.annotations:
            if axis not in sharding.open_axes:
                return sharding[axis]
        return None

    def places(self, node: int) -> SourcePlaces:
        """Return the module path of a node, and the frames of its call stack."""
        maker = self.search.makers[node]
        return places_of(maker.location) if isinstance(maker, ValueOp) else SourcePlaces()

    def reshard(self, value: int, targets: tuple[Sharding, ...]) -> PlanTree:
        """Return how a value gets from its sharding to others.

        Args:
            targets: other ones than its own.
        """
        root = self.mesh.root or self.mesh
        planner = Planner(root, self.problem.topology, self.problem.collectives)
        return plan_tree(self.problem.values[value], self.nested.produced[value], targets, planner)

    @cached_property
    def reshard_seconds(self) -> list[float]:
        """What all reshards of each value take."""
        found = [0.0] * len(self.problem.values)
        for value, users in self.users.items():
            made = self.nested.produced[value]
            needed = dict.fromkeys(self.nested.needed[node][slot] for node, slot in users)
            targets = tuple([sharding for sharding in needed if sharding != made])
            found[value] = self.reshard(value, targets).seconds if targets else 0.0
        return found

    def alike(self, node: int) -> Sequence[int]:
        """Return the nodes that are decided as one with `node`."""
        return self.search.alike(node)

    def without_strategy(self, node: int, axis: str) -> Otherwise | None:
        """Return what is decided if a node and those alike may not have its strategy on an axis; None if it has no
        other."""
        chosen = ends_of(self.strategies[axis][node])
        return self._again(node, self._without(axis, lambda one: ends_of(one) == chosen))

    def with_sharded_result(self, node: int, axis: str, position: int) -> Otherwise | None:
        """Return what is decided if a node and those alike must shard a result on an axis; None if they cannot."""
        return self._again(node, self._without(axis, lambda one: one.results[position].trait != "shard"))

    def without_annotation(self, node: int, axis: str) -> Otherwise | None:
        """Return what is decided if the annotations of a node and of those alike leave an axis open."""

        def opened(source: StrategySource) -> StrategySource:
            if isinstance(source, OpStrategies):
                return attrs.evolve(source, results=tuple(s and s.replace(axis, _OPEN) for s in source.results))
            assert isinstance(source, Annotation) and source.sharding is not None
            return attrs.evolve(source, sharding=source.sharding.replace(axis, _OPEN))

        return self._again(node, opened)

    def forbid(self, placed: Iterable[tuple[str, str, Placement]]) -> None:
        """Decide again where values may not be placed so, they and those alike; the module has that decision then.

        What is decided stays if no value is placed so in it.

        Args:
            placed: name of a value, axis, and placement.

        Raises:
            ShardingError: a value cannot be placed otherwise.
        """
        sources: dict[int, StrategySource] = {}
        is_decided_so = False
        for name, axis, placement in placed:
            node = self.maker[self.values[name]]
            position = self.problem.nodes[node].results.index(self.values[name])
            is_decided_so |= self.strategies[axis][node].results[position] == placement
            for index in self.alike(node):
                source = sources.get(index, self.problem.nodes[index].source)
                sources[index] = self._elsewhere(axis, position, placement)(source)
        if not is_decided_so:
            return
        try:
            search, solution = self.search.again(sources, self.solution)
        except Unsolvable as error:
            named = self.names.get(self.problem.nodes[error.node].results[0], "a result")
            raise ShardingError(f"{named} cannot be placed otherwise on axis '{error.axis}'; forbid less") from None
        search.write(solution)

    def _without(self, axis: str, leaves_out: Callable[[Strategy], bool]) -> _Change:
        """Return the change that leaves strategies of a node on an axis out."""

        def restricted(source: StrategySource) -> StrategySource:
            listed = source.candidates(axis, self.mesh.sizes[axis])
            return Restricted(source, axis, frozenset([ends_of(one) for one in listed if leaves_out(one)]))

        return restricted

    def _elsewhere(self, axis: str, position: int, placement: Placement) -> _Change:
        """Return the change by which a result may not be placed so on an axis."""
        return self._without(axis, lambda one: one.results[position] == placement)

    def _again(self, node: int, change: _Change) -> Otherwise | None:
        """Return what is decided if a node and those alike have other strategies; None if one has none left.

        What is asked again is decided once.
        """
        alike, source = self.alike(node), change(self.problem.nodes[node].source)  # of one part, so of one source
        key = alike[0], source
        if key not in self._otherwise:
            say("explain: what if {} were otherwise", self.name(alike[0]))
            self._otherwise[key] = self._decided_again(dict.fromkeys(alike, source))
        return self._otherwise[key]

    def _decided_again(self, sources: Mapping[int, StrategySource]) -> Otherwise | None:
        if not all(source.candidates(*axis) for source in dict.fromkeys(sources.values()) for axis in self.mesh.axes):
            return None
        try:
            with collector_paused():
                _, solution = self.search.again(sources, self.solution)
        except Unsolvable:
            return None
        return Otherwise(solution.strategies, solution.cost)
