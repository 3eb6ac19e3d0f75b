"""How far steps may be off that take a value out of a lossy placement."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.error import ENDS, ErrorBound
from spmdir.reshard.cost import local_shape
from spmdir.reshard.steps import Step


@attrs.frozen
class StepError:
    """The error of one step, from a lossy placement to another one.

    Attributes:
        before, after: the placements.
        bound: the factor that the placement declares for this step; None if none is known.
    """

    before: Placement
    after: Placement
    bound: float | None

    @property
    def error(self) -> ErrorBound:
        """Return what the placement declares."""
        return self.before.error

    def __str__(self) -> str:
        return f"{self.before} -> {self.after}: {self.text()}"

    def text(self, growth: float = 1.0) -> str:
        """Return the bound, `growth` times as large."""
        if self.bound is None:
            return "unknown"
        return f"at most {self.bound * growth:.3g} of {ENDS[self.error.of]} ({self.error.norm})"


def step_errors(step: Step, shape: Sequence[int], mesh: Mesh) -> list[StepError]:
    """Return the errors of `step` on a tensor of global `shape`, one for each lossy placement that it ends.

    A placement declares how far off a value is that has been laid out so and is no longer.
    """
    local, ranks = local_shape(step.source, shape, mesh), mesh.group_size(step.axes)
    return [
        StepError(before, after, before.error.bound(local, ranks)) for before, after in step.moved(mesh) if before.error
    ]
