"""The search for a function on one mesh, and what a rank holds under its decisions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from statistics import mean

import attrs
from xdsl.dialects.builtin import ModuleOp, NameLoc, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, OpResult, SSAValue
from xdsl.rewriter import Rewriter

from spmdir.analysis.live_memory import live_memory
from spmdir.analysis.local_programs.globalize import Unit
from spmdir.analysis.propagation.build_problem import Maker
from spmdir.analysis.propagation.op_strategies import rules_of
from spmdir.analysis.scheduling.rank_program import rank_program
from spmdir.analysis.sub_axes import fits
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.collectives import Collective
from spmdir.dialects.context import IRContext
from spmdir.dialects.names import text_name
from spmdir.dialects.reshard_ops import unresharded
from spmdir.dialects.value_op import ValueOp
from spmdir.pipeline.finish import bind_examples
from spmdir.pipeline.pipeline import PARTITIONING, Step, as_pipeline
from spmdir.pipeline.trials import run_trial
from spmdir.schedule.memory import find_peak
from spmdir.schedule.simulate import Execution, simulate
from spmdir.search.budget import Decision, Held, cheapest_within
from spmdir.search.hidden import Scheduled, fastest
from spmdir.search.joint_cost import compute_seconds
from spmdir.search.joint_strategies import is_legal
from spmdir.search.nesting import Nested, nest, reshard_seconds
from spmdir.search.problem import Problem, StrategySource
from spmdir.search.shared_messages import counted_fractions
from spmdir.search.solve import Search, Solution
from spmdir.search.worth import PLAIN, Worth
from spmdir.transforms.annotate import annotate, user_annotations

_NODE = "node {} of the search"
"""The name of the location of an op of a copy: its node."""


UNSENT = 0.5
"""The least part that is exposed of a reshard that there is not: others may want to be hidden by the same compute."""


def exposed_parts(
    run: Execution,
    units: Sequence[Unit],
    owner: Callable[[SSAValue], tuple[int, bool] | None],
    values: Sequence[TensorMeta],
    bandwidth: float,
) -> tuple[float, ...]:
    """Return, by value, the part of the time of its reshards that is exposed, as the program runs.

    Of a value that is not sent it is what does not fit, at full bandwidth, between where it is made and where it is
    used, but at least `UNSENT`.

    Args:
        units: the ops of each task of `run`.
        owner: returns the value that a value of the program is or is a copy of, and whether it is one.
        values: by number, what they are before they are sharded.
        bandwidth: of a rank, in bytes a second.
    """
    parts: list[list[float]] = [[] for _ in values]
    made, used = [0.0] * len(values), [run.seconds] * len(values)
    for task, ops in enumerate(units):
        read = [found[0] for op in ops for value in op.operands if (found := owner(value))]
        written = [found[0] for op in ops for value in op.results if (found := owner(value)) and not found[1]]
        for value in read:
            used[value] = min(used[value], run.begin[task])
        for value in written:
            made[value] = max(made[value], run.end[task])
        transfer = run.program.tasks[task].transfer
        if transfer is not None and transfer.seconds and isinstance(ops[0], Collective) and len(ops) == 1:
            for value in read:
                parts[value].append(min(run.transfers[task].exposed / transfer.seconds, 1.0))
    return tuple(
        mean(found) if found else _unsent(last - first, meta.bytes / bandwidth)
        for found, first, last, meta in zip(parts, made, used, values, strict=True)
    )


def _unsent(window: float, seconds: float) -> float:
    return max(UNSENT, 1 - window / seconds) if seconds else 1.0


class MeshSearch:
    """The search for a function on one mesh. It is made before any decision is written to the function.

    Args:
        makers: what each node of `problem` stands for.
        effort: the most turns of messages.
        context: by whose pipeline the program goes on.
        is_even: whether axes that shard one factor must shard it evenly if they are parts of one axis.
        shares_messages: whether the latency of messages that a schedule shares does not count.

    Attributes:
        rules: the rule of each node that is a torch op.
        free: what is decided if memory is free.

    Raises:
        Unsolvable: the user annotations leave a node without a strategy.
    """

    def __init__(
        self,
        function: FuncOp,
        makers: Sequence[Maker],
        problem: Problem,
        effort: int,
        context: IRContext,
        is_even: bool = False,
        shares_messages: bool = False,
    ):
        self.function, self.makers, self.problem, self._context = function, makers, problem, context
        self._is_even, self.rules = is_even, rules_of(problem)
        self._nodes = {_NODE.format(index): index for index in range(len(problem.nodes))}
        self._annotations = [user_annotations(function, maker, problem.mesh) for maker in makers]
        self._search = Search(problem, effort)
        self._nested: tuple[Solution, Nested] | None = None
        self.free = self._search.solution(Worth(exposed=counted_fractions(problem)) if shares_messages else PLAIN)

    def again(self, sources: Mapping[int, StrategySource], start: Solution) -> tuple[MeshSearch, Solution]:
        """Decide again with other strategies of some nodes; return the search, and what it finds.

        Args:
            sources: node → where its strategies come from.
            start: what was decided; the same counts beside time, and decisions near it are tried first.

        Raises:
            Unsolvable: a node is left without a strategy.
        """
        other = copy.copy(self)
        other.__dict__.pop("contradicted", None)
        nodes, other._annotations = list(self.problem.nodes), list(self._annotations)
        for index, source in sources.items():
            nodes[index] = attrs.evolve(nodes[index], source=source)
            other._annotations[index] = list(source.annotations)
        other.problem = attrs.evolve(self.problem, nodes=tuple(nodes))
        other._search = self._search.of(other.problem)
        other.free = other._search.solution(start.worth, start)
        return other, other.free

    def alike(self, node: int) -> Sequence[int]:
        """Return the nodes that are decided as one with `node`, those of equal layers; itself among them."""
        return self._search.alike(node)

    def nested(self, solution: Solution) -> Nested:
        """Return the shardings that a solution means, and what reshards between them take."""
        if self._nested is None or self._nested[0] is not solution:
            found = nest(self.problem, solution.strategies, self._annotations, self.rules, solution.orders)
            self._nested = solution, found
        return self._nested[1]

    def is_legal(self, solution: Solution) -> bool:
        """Return whether axes that were split shard evenly, as merged names require, if they have to."""
        return not self._is_even or fits(self.problem, self.rules, solution.strategies)

    @cached_property
    def contradicted(self) -> tuple[int, ...]:
        """Return the nodes that have no strategy for what is decided if memory is free: annotations leave them none."""
        chosen, axes = self.free.strategies, self.problem.mesh.axes
        joints = [[chosen[axis][index] for axis, _ in axes] for index in range(len(self.problem.nodes))]
        nodes = enumerate(zip(self.problem.nodes, joints, strict=True))
        return tuple(index for index, (node, joint) in nodes if not is_legal(node.source, axes, joint))

    def write(self, solution: Solution) -> float:
        """Write a solution to the function in the place of any other, and return the seconds that it takes so."""
        annotate(self.function, self.problem, self.makers, self.rules, self.nested(solution))
        return compute_seconds(self.problem, solution.strategies, self.problem.mesh) + self.nested(solution).seconds

    def counted_seconds(self, solution: Solution, counted: Sequence[float]) -> float:
        """Return the seconds that a solution takes, of the reshards of each value the part `counted`."""
        nested = self.nested(solution)
        sent = zip(counted, reshard_seconds(self.problem, nested), strict=True)
        return compute_seconds(self.problem, solution.strategies, self.problem.mesh) + sum(
            part * seconds for part, seconds in sent
        )

    def within(self, budget: float, free: Decision | None) -> Decision:
        """Return the cheapest decision found that holds at most `budget` bytes; if none does, that which holds least.

        Args:
            free: the decision where memory is free, if it is known.
        """
        return cheapest_within(free or self.decision(self.free), budget, len(self.problem.values), self._decide)

    def name(self, value: int) -> str:
        """Return how text names a value of the problem."""
        for maker, node in zip(self.makers, self.problem.nodes, strict=True):
            if value in node.results and not isinstance(maker, int):
                return text_name(maker if isinstance(maker, SSAValue) else maker.results[node.results.index(value)])
        return "%"

    def fastest(self, plain: Solution, budget: float) -> tuple[Scheduled, Scheduled]:
        """Return a decision as it runs scheduled, and the one found that takes least time so: that one, or one that
        holds at most `budget` bytes, or no more than that one does."""
        limit = max(budget, self.decision(plain).held.peak_bytes) if budget < math.inf else budget
        first = self._scheduled(plain, limit)
        return first, fastest(first, lambda worth: self._scheduled(self._search.solution(worth), limit))

    def _decide(self, worth: Worth) -> Decision:
        return self.decision(self._search.solution(worth))

    def decision(self, solution: Solution) -> Decision:
        """Write a solution to the function, and return it with what a rank holds under it."""
        if not self.is_legal(solution):
            return Decision(solution, Held(math.inf, ()))
        self.write(solution)
        return Decision(solution, self._held(self._partitioned()))

    def _scheduled(self, solution: Solution, limit: float) -> Scheduled:
        """Write a solution to the function, and return it as it runs scheduled, as the schedule pass does by default;
        it never ends if it is not legal, or holds more than `limit` bytes."""
        never = Scheduled(solution, math.inf, (1.0,) * len(self.problem.values))
        if not self.is_legal(solution):
            return never
        self.write(solution)
        local = self._partitioned()
        if limit < math.inf and self._held(local).peak_bytes > limit:
            return never
        memory = str(math.ceil(limit)) if limit < math.inf else "none"
        run_trial(self._context, local, (Step("schedule", (("memory", memory),)),))
        function, mesh = ir.functions(local)[0], ir.mesh(local)
        program, units = rank_program(function, mesh, self._context.rules, self.problem.topology)
        run = simulate(program)
        exposed = exposed_parts(run, units, self._owner, self.problem.values, self.problem.topology.intra_bandwidth)
        return Scheduled(solution, run.seconds, exposed)

    def _partitioned(self) -> ModuleOp:
        """Return a copy of the function alone, as it is decided, as the program of one rank.

        Raises:
            SpmdirError: it cannot be partitioned.
        """
        return run_trial(self._context, self._copy(), PARTITIONING)

    def _held(self, local: ModuleOp) -> Held:
        """Return what a rank holds that runs a copy of the function; what is held inside an op counts as its first
        result."""
        memory = live_memory(ir.functions(local)[0], ir.mesh(local), self._context.rules, {})
        most, _, held = find_peak(memory.program)
        live: list[tuple[int, bool, float]] = []
        for buffer in held:
            owner, size = self._owner(memory.values[buffer]), memory.buffers[buffer].bytes
            if owner is not None and size > 0:
                live.append((*owner, size))
        return Held(most, tuple(sorted(live, key=lambda entry: -entry[2])))

    def _copy(self) -> ModuleOp:
        """Return a module with a copy of the function alone, with numbers for sizes, each op located at its node."""
        module = self.function.parent_op()
        assert isinstance(module, ModuleOp)
        copy, position = module.clone(), ir.functions(module).index(self.function)
        for index, function in enumerate(ir.functions(copy)):
            if index != position:
                Rewriter.erase_op(function)
        nodes = {maker: index for index, maker in enumerate(self.makers) if isinstance(maker, ValueOp)}
        ops = self.function.body.block.ops, ir.functions(copy)[0].body.block.ops
        for old, new in zip(*ops, strict=True):
            if isinstance(old, ValueOp) and old in nodes:
                new.location = NameLoc(StringAttr(_NODE.format(nodes[old])), new.location)
        return bind_examples(copy, as_pipeline(self._context.pipeline))

    def _owner(self, value: SSAValue) -> tuple[int, bool] | None:
        """Return the value of the problem that a value of the copy is, or is a copy of, and whether it is one."""
        source = unresharded(value)
        if isinstance(source, BlockArgument):
            results, position = self.problem.nodes[source.index].results, 0
        elif isinstance(source, OpResult) and isinstance(source.op.location, NameLoc):
            node = self._nodes.get(source.op.location.desc.data)
            if node is None:
                return None
            results, position = self.problem.nodes[node].results, source.index
        else:
            return None
        return results[position if position < len(results) else 0], source is not value
