"""propagate: choose a sharding for every tensor value, by a search over the strategies of the ops' rules."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import attrs
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.analysis.propagation.build_problem import Maker, build_problem
from spmdir.analysis.propagation.op_strategies import OpStrategies, rules_of
from spmdir.analysis.routes import check_needs, check_routed_annotations
from spmdir.analysis.sub_axes import annotated_splits, split_weights, user_shardings, wanted_splits
from spmdir.analysis.type_check import plugins_of, reasons_text, rule_of
from spmdir.core.byte_size import size_text
from spmdir.core.errors import Location, ShardingError, SpmdirError, UnsupportedError, print_remark, warn
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.context import IRContext
from spmdir.dialects.locations import location_of
from spmdir.dialects.machine_attribute import (
    CERTIFICATE,
    OBJECTIVE,
    Machine,
    write_certificate,
    write_objective,
    write_topology,
)
from spmdir.dialects.size_ops import SizeOp, sizes_op
from spmdir.dialects.stage import PASSES_RUN, write_stage
from spmdir.passes.decision_order import decide_together, shares_arguments
from spmdir.passes.mesh_search import MeshSearch
from spmdir.pipeline.base_passes import FunctionPass, advancing, global_functions
from spmdir.pipeline.limited_memory import peak_bound
from spmdir.pipeline.options import Count, Factor, Fraction
from spmdir.pipeline.recorded_options import Memory, memory_limit, note_options, remark_other_costs
from spmdir.reshard.cost import node_count
from spmdir.reshard.measured_times import Costs
from spmdir.reshard.topology import DEFAULT, Topology, find_topology, with_costs
from spmdir.rules import RuleSet
from spmdir.rules.strategies.equivalent_ops import unreached_name
from spmdir.search.joint_states import Unsolvable
from spmdir.search.memory_budget import PeakMemory
from spmdir.search.problem import Problem
from spmdir.search.shared_messages import counted_fractions
from spmdir.search.solve import Solution
from spmdir.transforms.shared_arguments import copy_shared_shardings
from spmdir.transforms.user_annotations import note_given

LISTED = 8
"""The number of lines of a table of costs that a remark lists."""


@dataclass(frozen=True)
class PropagatePass(FunctionPass):
    """Decides the sharding of every value by a search for the least modelled time, under the user's annotations."""

    name = "propagate"
    produces: ClassVar[str | None] = "decided"
    needs_numbers: ClassVar = False

    topology: str = DEFAULT.name
    """The machine of the cost model: a preset or a TOML file."""
    costs: str = ""
    """A file of measured times, which take precedence over modelled times."""
    costs_digest: str = ""
    """A digest of the table in `costs`, from `spmd.decided_by`. If the table has changed, a remark reports it."""
    memory: Memory = "auto"
    """The memory limit of a rank: a size, `auto` for that of the topology, `none`, or `least` for the smallest peak."""
    overlap: Literal["none", "messages", "schedule"] = "none"
    """How reshards are priced: in full (`none`), without the latency of messages that parameters or gradients share
    (`messages`), or only the part that a schedule leaves exposed (`schedule`)."""
    imbalance: Factor = 1.0  # type: ignore[assignment]
    """The most rows that a rank of experts receives, as a multiple of those with a balanced router. Times and memory
    assume it, because routes are data."""
    effort: Count = 100
    """The largest number of rounds of messages for each pair of mesh axes."""
    gap: Fraction = 0.0
    """The search runs no dives if the cost of its decision exceeds the lower bound by at most this fraction. First, the
    cost of the cheapest strategies is subtracted from both."""
    sub_axes: Literal["auto", "none"] = "auto"
    """`auto` splits mesh axes into sub-axes if views need it and it saves time. `none` keeps the splits of the user."""
    apart: tuple[str, ...] = ()
    """Mesh axes along which ranks have different sizes. Values with symbolic sizes are sent along them only if this
    cannot be avoided."""
    missing_rule: Literal["warn", "error"] = "warn"
    """Whether an op without a rule runs replicated with a warning, or is an error."""
    origins: bool = False
    """Whether to record the user annotations on the function, as `spmd.given`, for explanations."""
    certify: bool = False
    """Whether to print a lower bound on the cost of every decision."""
    remarks: bool = False
    """Whether to print the number of rounds of the search for each block of axes, and why it ended."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Decide the functions, then print a remark if lines of the table of costs match nothing in the module."""
        assert isinstance(ctx, IRContext)
        if shares_arguments(op) and global_functions(op, self.name):
            quiet = dataclasses.replace(self, certify=False, remarks=False)
            decide_together(op, partial(self._decide_function, ctx), partial(quiet._decide_function, ctx))
        else:
            super().apply(ctx, op)
        costs = with_costs(find_topology(self.topology), self.costs).costs
        if costs is not None:
            _remark_unused(costs, op)

    def _decide_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> float:
        """Run the pass on a function that shares arguments with others, and return the seconds of a call."""
        with advancing(function, self.requires, self.produces):
            return self._run(ctx, module, function)

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        """Decide the function, certify the decision if requested, and write the new axes into the types of sizes."""
        self._run(ctx, module, function)

    def _run(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> float:
        """Run the pass on a function, and return the modelled seconds of a call."""
        copy_shared_shardings(module, function)
        search, solution, objective = self.decide(ctx, module, function)
        check_needs(function)
        if self.certify:
            counted = counted_fractions(search.problem) if self.overlap == "messages" else ()
            minimised = search.counted_seconds(solution, counted) if counted else objective
            _certify(function, search.problem, minimised, counted, self.overlap)
        for child in function.body.block.ops:
            if isinstance(child, SizeOp):
                child.update_axes()
        return objective

    def decide(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> tuple[MeshSearch, Solution, float]:
        """Annotate `function` with the cheapest decision within the memory limit, and record the options.

        Returns: the search, its solution, and the modelled seconds of a step.

        Raises:
            SpmdirError: an op has no strategy, annotations contradict each other, or no decision fits; located.
        """
        if self.missing_rule == "error":
            _reject_missing_rules(function, ctx.rules)
        _warn_of_other_names(function, ctx.rules)
        check_routed_annotations(function)
        with collector_paused():
            topology = with_costs(find_topology(self.topology), self.costs)
            topology = attrs.evolve(topology, imbalance=self.imbalance)
            machine = Machine(topology, memory_limit(self.memory, topology))
            remark_other_costs(function, self, topology, self.name)
            write_stage(function, "decided")  # also if the function was at a later stage
            function.attributes.pop(PASSES_RUN, None)
            digest = topology.costs.digest if topology.costs else ""
            recorded, has_open_sizes = dataclasses.replace(self, costs_digest=digest), sizes_op(module) is not None
            write_topology(function, topology)
            for name in (OBJECTIVE, CERTIFICATE):
                function.attributes.pop(name, None)
            if self.origins:
                note_given(function)
            # The trial runs of the search read the recorded options, and must not have a memory limit.
            note_options(function, dataclasses.replace(recorded, memory=None), has_open_sizes)
            search, solution, objective = self._decide(function, ir.mesh(module), ctx, machine)
            note_options(function, recorded, has_open_sizes)
            if self.overlap != "none":
                write_objective(function, objective)
        return search, solution, objective

    def _decide(
        self, function: FuncOp, mesh: Mesh, ctx: IRContext, machine: Machine
    ) -> tuple[MeshSearch, Solution, float]:
        """Annotate `function` with the cheapest decision of its searches within the memory limit.

        The cheapest decision without a limit is tried first. If its peak may exceed the limit, a search with prices of
        memory follows. With `overlap=schedule`, the result is then the decision with the least scheduled time.

        Returns: the search with this decision, its solution, and the modelled seconds of a step.
        """
        searches = self._search(function, mesh, ctx, machine.topology)
        best = min(searches, key=lambda candidate: candidate.free.cost)
        _reject_refused_keeps(best)
        solution, seconds = best.free, best.write(best.free)
        if machine.memory < math.inf and machine.memory < peak_bound(function, mesh):
            best, solution = self._decide_within(function, best, searches, machine.memory)
            seconds = best.write(solution)
        if self.overlap == "schedule":
            plain, fastest = best.fastest(solution, machine.memory)
            solution, seconds = fastest.solution, best.write(fastest.solution)
            if self.remarks:
                text = (
                    f"a step takes {1e3 * fastest.seconds:.4g} ms scheduled, and {1e3 * plain.seconds:.4g} ms with the "
                    "decision of overlap=none"
                )
                print_remark(text, location_of(function))
        if self.remarks:
            text = f"searched in at most {max(self.effort, 1)} turns: {'; '.join(map(str, solution.ends))}"
            print_remark(text, location_of(function))
        return best, solution, seconds

    def _search(self, function: FuncOp, mesh: Mesh, ctx: IRContext, topology: Topology) -> list[MeshSearch]:
        """Return one or two searches: on the mesh with the user's sub-axes, and with further sub-axes for views.

        For example, a view splits a dimension of 8 into 2 × 4, and `tp` has 8 ranks. In the second search, `tp` is
        split into sub-axes of 2 and 4 ranks. If the annotations exclude all legal strategies of a node in one search,
        only the other is returned.

        Raises:
            SpmdirError: no search has a solution.
        """
        makers, problem = build_problem(function, mesh, ctx.rules, topology, self.apart)
        annotated_mesh = _annotated_mesh(function, problem)
        problem = attrs.evolve(problem, collectives=ctx.collectives).on(annotated_mesh)
        make_search = partial(
            MeshSearch,
            function,
            makers,
            effort=self.effort,
            gap=self.gap,
            context=ctx,
            shares_messages=self.overlap == "messages",
        )
        search: MeshSearch | None = None
        unsolvable: SpmdirError | None = None
        try:
            search = make_search(problem)
        except Unsolvable as error:
            unsolvable = _unsolvable_error(makers[error.node], error, problem)
        solution = search.free if search is not None and not search.contradicted else None
        searches = [search] if search is not None else []
        split_mesh = annotated_mesh
        if self.sub_axes == "auto":
            split_mesh = wanted_splits(split_weights(problem, rules_of(problem), solution), annotated_mesh)
        if split_mesh != annotated_mesh:
            limit = math.inf if solution is None else solution.cost
            # Some plug-in placements cannot be used on sub-axes.
            with contextlib.suppress(Unsolvable, ShardingError):
                split_search = make_search(problem.on(split_mesh), is_even=True, limit=limit)
                if split_search.is_legal(split_search.free):
                    searches.append(split_search)
        if not searches:
            assert unsolvable is not None
            raise unsolvable
        return [candidate for candidate in searches if not candidate.contradicted] or searches

    def _decide_within(
        self, function: FuncOp, best: MeshSearch, searches: Sequence[MeshSearch], budget: float
    ) -> tuple[MeshSearch, Solution]:
        """Return the cheapest decision within `budget`. `best` has the cheapest decision without a limit."""
        free = best.decision(best.free)
        if free.memory.peak_bytes <= budget:
            return best, best.free
        decisions = [(search, search.within(budget, free if search is best else None)) for search in searches]
        fitting = [(search, decision) for search, decision in decisions if decision.memory.peak_bytes <= budget]
        if fitting:
            search, decision = min(fitting, key=lambda pair: pair[1].solution.cost)
            return search, decision.solution
        search, decision = min(decisions, key=lambda pair: pair[1].memory.peak_bytes)
        if self.memory != "least":
            raise _over_budget_error(decision.memory, budget, search, function)
        return search, decision.solution


def _certify(function: FuncOp, problem: Problem, objective: float, counted: Sequence[float], overlap: str) -> None:
    """Write the certificate of a decision with cost `objective` to the function, and print it to stderr.

    Args:
        counted, overlap: as for `certify`.
    """
    from spmdir.search.certificate.certificate import certify

    try:
        certificate = certify(problem, objective, counted, overlap)
    except UnsupportedError as error:
        raise error.at(location_of(function)) from None
    write_certificate(function, certificate)
    print_remark(str(certificate), location_of(function))


def _remark_unused(costs: Costs, module: ModuleOp) -> None:
    """Print a remark to stderr for lines of `costs` that match nothing in the program, such as a wrong size."""
    ops = [op for function in ir.functions(module) for op in function.body.block.ops if isinstance(op, AtenOp)]
    mesh, calls = ir.mesh(module), {op.call() for op in ops}
    unused = costs.unused(calls, mesh.group_size(mesh.axis_names), node_count(mesh.axis_names, mesh))
    if unused:
        listed = ", ".join(str(line.number) for line in unused[:LISTED]) + (", …" if len(unused) > LISTED else "")
        text = f"{len(unused)} of {len(costs.lines)} lines match no op or collective of this program: {listed}"
        print_remark(text, Location(costs.file, unused[0].number, 1))


def _annotated_mesh(function: FuncOp, problem: Problem) -> Mesh:
    """Return the mesh of `problem`, with axes split as in the shardings of the function and of kept operands.

    Raises:
        ShardingError: two shardings split an axis in incompatible ways; located.
    """
    kept_shardings: list[Sharding | None] = []
    for node in problem.nodes:
        if isinstance(node.source, OpStrategies):
            kept_shardings += node.source.kept_shardings
    try:
        return annotated_splits([*user_shardings(function), *kept_shardings], problem.mesh)
    except ShardingError as error:
        raise error.at(location_of(function)) from None


def _reject_refused_keeps(search: MeshSearch) -> None:
    """Raise a located ShardingError if an op has no strategy for the kept sharding of an operand."""
    for node in search.contradicted:
        source = search.problem.nodes[node].source
        if isinstance(source, OpStrategies) and any(source.kept_shardings):
            kept_entries = (entry for sharding in source.kept_shardings if sharding for entry in sharding.entries)
            axis = next(axis for axis, placement in kept_entries if placement.trait != "open")
            raise _unsolvable_error(search.makers[node], Unsolvable(node, axis), search.problem)


def _over_budget_error(memory: PeakMemory, budget: float, search: MeshSearch, function: FuncOp) -> ShardingError:
    """Return the error for a program whose smallest peak exceeds the memory limit."""
    largest = [
        f"{search.name(value)}{' resharded' if is_copy else ''} {size_text(size)}"
        for value, is_copy, size in memory.live[:5]
    ]
    return ShardingError(
        f"the decision with the smallest peak needs {size_text(memory.peak_bytes)} of memory on a rank, including "
        f"{', '.join(largest)}; expected at most {size_text(budget)}, the limit of the option `memory` or of the "
        "topology; use more ranks, shard the inputs, or raise the limit to "
        f"memory={math.ceil(memory.peak_bytes)}",
        location_of(function),
    )


def _warn_of_other_names(function: FuncOp, rules: RuleSet) -> None:
    """Warn of ops without a strategy written as text, if another name of the op has such strategies."""
    placement_classes = tuple(dict.fromkeys(map(type, plugins_of(user_shardings(function)))))
    first_op_by_name: dict[str, AtenOp] = {}
    for op in function.body.block.ops:
        if isinstance(op, AtenOp):
            first_op_by_name.setdefault(op.name, op)
    for name, op in sorted(first_op_by_name.items()):
        other_name = unreached_name(name, lambda candidate: bool(rules.text_strategies(candidate, placement_classes)))
        if other_name is not None:
            warn(
                f"the strategies for '{other_name}' do not apply to '{name}', another name of the op with "
                f"different results or arguments; expected strategies for '{name}': write them",
                location_of(op),
            )


def _reject_missing_rules(function: FuncOp, rules: RuleSet) -> None:
    """Raise a located RuleError if an op has no rule."""
    for op in function.body.block.ops:
        if isinstance(op, AtenOp) and rule_of(op, rules) is None:
            raise rules.missing_rule_error(op.name).at(location_of(op))


def _unsolvable_error(maker: Maker, error: Unsolvable, problem: Problem) -> ShardingError:
    """Return the error for a node without a strategy. `maker` is its op, argument or result.

    The cause is a kept operand, an annotation that no strategy of an op allows, or partial placements that contradict.
    """
    source = problem.nodes[error.node].source
    if isinstance(maker, AtenOp) and isinstance(source, OpStrategies) and any(source.kept_shardings):
        kept_text = ", ".join(f"<{sharding}>" for sharding in source.kept_shardings if sharding)
        if source.rule is None:
            message = (
                f"'{maker.name}' has no rule and requires replicated operands, but an operand has the kept sharding "
                f"{kept_text}; give it a rule with --load-plugin, or leave the axis out of `keep`"
            )
        else:
            message = (
                f"'{maker.name}': no strategy of its rule accepts an operand with the kept sharding {kept_text} on "
                f"axis '{error.axis}'; leave the axis out of `keep`, or shard the operand along another dimension"
            )
        return ShardingError(message, location_of(maker))
    if isinstance(maker, AtenOp):
        annotated = ", ".join(f"<{sharding}>" for sharding in maker.shardings if sharding)
        return ShardingError(
            f"'{maker.name}': no strategy of its rule gives {annotated or 'its values'} on axis '{error.axis}'"
            f"{_reasons(problem, error)}; expected placements that a strategy gives: "
            "give the sharding to a spmd.constraint on its result instead",
            location_of(maker),
        )
    return ShardingError(
        f"a value has no valid placement on axis '{error.axis}' with its partial placements on other axes; expected "
        "one reduction on all axes: correct the annotations"
    )


def _reasons(problem: Problem, error: Unsolvable) -> str:
    """Return why strategies are excluded that would match the user annotations on the axis of `error`.

    This includes strategies written as text, for all classes of plug-in placements that the program names.
    """
    source, axis, mesh = problem.nodes[error.node].source, error.axis, problem.mesh
    if not isinstance(source, OpStrategies) or source.rule is None:
        return ""
    results = tuple(sharding.refined(mesh)[axis] if sharding else None for sharding in source.results)
    any_operands = (None,) * source.operands
    placements = (*any_operands, *results[: len(source.rule.result_dims)])
    return reasons_text(source.rule.why_not(mesh.sizes[axis], placements, problem.plugin_placements))
