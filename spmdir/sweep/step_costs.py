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
    """

    seconds: float
    exposed_seconds: float
    flops: float
    places: Mapping[str, Memory]
    intra_seconds: float = 0.0
    inter_seconds: float = 0.0

    @property
    def least_seconds(self) -> float:
        """A lower bound on the time of the step in any schedule: the accelerator and the links work in parallel."""
        return max(self.seconds - self.exposed_seconds, self.intra_seconds, self.inter_seconds)

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
