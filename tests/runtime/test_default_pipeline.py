"""What programs that are to run are made by, where no pipeline is given."""

from __future__ import annotations

import pytest

from spmdir.core.errors import SpmdirError
from spmdir.pipeline.pipeline import SCHEDULED, STANDARD, Pipeline
from spmdir.runtime.default_pipeline import running_pipeline


def test_ranks_on_cpus_are_modelled_as_gloo_processes_and_others_as_the_default_machine() -> None:
    assert running_pipeline(None, "cpu") == Pipeline(SCHEDULED, topology="cpu-gloo")
    assert running_pipeline(None, "cuda") == running_pipeline(None, None) == Pipeline(SCHEDULED)


@pytest.mark.parametrize("given", [STANDARD, "propagate{topology=flat}", Pipeline("localize", topology="a100x8")])
def test_what_is_given_is_run_as_it_is(given: Pipeline | str) -> None:
    assert str(running_pipeline(given, "cpu")) == str(given)


def test_what_is_no_pipeline_is_rejected() -> None:
    with pytest.raises(SpmdirError, match="expected pass names"):
        running_pipeline(["propagate"], "cpu")  # type: ignore[arg-type]
