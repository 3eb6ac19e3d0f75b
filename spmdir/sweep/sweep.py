"""The sweep: price candidates of a training step on several processes, and skip those that bounds exclude.

For each candidate, the memory of one priced setting predicts which other settings fit. Example with a limit of 72 GB:

    1 micro-batch, no recomputation        90 GB   does not fit: 20 GB of state, 70 GB of activations
    2 micro-batches, no recomputation      55 GB   the first that is predicted to fit: 20 + 70 / 2
    1 micro-batch, recompute all layers    30 GB   so 10 of 32 layers suffice: 90 - 10 / 32 * (90 - 30) = 71 GB

More micro-batches do the same work in smaller pieces, so the sweep stops at the first number that fits.
"""

from __future__ import annotations

import math
import multiprocessing
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait

import attrs

from spmdir.core.byte_size import size_text
from spmdir.core.errors import SpmdirError, SpmdirErrors
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.core.progress import say
from spmdir.pipeline.pipeline import Pipeline
from spmdir.plans.recipes import AUTO, recipe_factors
from spmdir.reshard.topology import EFFICIENCY, Topology, find_topology
from spmdir.sweep.candidate import DEFAULT_RECIPES, MeshRecipe, candidates, micro_batch_counts
from spmdir.sweep.price import StepOptions, full_plan, parameter_count, price, sweep_pipeline
from spmdir.sweep.step_costs import StepCosts
from spmdir.sweep.workload import Workload

_SCALED = ("activations", "communication buffers")
"""The kinds of memory that shrink with the micro-batch."""


@attrs.frozen
class SweepRequest:
    """What a sweep searches: a model, a number of ranks, a machine and a limit.

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
        """Return a request with defaults: one sample for each rank, and the memory of the topology."""
        machine = find_topology(topology)
        return cls(workload, ranks, samples or ranks, machine.memory if memory is None else memory, machine)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that is priced."""
        return sweep_pipeline(self.machine)

    @property
    def layers(self) -> int:
        """The number of layers of the model; 0 if its depth cannot be changed."""
        return self.workload.layers.count if self.workload.layers else 0


@attrs.frozen
class Setting:
    """A priced way to train a model.

    Attributes:
        candidate: the mesh and the recipe.
        micro_batches: the number of micro-batches of a step.
        recomputed: the number of layers that the backward recomputes.
        costs: the costs of a step.
        fits: whether the peak is within the limit.
    """

    candidate: MeshRecipe
    micro_batches: int
    recomputed: int
    costs: StepCosts
    fits: bool


@attrs.frozen
class Skipped:
    """A candidate without a setting, and the reason."""

    candidate: MeshRecipe
    reason: str


