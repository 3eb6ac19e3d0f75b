"""The default pipeline of programs that run on ranks: the standard pipeline, then the schedule."""

from __future__ import annotations

import functools

from spmdir.pipeline.pipeline import SCHEDULED, Pipeline, as_pipeline

MACHINES = {"cpu": "cpu-gloo"}
"""Type of device → default topology; other types have the default topology of pipelines."""


def running_pipeline(pipeline: Pipeline | str | None, device_type: str | None) -> Pipeline:
    """Return `pipeline` as a Pipeline; if it is None, the default for a type of device.

    Args:
        device_type: as `torch.device.type`; None if unknown.

    Raises:
        SpmdirError: `pipeline` is neither a Pipeline nor the text of one.
    """
    return as_pipeline(pipeline) if pipeline is not None else _default_pipeline(MACHINES.get(device_type or ""))


@functools.cache
def _default_pipeline(topology: str | None) -> Pipeline:
    """Return the standard pipeline with `schedule`, for a topology; None is the default topology of pipelines."""
    return Pipeline(SCHEDULED, topology=topology)
