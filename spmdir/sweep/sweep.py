"""The sweep: price candidates of a training step on several processes, and skip those that bounds exclude.

For each candidate, an estimate of the memory decides which settings are priced. Example with a limit of 72 GB:

    1 micro-batch, no recomputation        90 GB   does not fit: 20 GB of state, 70 GB of activations
    2 micro-batches, no recomputation      55 GB   the first that is predicted to fit: 20 + 70 / 2
    1 micro-batch, recompute all layers    30 GB   so 10 of 32 layers suffice: 90 - 10 / 32 * (90 - 30) = 71 GB

If gathered weights are a large part of the memory, all these settings gather them again for the backward.

More micro-batches do the same work in smaller pieces, so the sweep stops at the first number that fits.

A setting is skipped if a priced setting dominates it: it takes no longer than the lower bound on the time of the other,
and needs no more memory. A step takes at least as long as the kernels of a rank, and as the transfers on its links.
Settings that reduce the memory to the limit are skipped if any setting that fits takes no longer than their bound.
"""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait

import attrs
import torch

from spmdir.core.byte_size import size_text
from spmdir.core.errors import SpmdirError, SpmdirErrors
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.core.progress import say
from spmdir.pipeline.pipeline import Pipeline
from spmdir.plans.recipes import AUTO, recipe_factors
from spmdir.plans.resolve import sharding_plan
from spmdir.reshard.topology import EFFICIENCY, Topology, find_topology
from spmdir.sweep.candidate import DEFAULT_RECIPES, EXPERTS, RECIPE_AXES, MeshRecipe, candidates, micro_batch_counts
from spmdir.sweep.price import (
    Estimate,
    StepOptions,
    certified_gap,
    estimate,
    full_plan,
    parameter_count,
    refine,
    sweep_pipeline,
)
from spmdir.sweep.step_costs import StepCosts
from spmdir.sweep.workload import Workload

DOMINATED = "another setting takes no longer than the lower bound of this one, and needs no more memory"
"""The reason for a skipped setting."""

_SCALED = ("activations", "communication buffers")
"""The kinds of memory that shrink with the micro-batch."""

LEAST_GATHERED = 0.1
"""The fraction of the memory limit that gathered weights must exceed to be gathered again."""

ACCURACY = 0.02
"""The fraction by which extended compute and transfers may be above those of the whole model."""


