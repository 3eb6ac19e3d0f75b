"""The search for a function on one mesh, and the memory of a rank for its decisions."""

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
from spmdir.analysis.sub_axes import sub_axes_shard_evenly
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.collectives import Collective
from spmdir.dialects.context import IRContext
from spmdir.dialects.names import text_name
from spmdir.dialects.reshard_ops import unresharded
from spmdir.dialects.value_op import ValueOp
from spmdir.pipeline.pipeline import PARTITIONING, Step, as_pipeline
from spmdir.pipeline.remaining_passes import bind_examples
from spmdir.pipeline.trials import run_trial
from spmdir.schedule.memory import find_peak
from spmdir.schedule.simulate import Execution, simulate
from spmdir.search.hidden_transfers import Scheduled, fastest
from spmdir.search.joint_cost import compute_seconds
from spmdir.search.joint_strategies import is_legal
from spmdir.search.memory_budget import Decision, PeakMemory, cheapest_within
from spmdir.search.nesting import Nested, nest, reshard_seconds
from spmdir.search.problem import Problem, StrategySource
from spmdir.search.shared_messages import counted_fractions
from spmdir.search.solve import Search, Solution
from spmdir.search.value_prices import NO_PRICES, ValuePrices
from spmdir.transforms.write_decision import annotate, user_annotations

_NODE = "node {} of the search"
"""The name of an op's location in a copy of the function: the index of its node."""


UNSENT = 0.5
"""The smallest exposed part of a reshard that does not occur yet: other reshards may be hidden by the same compute."""


def exposed_parts(
    run: Execution,
    units: Sequence[Unit],
    owner: Callable[[SSAValue], tuple[int, bool] | None],
    values: Sequence[TensorMeta],
    bandwidth: float,
) -> tuple[float, ...]:
    """Return, for each value, the exposed part of the time of its reshards in a simulated run, from 0 to 1.

    For a value without a reshard, it is an estimate: a transfer at full bandwidth is exposed by the part that exceeds
    the time between the producer and the first user. The estimate is at least `UNSENT`. For example, a transfer of 4 ms
    in a window of 1 ms would be exposed by 3/4.

    Args:
        units: the ops of each task of `run`.
        owner: value of the program → (value of the problem, whether the first value is a resharded copy of the second).
        values: the global type of each value.
        bandwidth: the bandwidth of a rank, in bytes per second.
    """
    # For each value: the exposed parts of its collectives, and the times of its producer and of its first user.
    measured_parts: list[list[float]] = [[] for _ in values]
    available_at, needed_at = [0.0] * len(values), [run.seconds] * len(values)
    for task, ops in enumerate(units):
        operand_owners = [owner(operand) for op in ops for operand in op.operands]
        read_values = [owned[0] for owned in operand_owners if owned is not None]
        for value in read_values:
            needed_at[value] = min(needed_at[value], run.begin[task])
        result_owners = [owner(result) for op in ops for result in op.results]
        for value in [value for value, is_copy in filter(None, result_owners) if not is_copy]:
            available_at[value] = max(available_at[value], run.end[task])
        transfer = run.program.tasks[task].transfer
        if transfer is not None and transfer.seconds and isinstance(ops[0], Collective) and len(ops) == 1:
            for value in read_values:
                measured_parts[value].append(min(run.transfers[task].exposed / transfer.seconds, 1.0))
    return tuple(
        mean(parts) if parts else _estimate_exposed(needed - available, meta.bytes / bandwidth)
        for parts, available, needed, meta in zip(measured_parts, available_at, needed_at, values, strict=True)
    )


def _estimate_exposed(window: float, transfer_seconds: float) -> float:
    """Return the exposed part of a transfer that `window` seconds of compute can hide, but at least `UNSENT`."""
    return max(UNSENT, 1 - window / transfer_seconds) if transfer_seconds else 1.0


