"""Orders by the modelled times of stages, and the remark about them."""

from __future__ import annotations

import re

import pytest

from spmdir.pipeline.pipeline import run_passes
from tests.simulator import pipelined_steps as cases


def seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"ms": 1e-3, "us": 1e-6}[unit]


@pytest.mark.parametrize(("passes", "kind"), [("", "gpipe"), ("", "1f1b"), ("split-backward,", "zb")])
def test_the_remark_has_times_and_the_saved_bytes_of_each_rank(
    passes: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, module = cases.step_of(cases.blocks)
    run_passes(module, f"{cases.LOWERED},cut-stages{{at=1,2,3}},{passes}make-schedule{{kind={kind} remarks=true}}")
    remark = re.search(r"take (\S+ \w+), and at least (\S+ \w+) in .* at most (.*) for", capsys.readouterr().err)
    assert remark is not None
    assert seconds(remark[1]) >= seconds(remark[2]) > 0
    micro_batches = [4, 4, 4, 4] if kind == "gpipe" else [4, 3, 2, 1] if kind == "1f1b" else None
    # A stage saves the input of its block, 2 x 8, and relu, 2 x 16, in double precision. The first input is the batch,
    # and the last stage also saves the difference from the labels, 2 x 8, and the loss.
    bytes_of_stages = [256, 384, 384, 520]
    if micro_batches is not None:
        expected = [f"{count * size}" for count, size in zip(micro_batches, bytes_of_stages, strict=True)]
        found = [
            f"{float(part.split()[0]) * (1000 if part.endswith('kB') else 1):.0f}" for part in remark[3].split(", ")
        ]
        assert found == expected


def test_functions_that_are_localized_are_scheduled_as_equal_stages() -> None:
    _, _, module = cases.step_of(cases.blocks)
    run_passes(module, f"{cases.LOWERED},cut-stages{{at=1,2,3}},localize,make-schedule{{kind=1f1b}}")
