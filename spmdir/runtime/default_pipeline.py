"""The pipeline of programs that are made to run, where none is given: the standard one, then the schedule."""

from __future__ import annotations

import functools

from spmdir.pipeline.pipeline import SCHEDULED, Pipeline, as_pipeline

MACHINES = {"cpu": "cpu-gloo"}
"""Type of device → the topology that stands for its machine; the default one for others."""


def running_pipeline(pipeline: Pipeline | str | None, device_type: str | None) -> Pipeline:
    """Return `given` as a Pipeline; if it is None, that of programs that run on devices of a type.

    Args:
        device_type: as `torch.device.type`; None if it is not known.

    Raises:
        SpmdirError: it is neither a Pipeline nor the text of one.
    """
    return as_pipeline(pipeline) if pipeline is not None else _scheduled(MACHINES.get(device_type or ""))


@functools.cache
def _scheduled(topology: str | None) -> Pipeline:
    return Pipeline(SCHEDULED, topology=topology)