@attrs.frozen
class Sweep:
    """The result of a sweep.

    Attributes:
        request: what was searched.
        settings: the priced ways: those that fit first, the fastest first.
        skipped: the candidates that have no setting.
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
    """Price the candidates of a training step.

    Args:
        recipes: the recipes, from RECIPE_AXES.
        workers: the number of processes. With several, the main module must be importable without side effects.

    Raises:
        SpmdirError: the model cannot be captured, or a recipe does not exist.
    """
    workload = request.workload
    alone = StepOptions(request.samples)
    one_device = price(workload, MeshRecipe(Mesh({"dp": 1}), "ddp"), alone, request.pipeline)
    parameters = parameter_count(workload)
    bounds: dict[MeshRecipe, float] = {}
    skipped: list[Skipped] = []
    for candidate in candidates(request.ranks, request.machine.ranks_per_node, recipes):
        state = state_bytes(candidate, parameters)
        if not micro_batch_counts(request.samples, candidate.data_ranks):
            reason = f"{request.samples} samples cannot be divided by {candidate.data_ranks} data-parallel ranks"
            skipped.append(Skipped(candidate, reason))
        elif state > request.memory:
            skipped.append(Skipped(candidate, f"parameters and optimizer state need {size_text(state)}"))
        else:
            synchronisation = gradient_seconds(candidate, parameters, request.machine)
            bounds[candidate] = max(one_device.seconds / request.ranks, synchronisation)
    settings: list[Setting] = []
    for candidate, outcome in _outcomes(request, bounds, workers):
        if isinstance(outcome, str):
            skipped.append(Skipped(candidate, outcome))
        else:
            settings += outcome
    settings.sort(key=lambda setting: (not setting.fits, setting.costs.seconds, setting.costs.peak_bytes))
    return Sweep(request, tuple(settings), tuple(skipped), one_device.flops, parameters)


def state_bytes(candidate: MeshRecipe, parameters: int) -> float:
    """Return a lower bound on the bytes of f32 parameters and of the two moments of AdamW on a rank."""
    sizes, factors = candidate.mesh.sizes, recipe_factors(candidate.recipe, candidate.mesh)
    stored = math.prod(sizes[f.axis] for f in factors if f.recipe.parameters or f.recipe.layers)
    state = math.prod(sizes[f.axis] for f in factors if f.recipe.parameters or f.recipe.layers or f.recipe.state)
    return 4 * parameters / stored + 8 * parameters / state if factors else 12 * parameters / candidate.mesh.world_size


def gradient_seconds(candidate: MeshRecipe, parameters: int, machine: Topology) -> float:
    """Return a lower bound on the seconds in which bf16 gradients are summed over data-parallel ranks.

    If the ranks are in several nodes, the ranks of a node may first sum their gradients. Then each sends its part.
    """
    gradients = 2 * parameters / (candidate.mesh.world_size // candidate.data_ranks)
    if candidate.data_ranks == 1 or candidate.recipe == AUTO:
        return 0.0
    if candidate.mesh.world_size <= (machine.ranks_per_node or candidate.mesh.world_size):
        return gradients * (1 - 1 / candidate.data_ranks) / machine.intra_bandwidth
    return gradients / machine.ranks_per_node * (1 - 1 / candidate.data_ranks) / machine.inter_bandwidth


def _outcomes(
    request: SweepRequest, bounds: Mapping[MeshRecipe, float], workers: int
) -> Iterator[tuple[MeshRecipe, list[Setting] | str]]:
    """Yield the settings of each candidate, or why it has none. Candidates with the smallest bounds come first."""
    pending = sorted(bounds, key=lambda candidate: bounds[candidate])
    fastest = math.inf
    with _pool(workers, len(pending)) as pool:
        running: dict[Future[list[Setting] | str], MeshRecipe] = {}
        while pending or running:
            while pending and len(running) < max(workers, 1):
                candidate = pending.pop(0)
                if bounds[candidate] >= fastest:
                    yield candidate, f"a step takes at least {bounds[candidate]:.4g} s, longer than the fastest one"
                    continue
                say("pricing {}, {} candidates left", candidate, len(pending) + len(running))
                running[pool.submit(settings_of, request, candidate)] = candidate
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                outcome = future.result()
                settings = [] if isinstance(outcome, str) else outcome
                fastest = min([fastest, *(setting.costs.seconds for setting in settings if setting.fits)])
                yield running.pop(future), outcome


def _pool(workers: int, tasks: int) -> Executor:
    """Return a pool of processes, or of one thread for one worker.

    Forked processes share the captures and caches of this one. Where forks are unsafe, each process has its own.
    """
    if workers <= 1 or tasks < 2:
        return ThreadPoolExecutor(1)
    method = "fork" if sys.platform == "linux" else "spawn"
    return ProcessPoolExecutor(min(workers, tasks), mp_context=multiprocessing.get_context(method))


def settings_of(request: SweepRequest, candidate: MeshRecipe) -> list[Setting] | str:
    """Return the settings of one candidate, or the reason why it has none."""
    try:
        return list(_settings(request, candidate))
    except (SpmdirError, SpmdirErrors) as error:
        return str(error).partition("\n")[0]


def _settings(request: SweepRequest, candidate: MeshRecipe) -> Iterator[Setting]:
    """Yield the settings of one candidate, as in the example of this module."""
    layers, limit = request.layers, request.memory
    least_count = 1
    for count in micro_batch_counts(request.samples, candidate.data_ranks):
        if count < least_count:
            continue
        costs = _priced(request, candidate, count, recomputes=False)
        yield Setting(candidate, count, 0, costs, costs.peak_bytes <= limit)
        if costs.peak_bytes <= limit:
            return
        if layers:
            everything = _priced(request, candidate, count, recomputes=True)
            saved = (costs.peak_bytes - everything.peak_bytes) / layers
            recomputed = min(math.ceil((costs.peak_bytes - limit) / saved), layers) if saved > 0 else layers
            mixed = costs.toward(everything, recomputed / layers)
            yield Setting(candidate, count, recomputed, mixed, mixed.peak_bytes <= limit)
        scaled = sum(costs.memory.get(kind, 0.0) for kind in _SCALED)
        fixed = costs.peak_bytes - scaled
        if fixed >= limit:
            return
        least_count = math.ceil(count * scaled / (limit - fixed))


def _priced(request: SweepRequest, candidate: MeshRecipe, micro_batches: int, recomputes: bool) -> StepCosts:
    options = StepOptions(request.samples, micro_batches, recomputes)
    return price(request.workload, candidate, options, request.pipeline)