class MeshSearch:
    """The search for a function on one mesh. Create it before a decision is written to the function.

    Args:
        makers: the op, argument or result of each node of `problem`.
        effort: the largest number of rounds of messages.
        gap: as in `BlockSearch.run`.
        context: the context with the pipeline for trial runs.
        is_even: whether sub-axes of one axis that shard one factor must shard it evenly.
        shares_messages: whether to ignore the latency of messages that a schedule shares.
        limit: if all decisions cost more, `free` is one of them, with an infinite cost.

    Attributes:
        rules: the rule of each node that is a torch op.
        free: the solution without a memory limit.

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
        limit: float = math.inf,
        gap: float = 0.0,
    ):
        self.function, self.makers, self.problem, self._context = function, makers, problem, context
        self._is_even, self.rules = is_even, rules_of(problem)
        # name of the location of an op in a trial copy → its node
        self._node_of_location = {_NODE.format(index): index for index in range(len(problem.nodes))}
        self._annotations = [user_annotations(function, maker, problem.mesh) for maker in makers]
        self._search = Search(problem, effort, gap=gap)
        self._nested: tuple[Solution, Nested] | None = None  # the last result of `nested`
        prices = ValuePrices(exposed=counted_fractions(problem)) if shares_messages else NO_PRICES
        self.free = self._search.solution(prices, limit=limit)

    def again(self, sources: Mapping[int, StrategySource], start: Solution) -> tuple[MeshSearch, Solution]:
        """Decide again with new strategies for some nodes. Return a new search and its solution; `self` stays the same.

        Args:
            sources: node → the source of its strategies.
            start: the earlier solution. Its prices are used again, and the search starts from its strategies.

        Raises:
            Unsolvable: a node is left without a strategy.
        """
        new_search = copy.copy(self)
        new_search.__dict__.pop("contradicted", None)
        nodes, new_search._annotations = list(self.problem.nodes), list(self._annotations)
        for index, source in sources.items():
            nodes[index] = attrs.evolve(nodes[index], source=source)
            new_search._annotations[index] = list(source.annotations)
        new_search.problem = attrs.evolve(self.problem, nodes=tuple(nodes))
        new_search._search = self._search.of(new_search.problem)
        new_search.free = new_search._search.solution(start.prices, start)
        return new_search, new_search.free

    def alike(self, node: int) -> Sequence[int]:
        """Return the nodes that are decided together with `node`, as equal layers are, including `node`."""
        return self._search.alike(node)

    def nested(self, solution: Solution) -> Nested:
        """Return the shardings of a solution, and the costs of its reshards."""
        if self._nested is None or self._nested[0] is not solution:
            nesting = nest(self.problem, solution.strategies, self._annotations, self.rules, solution.orders)
            self._nested = solution, nesting
        return self._nested[1]

    def is_legal(self, solution: Solution) -> bool:
        """Return whether sub-axes of one axis shard each factor evenly; True if `is_even` does not require it."""
        return not self._is_even or sub_axes_shard_evenly(self.problem, self.rules, solution.strategies)

    @cached_property
    def contradicted(self) -> tuple[int, ...]:
        """Return the nodes whose strategies in the solution `free` are illegal: annotations exclude all legal ones."""
        axes = self.problem.mesh.axes
        contradicted_nodes: list[int] = []
        for index, node in enumerate(self.problem.nodes):
            strategy_on_axes = [self.free.strategies[axis][index] for axis, _ in axes]
            if not is_legal(node.source, axes, strategy_on_axes):
                contradicted_nodes.append(index)
        return tuple(contradicted_nodes)

    def write(self, solution: Solution) -> float:
        """Write a solution to the function, in place of any other, and return its modelled seconds."""
        annotate(self.function, self.problem, self.makers, self.rules, self.nested(solution))
        return compute_seconds(self.problem, solution.strategies, self.problem.mesh) + self.nested(solution).seconds

    def counted_seconds(self, solution: Solution, counted: Sequence[float]) -> float:
        """Return the modelled seconds of a solution, where only the part `counted` of each value's reshards counts."""
        seconds_by_value = reshard_seconds(self.problem, self.nested(solution))
        counted_reshards = sum(part * seconds for part, seconds in zip(counted, seconds_by_value, strict=True))
        return compute_seconds(self.problem, solution.strategies, self.problem.mesh) + counted_reshards

    def within(self, budget: float, free: Decision | None) -> Decision:
        """Return the cheapest decision within `budget` bytes, or the decision with the smallest peak if none fits.

        Args:
            free: the decision without a limit, if it was computed before.
        """
        if free is None:
            is_priced = self.free.cost < math.inf  # else the search stopped at `limit`: search without it
            free = self.decision(self.free if is_priced else self._search.solution(self.free.prices))
        return cheapest_within(free, budget, len(self.problem.values), self._decide)

    def name(self, value: int) -> str:
        """Return the name of a value in the text of the program."""
        for maker, node in zip(self.makers, self.problem.nodes, strict=True):
            if value in node.results and not isinstance(maker, int):
                return text_name(maker if isinstance(maker, SSAValue) else maker.results[node.results.index(value)])
        return "%"

    def fastest(self, plain: Solution, budget: float) -> tuple[Scheduled, Scheduled]:
        """Return the scheduled decision `plain`, and the fastest scheduled decision.

        The peak of the fastest decision is at most `budget` bytes, or at most the peak of `plain`, if that is larger.
        """
        limit = max(budget, self.decision(plain).memory.peak_bytes) if budget < math.inf else budget
        first = self._schedule_copy(plain, limit)
        return first, fastest(first, lambda prices: self._schedule_copy(self._search.solution(prices), limit))

    def _decide(self, prices: ValuePrices) -> Decision:
        """Return the decision of a search with other prices of values."""
        return self.decision(self._search.solution(prices))

    def decision(self, solution: Solution) -> Decision:
        """Write a solution to the function, and return it with the peak memory of a rank."""
        if not self.is_legal(solution):
            return Decision(solution, PeakMemory(math.inf, ()))
        self.write(solution)
        return Decision(solution, self._find_live_values(self._partition_copy()))

    def _schedule_copy(self, solution: Solution, limit: float) -> Scheduled:
        """Write a solution to the function, and return it with the times of the default schedule.

        The time is infinite if the solution is illegal, or needs more than `limit` bytes.
        """
        rejected = Scheduled(solution, math.inf, (1.0,) * len(self.problem.values))
        if not self.is_legal(solution):
            return rejected
        self.write(solution)
        local = self._partition_copy()
        if limit < math.inf and self._find_live_values(local).peak_bytes > limit:
            return rejected
        memory = str(math.ceil(limit)) if limit < math.inf else "none"
        run_trial(self._context, local, (Step("schedule", (("memory", memory),)),))
        function, mesh = ir.functions(local)[0], ir.mesh(local)
        program, units = rank_program(function, mesh, self._context.rules, self.problem.topology)
        run = simulate(program)
        exposed = exposed_parts(run, units, self._owner, self.problem.values, self.problem.topology.intra_bandwidth)
        return Scheduled(solution, run.seconds, exposed)

    def _partition_copy(self) -> ModuleOp:
        """Return the program of one rank for a copy of the decided function.

        Raises:
            SpmdirError: the function cannot be localized.
        """
        return run_trial(self._context, self._copy(), PARTITIONING)

    def _find_live_values(self, local: ModuleOp) -> PeakMemory:
        """Return the live buffers at the peak of a local program. Temporary buffers count as the first result."""
        memory = live_memory(
            ir.functions(local)[0], ir.mesh(local), self._context.rules, {}, self.problem.topology.imbalance
        )
        peak_bytes, _, live_buffers = find_peak(memory.program)
        live: list[tuple[int, bool, float]] = []  # (value of the problem, whether it is a resharded copy, bytes)
        for buffer in live_buffers:
            owner, size = self._owner(memory.values[buffer]), memory.buffers[buffer].bytes
            if owner is not None and size > 0:
                live.append((*owner, size))
        return PeakMemory(peak_bytes, tuple(sorted(live, key=lambda entry: -entry[2])))

    def _copy(self) -> ModuleOp:
        """Return a module with a copy of the function, with numbers for sizes. Locations of ops contain their nodes."""
        module = self.function.parent_op()
        assert isinstance(module, ModuleOp)
        new_module, position = module.clone(), ir.functions(module).index(self.function)
        for index, function in enumerate(ir.functions(new_module)):
            if index != position:
                Rewriter.erase_op(function)
        node_of_op = {maker: index for index, maker in enumerate(self.makers) if isinstance(maker, ValueOp)}
        new_ops = ir.functions(new_module)[0].body.block.ops
        for old, new in zip(self.function.body.block.ops, new_ops, strict=True):
            if isinstance(old, ValueOp) and old in node_of_op:
                new.location = NameLoc(StringAttr(_NODE.format(node_of_op[old])), new.location)
        return bind_examples(new_module, as_pipeline(self._context.pipeline))

    def _owner(self, value: SSAValue) -> tuple[int, bool] | None:
        """Return the value of the problem that a value of a trial copy stems from, and whether reshards are between.

        A result index that the node does not have counts as its first result. None if the value is the result of an op
        that is no node of the problem, such as a piece of a local form.
        """
        source = unresharded(value)
        is_copy = source is not value
        if isinstance(source, BlockArgument):
            return self.problem.nodes[source.index].results[0], is_copy  # arguments are the first nodes
        if not isinstance(source, OpResult) or not isinstance(source.op.location, NameLoc):
            return None
        node = self._node_of_location.get(source.op.location.desc.data)
        if node is None:
            return None
        results = self.problem.nodes[node].results
        return results[source.index if source.index < len(results) else 0], is_copy
