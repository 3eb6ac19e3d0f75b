"""The modelled costs of a training step of a rank, as functions of the number of layers.

The peak memory of a model is not linear in its depth, because the peak moves. The memory at one place of a step is.
Example, in GB:

    place                        1 layer    2 layers    32 layers
    loss                         9          10          40
    end of the backward          3          6           96

So costs contain the memory at several places. The peak is the largest of them at the given depth.

A schedule hides the communication of the first layers behind the embedding, the head and the loss. So each of many
layers exposes more than each of few. Example, the exposed milliseconds of `fsdp*tp*sp` of Llama-3 8B on 16 x 4 ranks:

    layers               2      4      8      12     24
    exposed              14.3   25.5   52.9   87.8   181.1
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

Memory = Mapping[str, float]
"""Kind of memory → bytes."""


@attrs.frozen
class StepCosts:
    """The costs of one training step of a rank.

    Attributes:
        seconds: the time of the step, all micro-batches included.
        exposed_seconds: the time that the accelerator waits for communication.
        flops: floating-point operations.
        places: place in the step → the memory at the peak of this place.
        intra_seconds, inter_seconds: for how long the links within a node, and between nodes, are busy.
        idle_seconds: the time that the accelerator waits for other stages.
    """

    seconds: float
    exposed_seconds: float
    flops: float
    places: Mapping[str, Memory]
    intra_seconds: float = 0.0
    inter_seconds: float = 0.0
    idle_seconds: float = 0.0

    @property
    def least_seconds(self) -> float:
        """A lower bound on the time of the step in any schedule: the accelerator and the links work in parallel."""
        busy = self.seconds - self.exposed_seconds - self.idle_seconds
        return max(busy, self.intra_seconds, self.inter_seconds)

    @property
    def memory(self) -> Memory:
        """The memory at the peak of the step."""
        return max(self.places.values(), key=lambda memory: math.fsum(memory.values()), default={})

    @property
    def peak_bytes(self) -> float:
        """The bytes at the peak of the step."""
        return math.fsum(self.memory.values())

    def toward(self, other: StepCosts, factor: float) -> StepCosts:
        """Return the linear interpolation: these costs for factor 0, `other` for 1, and extrapolated above 1.

        The result has the places that both have.
        """

        def mixed(start: float, end: float) -> float:
            return start + factor * (end - start)

        places = {
            place: {
                kind: mixed(memory.get(kind, 0.0), other.places[place].get(kind, 0.0))
                for kind in dict.fromkeys([*memory, *other.places[place]])
            }
            for place, memory in self.places.items()
            if place in other.places
        }
        compute = mixed(self.seconds - self.exposed_seconds, other.seconds - other.exposed_seconds)
        exposed = mixed(self.exposed_seconds, other.exposed_seconds)
        return StepCosts(
            compute + exposed,
            exposed,
            mixed(self.flops, other.flops),
            places,
            mixed(self.intra_seconds, other.intra_seconds),
            mixed(self.inter_seconds, other.inter_seconds),
            mixed(self.idle_seconds, other.idle_seconds),
        )

    def of_stage(self, stages: int, micro_batches: int, layers: int) -> StepCosts:
        """Return the costs of the longest of some stages in 1F1B order, if these costs are those of the whole model.

        A stage has a share of the layers, and waits for the other stages at the start and the end of the step. The
        first stage holds the activations of as many micro-batches as there are stages. Messages between stages are
        hidden, and the costs outside the layers are shared evenly.

        Example: with 4 stages, 8 micro-batches and 32 layers, a step of 8 s takes 2 s · (1 + 3 / 8) = 2.75 s.

        Args:
            layers: the number of layers of the model; 0 if it is not known.
        """
        share = math.ceil(layers / stages) / layers if layers else 1 / stages
        idle, live = (stages - 1) / micro_batches, min(stages, micro_batches)
        factors = dict.fromkeys(("parameters", "gradients", "optimizer state"), share) | {"activations": share * live}
        places = {
            place: {kind: factors.get(kind, 1.0) * size for kind, size in memory.items()}
            for place, memory in self.places.items()
        }
        return StepCosts(
            self.seconds * share * (1 + idle),
            self.exposed_seconds * share,
            self.flops * share,
            places,
            self.intra_seconds * share,
            self.inter_seconds * share,
            self.seconds * share * idle,
        )

    def plus(self, other: StepCosts, count: float) -> StepCosts:
        """Return the sum of these costs and `count` times `other`, at the places of these costs."""
        places = {
            place: {
                kind: memory.get(kind, 0.0) + count * other.places.get(place, {}).get(kind, 0.0)
                for kind in dict.fromkeys([*memory, *other.places.get(place, {})])
            }
            for place, memory in self.places.items()
        }
        return StepCosts(
            self.seconds + count * other.seconds,
            self.exposed_seconds + count * other.exposed_seconds,
            self.flops + count * other.flops,
            places,
            self.intra_seconds + count * other.intra_seconds,
            self.inter_seconds + count * other.inter_seconds,
        )

    def exposing(self, seconds: float) -> StepCosts:
        """Return these costs with another exposed time. The step is never shorter than its lower bound."""
        compute = self.seconds - self.exposed_seconds
        exposed = max(seconds, self.least_seconds - compute, 0.0)
        return attrs.evolve(self, seconds=compute + exposed, exposed_seconds=exposed)


def at_depth(costs: Mapping[int, StepCosts], layers: int) -> StepCosts:
    """Return the costs for a number of layers, from the costs for one or two depths.

    Args:
        costs: number of layers → costs. A single entry is returned unchanged.
    """
    lower, *upper = sorted(costs)
    if not upper:
        return costs[lower]
    extended = costs[lower].toward(costs[upper[0]], (layers - lower) / (upper[0] - lower))
    # Schedules of both programs hide different parts of the communication, so the line through both may fall. More
    # layers never expose less.
    return extended.exposing(max(extended.exposed_seconds, costs[upper[0]].exposed_seconds))