@attrs.frozen
class SweepRequest:
    """The arguments of a sweep: a model, a number of ranks, a machine and a memory limit.

    Attributes:
        workload: the model.
        ranks: the number of ranks.
        samples: the samples of a batch of all ranks.
        memory: bytes that a rank may use.
        machine: the constants of the machine.
    """

    workload: Workload
    ranks: int
    samples: int
    memory: float
    machine: Topology

    @classmethod
    def of(
        cls,
        workload: Workload,
        ranks: int,
        samples: int | None = None,
        memory: float | None = None,
        topology: Topology | str | None = None,
    ) -> SweepRequest:
        """Return a request with defaults: one sample for each rank, and the memory of the topology.

        The default of a program that was exported for one batch size is this size.
        """
        machine = find_topology(topology)
        return cls(
            workload, ranks, samples or workload.samples or ranks, machine.memory if memory is None else memory, machine
        )

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that is priced."""
        return sweep_pipeline(self.machine)

    @property
    def layers(self) -> int:
        """The number of layers of the model; 0 if its depth cannot be changed."""
        return self.workload.layers.count if self.workload.layers else 0


@attrs.frozen
class Bound:
    """Lower bounds on the seconds of a step and on the peak bytes of a rank, or exact values."""

    seconds: float
    peak_bytes: float

    def dominates(self, other: Bound) -> bool:
        """Return whether a setting with these values is at least as good as any setting with the bounds `other`."""
        return self.seconds <= other.seconds and self.peak_bytes <= other.peak_bytes


@attrs.frozen
class Setting:
    """A priced way to train a model.

    Attributes:
        candidate: the mesh and the recipe.
        micro_batches: the number of micro-batches of a step.
        recomputed: the number of layers that the backward recomputes.
        regathers: as in `StepOptions`.
        costs: the costs of a step.
        fits: whether the peak is within the limit.
        bound: lower bounds. If another setting dominates them, this setting is superfluous.
        gap: the largest fraction by which another decision for the same plan may cost less; None if it is not proved.
    """

    candidate: MeshRecipe
    micro_batches: int
    recomputed: int
    regathers: bool
    costs: StepCosts
    fits: bool
    bound: Bound
    gap: float | None = None

    @property
    def values(self) -> Bound:
        """The time and the memory of a step."""
        return Bound(self.costs.seconds, self.costs.peak_bytes)


@attrs.frozen
class Skipped:
    """A candidate with a setting that was not priced, and the reason."""

    candidate: MeshRecipe
    reason: str


@attrs.frozen
class CandidateOutcome:
    """The settings of one candidate, and why others are not priced."""

    settings: tuple[Setting, ...] = ()
    skipped: tuple[Skipped, ...] = ()


@attrs.frozen
class Sweep:
    """The result of a sweep.

    Attributes:
        request: the model, ranks and limit that were searched.
        settings: the priced settings: those that fit the memory come first, and the fastest of them first.
        skipped: the candidates with settings that were not priced.
        model_flops: floating-point operations of a step on one device, without recomputation.
        parameters: the number of parameters of the model.
    """

    request: SweepRequest
    settings: tuple[Setting, ...]
    skipped: tuple[Skipped, ...]
    model_flops: float
    parameters: int

    @property
    def best(self) -> Setting | None:
        """The fastest setting that fits; None if none does."""
        return self.settings[0] if self.settings and self.settings[0].fits else None

    @property
    def pareto(self) -> tuple[Setting, ...]:
        """The settings that no other one beats in both time and memory, the fastest first."""
        front: list[Setting] = []
        for setting in sorted(self.settings, key=lambda setting: (setting.costs.seconds, setting.costs.peak_bytes)):
            if not front or setting.costs.peak_bytes < front[-1].costs.peak_bytes:
                front.append(setting)
        return tuple(front)

    def tokens_per_second(self, setting: Setting) -> float:
        """Return the tokens, or the samples, that a rank processes per second."""
        request = self.request
        return request.samples * request.workload.sequence / setting.costs.seconds / request.ranks

    def utilisation(self, setting: Setting) -> float:
        """Return the model flops utilisation: the fraction of the data sheet's bf16 peak, without recomputation.

        Source: PaLM (Chowdhery et al., 2022), appendix B.
        """
        peak = self.request.machine.peak("bf16") / EFFICIENCY
        return self.model_flops / setting.costs.seconds / self.request.ranks / peak

    def plan(self, setting: Setting) -> ShardingPlan:
        """Return the plan of a setting for the whole model."""
        return full_plan(self.request.workload, setting.candidate)


def sweep(request: SweepRequest, recipes: Sequence[str] = DEFAULT_RECIPES, workers: int = 1) -> Sweep:
    """Price the candidates of a training step, the most promising first, and drop those that cannot be the best.

    A candidate is skipped if its samples or layers cannot be divided, if its state alone exceeds the memory, or if a
    priced setting is faster and smaller than its lower bounds.

    Args:
        recipes: the recipes, from RECIPE_AXES.
        workers: the number of processes. With several, the main module must be importable without side effects.

    Raises:
        SpmdirError: the model cannot be captured, or a recipe does not exist.
    """
    if workers > 1 and torch.accelerator.is_available():
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _hide_accelerators) as pool:
            return pool.submit(sweep, request, recipes, workers).result()
    workload = request.workload
    alone = StepOptions(request.samples)
    one_device = estimate(workload, MeshRecipe(Mesh({"dp": 1}), "ddp"), alone, request.pipeline).costs
    parameters = parameter_count(workload)
    bounds: dict[MeshRecipe, Bound] = {}
    skipped: list[Skipped] = []
    for candidate in candidates(request.ranks, request.machine.ranks_per_node, recipes):
        state = state_bytes(candidate, parameters)
        if not micro_batch_counts(request.samples, candidate.data_ranks):
            reason = f"{request.samples} samples cannot be divided by {candidate.data_ranks} data-parallel ranks"
            skipped.append(Skipped(candidate, reason))
            continue
        if not micro_batch_counts(request.samples, candidate.data_ranks, candidate.stages):
            reason = f"{request.samples} samples cannot be cut into a micro-batch for each of {candidate.stages} stages"
            skipped.append(Skipped(candidate, reason))
            continue
        if request.layers and candidate.stages > request.layers:
            skipped.append(Skipped(candidate, f"{request.layers} layers cannot be cut into {candidate.stages} stages"))
            continue
        if state > request.memory:
            skipped.append(Skipped(candidate, f"parameters and optimizer state need {size_text(state)}"))
            continue
        # No step is faster than an even share of the work of one device.
        compute = one_device.seconds / request.ranks
        bounds[candidate] = Bound(max(compute, gradient_seconds(candidate, parameters, request.machine)), state)
    settings: list[Setting] = []
    for outcome in _outcomes(request, bounds, workers):
        settings += outcome.settings
        skipped += outcome.skipped
    settings, superfluous = _without_dominated(settings)
    settings.sort(key=lambda setting: (not setting.fits, setting.costs.seconds, setting.costs.peak_bytes))
    skipped = sorted({*skipped, *superfluous}, key=lambda entry: (str(entry.candidate), entry.reason))
    return Sweep(request, tuple(settings), tuple(skipped), one_device.flops, parameters)


def default_recipes(workload: Workload) -> tuple[str, ...]:
    """Return DEFAULT_RECIPES, and before them the recipe for experts if the model has some.

    It comes first because it is often the fastest for such models, so that its settings exclude others.
    """
    layers = workload.layers
    model = workload.case(1, layers.traced if layers else None).model
    try:
        sharding_plan(model, Mesh(dict.fromkeys(RECIPE_AXES[EXPERTS], 2)), EXPERTS)
    except SpmdirError:
        return DEFAULT_RECIPES
    return (EXPERTS, *DEFAULT_RECIPES)


def certified(sweep: Sweep, rows: int) -> Sweep:
    """Return a sweep with the gaps of the first `rows` settings that fit. Each takes one more search."""
    request, settings = sweep.request, list(sweep.settings)
    for index, setting in enumerate(settings[:rows]):
        if not setting.fits:
            break
        say("certifying {}", setting.candidate)
        options = StepOptions(request.samples, setting.micro_batches, setting.recomputed > 0, setting.regathers)
        with contextlib.suppress(SpmdirError, SpmdirErrors):
            gap = certified_gap(request.workload, setting.candidate, options, request.pipeline)
            settings[index] = attrs.evolve(setting, gap=gap)
    return attrs.evolve(sweep, settings=tuple(settings))


def _hide_accelerators() -> None:
    """Let torch find no CUDA device in this process and the processes that it forks.

    A sweep needs none, but a backward pass starts the driver, and a process that is forked later cannot use it.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _without_dominated(settings: Sequence[Setting]) -> tuple[list[Setting], list[Skipped]]:
    """Return (the settings that no setting of another candidate dominates, the others as skipped).

    How many of them were priced depends on the order in which processes end. The result does not.
    """
    fitting = [setting for setting in settings if setting.fits]
    kept: list[Setting] = []
    skipped: list[Skipped] = []
    for setting in settings:
        values_of_others = (other.values for other in fitting if other.candidate != setting.candidate)
        if any(values.dominates(setting.bound) for values in values_of_others):
            skipped.append(Skipped(setting.candidate, DOMINATED))
        else:
            kept.append(setting)
    return kept, skipped


