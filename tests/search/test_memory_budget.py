"""Limits of memory: what fits is decided as without one, and what does not is decided at more time."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import spmdir
from spmdir.core.byte_size import Bytes
from spmdir.core.mesh import Mesh
from spmdir.dialects.ir import main_function, mesh
from spmdir.pipeline.limited_memory import peak_bound
from tests.search.random_programs import Program, programs

TWICE = """spmd.mesh @mesh <dp = 4, tp = 2>

func.func @main(%x: tensor<64x512xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>},
                %w1: tensor<512x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
                %w2: tensor<1024x512xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(1), tp: S(0)>})
    -> (tensor<64x512xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) {
  %0 = aten.mm(%x, %w1) : tensor<64x1024xf32>
  %1 = aten.gelu(%0) {approximate = "none"} : tensor<64x1024xf32>
  %2 = aten.mm(%1, %w2) : tensor<64x512xf32>
  %3 = aten.mm(%2, %w1) : tensor<64x1024xf32>
  %4 = aten.gelu(%3) {approximate = "none"} : tensor<64x1024xf32>
  %5 = aten.mm(%4, %w2) : tensor<64x512xf32>
  return %5 : tensor<64x512xf32>
}
"""


def decided(memory: str) -> spmdir.report.MemoryReport:
    return spmdir.report.memory_report(spmdir.run_passes(spmdir.parse(TWICE), f"propagate{{memory={memory}}}"))


def objective(memory: str) -> float:
    found = spmdir.report.comm_report(spmdir.run_passes(spmdir.parse(TWICE), f"propagate{{memory={memory}}}")).objective
    assert found is not None
    return found


def test_a_program_that_fits_is_decided_as_if_there_were_no_limit() -> None:
    free, *limited = (
        re.sub(
            r', spmd.decided_by = "propagate{memory=\w+}"',
            "",
            spmdir.print_ir(spmdir.run_passes(spmdir.parse(TWICE), f"propagate{{memory={memory}}}")),
        )
        for memory in ("none", "auto", "80GiB", str(int(decided("none").peak_bytes)))
    )
    assert limited == [free] * len(limited)


@pytest.mark.parametrize("limit", ["3.7MB", "3MB", "1MB", "819200"])
def test_what_a_rank_holds_is_within_the_limit(limit: str) -> None:
    assert decided(limit).peak_bytes <= Bytes(limit) < decided("none").peak_bytes


def test_less_memory_takes_no_less_time() -> None:
    assert objective("none") < objective("3MB") <= objective("819200")


def test_a_limit_that_nothing_meets_is_an_error_that_says_what_would_do() -> None:
    message = r"needs 720\.9 kB of memory .*%w1 262\.1 kB, %w2 262\.1 kB, .*; expected at most 700 kB.*memory=720896"
    with pytest.raises(spmdir.SpmdirError, match=message):
        decided("700kB")
    assert decided("720896").peak_bytes == decided("least").peak_bytes == 720896


MESHES = [Mesh({"a": 4}), Mesh({"a": 4, "b": 2})]


def within(program: Program, memory: object) -> tuple[str, float]:
    """Return the decided program without the note of its limit, and what a rank holds."""
    module = spmdir.run_passes(spmdir.parse(program.text), f"propagate{{memory={memory}}}")
    text = re.sub(r', spmd.decided_by = "propagate{memory=\w+}"', "", spmdir.print_ir(module))
    return text, spmdir.report.memory_report(module).peak_bytes


@settings(max_examples=12)
@given(programs(MESHES, ops=6), st.data())
def test_limits_of_random_programs_are_kept_or_the_error_names_one_that_is(
    program: Program, data: st.DataObject
) -> None:
    try:
        free, most = within(program, "none")
    except spmdir.SpmdirError:
        assume(False)
        raise
    assert within(program, int(most)) == (free, most)
    _, least = within(program, "least")
    assert least <= most
    limit = data.draw(st.integers(max(int(least) - 8, 1), int(most)))
    try:
        assert within(program, limit)[1] <= limit
    except spmdir.SpmdirError as error:
        named = int(str(error).rpartition("=")[2])
        assert limit < named >= within(program, named)[1]


@settings(max_examples=20)
@given(programs(MESHES))
def test_the_quick_bound_is_no_less_than_what_a_rank_holds(program: Program) -> None:
    try:
        module = spmdir.run_passes(spmdir.parse(program.text), "propagate{memory=none effort=1}")
    except spmdir.SpmdirError:
        assume(False)
        raise
    held = spmdir.report.memory_report(module).peak_bytes
    assert peak_bound(main_function(module), mesh(module)) >= held
    spmdir.run_passes(module, "insert-reshard,lower-reshard")
    assert peak_bound(main_function(module), mesh(module)) >= held


@pytest.mark.parametrize(
    ("text", "count"), [("80GiB", 80 * 2**30), ("500MB", 5e8), ("1.5 kB", 1500.0), ("64", 64.0), ("2e9", 2e9)]
)
def test_sizes_have_units(text: str, count: float) -> None:
    assert Bytes(text) == count
    assert Bytes(str(Bytes(text))) == count


@pytest.mark.parametrize("text", ["GB", "-1", "nan", "inf", "80Gib", "1 2"])
def test_what_is_no_size_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Bytes(text)


CHAIN = """spmd.mesh @mesh <a = 4>

func.func @main(%x: tensor<1024x512xf32> {{spmd.sharding = #spmd.sharding<@mesh, a: S(0)>}},
                %w: tensor<512x1024xf32> {{spmd.sharding = #spmd.sharding<@mesh, a: S(1)>}},
                %u: tensor<1024x512xf32> {{spmd.sharding = #spmd.sharding<@mesh, a: S(1)>}})
    -> (tensor<1024x512xf32> {{spmd.sharding = #spmd.sharding<@mesh, a: S(0)>}}) {{
  %0 = aten.mm(%x, %w) : tensor<1024x1024xf32>{}
  %1 = aten.relu(%0) : tensor<1024x1024xf32>{}
  %2 = aten.mm(%1, %u) : tensor<1024x512xf32>{}
  return %2 : tensor<1024x512xf32>
}}
"""


def test_decision_and_bound_of_a_binding_limit_are_those_of_all_decisions() -> None:
    def decide(results: tuple[str, ...], options: str) -> tuple[spmdir.report.CommReport, float]:
        module = spmdir.run_passes(spmdir.parse(CHAIN.format(*results)), f"propagate{{{options}}}")
        return spmdir.report.comm_report(module), spmdir.report.memory_report(module).peak_bytes

    decisions = []
    for placements in itertools.product(("R", "S(0)", "S(1)", "P(sum)"), repeat=3):
        if placements[1] != "P(sum)":  # relu is not linear
            results = tuple(f" <a: {placement}>" for placement in placements)
            report, peak = decide(results, "memory=none")
            decisions.append((report.objective, peak))
    best, best_peak = min(decisions)
    limit = max(peak for _, peak in decisions if peak < best_peak)
    best_within = min(objective for objective, peak in decisions if peak <= limit)
    assert best_within > 1.1 * best
    report, peak = decide(("", "", ""), f"memory={int(limit)} certify")
    assert peak <= limit
    assert report.objective == pytest.approx(best_within)
    assert report.certificate is not None
    assert report.certificate.lower_bound == pytest.approx(best)
    assert report.certificate.gap == pytest.approx(1 - best / best_within)
