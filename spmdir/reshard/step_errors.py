"""Bounds on the errors of steps that leave a lossy placement."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.error_bound import ENDS, ErrorBound
from spmdir.reshard.cost import local_shape
from spmdir.reshard.steps import Step


@attrs.frozen
class StepError:
    """The error of one step from a lossy placement to another placement.

    Attributes:
        before, after: the placements.
        bound: the factor that the placement declares for this step; None if it is unknown.
    """

    before: Placement
    after: Placement
    bound: float | None

    @property
    def error(self) -> ErrorBound:
        """Return the error bound that the placement declares."""
        return self.before.error

    def __str__(self) -> str:
        return f"{self.before} -> {self.after}: {self.text()}"

    def text(self, growth: float = 1.0) -> str:
        """Return the text of the bound times `growth`, the factor by which later ops enlarge the error."""
        if self.bound is None:
            return "unknown"
        return f"at most {self.bound * growth:.3g} of {ENDS[self.error.of]} ({self.error.norm})"


def step_errors(step: Step, shape: Sequence[int], mesh: Mesh) -> list[StepError]:
    """Return the errors of `step` on a tensor of global `shape`, one for each lossy placement that it leaves.

    A placement declares the error of a conversion to it and back, so the step that leaves it has the whole error.
    """
    local, ranks = local_shape(step.source, shape, mesh), mesh.group_size(step.axes)
    return [
        StepError(before, after, before.error.bound(local, ranks))
        for before, after in step.placement_changes(mesh)
        if before.error
    ]