def state_bytes(candidate: MeshRecipe, parameters: int) -> float:
    """Return a lower bound on the bytes of f32 parameters and of the two moments of AdamW on a rank.

    The bound is 4 bytes for each parameter on the rank, and 8 bytes for each one whose moments are on the rank.
    """
    sizes, factors = candidate.mesh.sizes, recipe_factors(candidate.recipe, candidate.mesh)
    if not factors:
        return 12 * parameters / candidate.mesh.world_size
    parameter_shards, state_shards = 1, 1
    for factor in factors:
        recipe = factor.recipe
        if recipe.parameters or recipe.layers or recipe.experts or recipe.stages:
            parameter_shards *= sizes[factor.axis]
            state_shards *= sizes[factor.axis]
        elif recipe.state:
            state_shards *= sizes[factor.axis]
    return 4 * parameters / parameter_shards + 8 * parameters / state_shards


def gradient_seconds(candidate: MeshRecipe, parameters: int, machine: Topology) -> float:
    """Return a lower bound on the seconds in which bf16 gradients are summed over data-parallel ranks.

    If the ranks are in several nodes, the ranks of a node may first sum their gradients. Then each sends its part.
    """
    world_size, data_ranks = candidate.mesh.world_size, candidate.data_ranks
    if data_ranks == 1 or candidate.recipe == AUTO:
        return 0.0
    bytes_of_rank = 2 * parameters / (world_size // data_ranks)
    sent_fraction = 1 - 1 / data_ranks
    is_one_node = not machine.ranks_per_node or world_size <= machine.ranks_per_node
    if is_one_node:
        return bytes_of_rank * sent_fraction / machine.intra_bandwidth
    return bytes_of_rank / machine.ranks_per_node * sent_fraction / machine.inter_bandwidth


def _outcomes(request: SweepRequest, bounds: Mapping[MeshRecipe, Bound], workers: int) -> Iterator[CandidateOutcome]:
    """Yield the outcome of each candidate, as soon as it is priced or skipped.

    Candidates with the smallest bounds come first. Among equal bounds, those with the shortest transfers of gradients
    come first, because they are often the fastest. Then more of the others are skipped.
    """
    parameters = parameter_count(request.workload)

    def order_key(candidate: MeshRecipe) -> tuple[float, float]:
        return bounds[candidate].seconds, gradient_seconds(candidate, parameters, request.machine)

    pending = sorted(bounds, key=order_key)
    priced: list[Bound] = []
    with _pool(workers, len(pending)) as pool:
        running: dict[Future[CandidateOutcome], MeshRecipe] = {}
        while pending or running:
            while pending and len(running) < max(workers, 1):
                candidate = pending.pop(0)
                if any(setting.dominates(bounds[candidate]) for setting in priced):
                    yield CandidateOutcome(skipped=(Skipped(candidate, DOMINATED),))
                    continue
                say("pricing {}, {} candidates left", candidate, len(pending) + len(running))
                running[pool.submit(settings_of, request, candidate, tuple(priced))] = candidate
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                outcome, _ = future.result(), running.pop(future)
                priced += [setting.values for setting in outcome.settings if setting.fits]
                yield outcome


def _pool(workers: int, tasks: int) -> Executor:
    """Return a pool of processes, or of one thread for one worker.

    Forked processes share the captures and caches of this one. Where forks are unsafe, each process has its own.
    """
    if workers <= 1 or tasks < 2:
        return ThreadPoolExecutor(1)
    method = "fork" if sys.platform == "linux" else "spawn"
    # Frozen objects, such as captures, are not visited again by the garbage collector of the new process.
    return ProcessPoolExecutor(min(workers, tasks), multiprocessing.get_context(method), gc.freeze)


def settings_of(request: SweepRequest, candidate: MeshRecipe, priced: Sequence[Bound] = ()) -> CandidateOutcome:
    """Return the settings of one candidate.

    Args:
        priced: the settings of other candidates that fit. What they dominate is skipped.
    """
    pricing = _Pricing(request, candidate, priced)
    try:
        pricing.run()
    except (SpmdirError, SpmdirErrors) as error:
        reason = str(error).partition("\n")[0].removeprefix("error: ")
        pricing.skipped.append(Skipped(candidate, reason))
    return CandidateOutcome(tuple(pricing.settings), tuple(pricing.skipped))


class _Pricing:
    """Prices one candidate, as in the example of this module."""

    def __init__(self, request: SweepRequest, candidate: MeshRecipe, priced: Sequence[Bound]):
        self.request, self.candidate, self.priced = request, candidate, priced
        self.settings: list[Setting] = []
        self.skipped: list[Skipped] = []

    def run(self) -> None:
        """Price numbers of micro-batches, from the smallest, until a step without recomputation fits the limit.

        For example, 1 micro-batch needs 100 GB of 80 GB, of which 60 GB shrink with the micro-batch. It is priced with
        recomputation. The next number that may fit is 60 / (80 - 40) = 1.5, so 2 is priced next: it needs 70 GB.
        """
        request, limit, least_count, regathers = self.request, self.request.memory, 1, False
        for count in micro_batch_counts(request.samples, self.candidate.data_ranks, self.candidate.stages):
            if count < least_count:
                continue
            options = StepOptions(request.samples, count, regathers=regathers)
            plain = self._estimate(options)
            gathered = plain.costs.memory.get("gathered weights", 0.0)
            if plain.costs.peak_bytes > limit and gathered > LEAST_GATHERED * limit and not regathers:
                if self._is_dominated(limited_bound(plain.costs, limit)):
                    return
                regathers = True
                options = attrs.evolve(options, regathers=True)
                plain = self._estimate(options, plain)
            if regathers:  # the few layers of an estimate are all gathered early, so its memory is too large
                plain = attrs.evolve(plain, costs=self._refine(options, plain))
            fits = plain.costs.peak_bytes <= limit
            bound = bound_of(plain.costs) if fits else limited_bound(plain.costs, limit)
            if self._is_dominated(bound):
                return
            if fits:
                costs = plain.costs if regathers else self._refine(options, plain)
                self._add(options, 0, costs, bound)
                if costs.peak_bytes <= limit:
                    if self._is_fastest():
                        return
                    continue
                plain = attrs.evolve(plain, costs=costs)
            if request.layers:
                self._recompute(options, plain.costs)
            else:
                self._add(options, 0, plain.costs, bound)
            # Only a part of the memory shrinks with the micro-batch: `scaled` / (next count / `count`) must fit.
            scaled = sum(plain.costs.memory.get(kind, 0.0) for kind in _SCALED)
            fixed = plain.costs.peak_bytes - scaled
            if fixed >= limit:
                return
            least_count = math.ceil(count * scaled / (limit - fixed))

    def _is_fastest(self) -> bool:
        """Return whether more micro-batches than those of the last setting would be slower.

        With stages, more micro-batches are tried until a step is slower than that before, because stages are idle for
        less time.
        """
        times = [setting.costs.seconds for setting in self.settings if setting.fits]
        return self.candidate.stages == 1 or (len(times) > 1 and times[-1] >= times[-2])

    def _recompute(self, options: StepOptions, plain: StepCosts) -> None:
        """Add the setting that recomputes as many layers as necessary.

        For example, a step of 32 layers needs 100 GB, and 36 GB if all are recomputed. Each layer saves 2 GB, so 10
        layers are recomputed for a limit of 80 GB. The time is interpolated too.

        The schedule of the traced program recomputes several of its few layers at once, so its estimate of the memory
        with recomputation is too large by far.

        Args:
            plain: the costs without recomputation.
        """
        layers, limit = self.request.layers, self.request.memory
        options = attrs.evolve(options, recomputes=True)
        all_recomputed = self._refine(options, self._estimate(options))
        saved_per_layer = (plain.peak_bytes - all_recomputed.peak_bytes) / layers
        recomputed = layers
        if saved_per_layer > 0:
            recomputed = min(math.ceil((plain.peak_bytes - limit) / saved_per_layer), layers)
        mixed = plain.toward(all_recomputed, recomputed / layers)
        self._add(options, recomputed, mixed, limited_bound(plain, limit))

    def _is_dominated(self, bound: Bound) -> bool:
        """Return whether a priced setting of another candidate dominates `bound`; if so, record the skipped setting."""
        is_dominated = any(setting.dominates(bound) for setting in self.priced)
        if is_dominated:
            self.skipped.append(Skipped(self.candidate, DOMINATED))
        return is_dominated

    def _add(self, options: StepOptions, recomputed: int, costs: StepCosts, bound: Bound) -> None:
        """Add a priced setting, which recomputes `recomputed` layers."""
        fits = costs.peak_bytes <= self.request.memory
        setting = Setting(self.candidate, options.micro_batches, recomputed, options.regathers, costs, fits, bound)
        self.settings.append(setting)

    def _estimate(self, options: StepOptions, decided: Estimate | None = None) -> Estimate:
        """Return the estimate for this candidate; see `price.estimate`."""
        return estimate(self.request.workload, self.candidate, options, self.request.pipeline, decided)

    def _refine(self, options: StepOptions, estimated: Estimate) -> StepCosts:
        """Return the refined costs for this candidate; see `price.refine`."""
        return refine(self.request.workload, self.candidate, options, self.request.pipeline, estimated)


def bound_of(costs: StepCosts) -> Bound:
    """Return a lower bound on the time of a setting, and its memory.

    Compute and transfers of a few layers, extended to all layers, may be up to ACCURACY above those of the whole model.
    Exposed communication is no part of the bound. The schedule of few layers may expose half as much again as that of
    many layers.
    """
    return Bound((1 - ACCURACY) * costs.least_seconds, costs.peak_bytes)


def limited_bound(costs: StepCosts, limit: float) -> Bound:
    """Return a lower bound on the time of the settings that reduce the memory of a setting to the limit.

    Args:
        costs: the costs of a setting that does not fit. The settings that fit do at least the same work.
        limit: the memory limit, for which they are made. So no setting that fits needs more memory than they may use.
    """
    return Bound(bound_of(costs).seconds, limit)
