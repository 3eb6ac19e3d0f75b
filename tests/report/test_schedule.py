"""The schedule report: what is exposed, who hides the rest, and the same as a trace."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

import spmdir
from spmdir.core.errors import UnsupportedError
from spmdir.report.chrome_trace import chrome_trace
from spmdir.report.schedule import ScheduleReport

WHOLE = "{spmd.sharding = #spmd.sharding<@mesh>}"
HIDDEN = f"""spmd.mesh @mesh <tp = 4>
func.func @f(%x: tensor<1024x256xf32> {{spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}},
             %y: tensor<4096x1024xf32> {WHOLE}) -> (tensor<1024x1024xf32> {WHOLE}, tensor<4096x1024xf32> {WHOLE})
    attributes {{spmd.stage = "local"}} {{
  %h = spmd.all_gather_start %x on [tp] dim 1 stream ahead : !spmd.pending<tensor<1024x1024xf32>> <>
  %a = aten.exp(%y) : tensor<4096x1024xf32> <>
  %g = spmd.wait %h : tensor<1024x1024xf32> <>
  return %g, %a : tensor<1024x1024xf32>, tensor<4096x1024xf32>
}}
"""


@pytest.fixture(scope="module")
def report() -> ScheduleReport:
    return spmdir.report.schedule_report(spmdir.parse(HIDDEN))


def test_the_step_is_compute_and_what_is_exposed(report: ScheduleReport) -> None:
    assert report.seconds == pytest.approx(report.compute_seconds + report.exposed_seconds)
    (gather,) = report.collectives
    assert (gather.kind, gather.axes, gather.count) == ("all_gather", ("tp",), 1)
    assert 0 < gather.exposed == report.exposed_seconds < gather.seconds
    assert gather.hidden_by == {"aten.exp": pytest.approx(gather.seconds - gather.exposed)}


def test_the_peak_is_that_of_the_memory_report(report: ScheduleReport) -> None:
    memory = spmdir.report.memory_report(spmdir.parse(HIDDEN))
    assert (report.peak_bytes, report.peak_value, report.holders) == (
        memory.peak_bytes,
        memory.peak_value,
        memory.holders,
    )


def test_the_machine_is_the_one_that_is_named(report: ScheduleReport) -> None:
    slower = spmdir.report.schedule_report(spmdir.parse(HIDDEN), "a100x8")
    assert slower.seconds > report.seconds
    with pytest.raises(UnsupportedError, match="unknown topology 'abacus'"):
        spmdir.report.schedule_report(spmdir.parse(HIDDEN), "abacus")


def test_a_program_at_an_earlier_stage_is_finished_on_a_copy() -> None:
    text = f"""spmd.mesh @mesh <tp = 4>
func.func @f(%x: tensor<1024x1024xf32> {{spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}})
    -> (tensor<1024x1024xf32> {WHOLE}) {{
  %0 = aten.neg(%x) : tensor<1024x1024xf32>
  return %0 : tensor<1024x1024xf32>
}}"""
    module = spmdir.parse(text)
    before = spmdir.print_ir(module)
    assert [one.kind for one in spmdir.report.schedule_report(module).collectives] == ["all_gather"]
    assert spmdir.print_ir(module) == before


def test_a_trace_has_a_track_for_each_stream_and_arrows_to_the_waits(report: ScheduleReport) -> None:
    events: list[dict[str, Any]] = json.loads(chrome_trace(report.execution))["traceEvents"]
    tracks = {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"}
    assert tracks == {"compute": 0, "ahead": 1}
    (transfer,) = (event for event in events if event.get("cat") == "transfer" and event["ph"] == "X")
    assert transfer["tid"] == 1
    assert transfer["dur"] == pytest.approx(report.collectives[0].seconds * 1e6)
    leaves, arrives = (next(event for event in events if event["ph"] == end) for end in "sf")
    assert (leaves["id"], leaves["ts"], leaves["tid"]) == (arrives["id"], transfer["ts"], 1)
    assert arrives["ts"] == pytest.approx(transfer["ts"] + transfer["dur"])
    assert max(event["args"]["live bytes"] for event in events if event["ph"] == "C") == report.peak_bytes


def test_slices_of_one_track_do_not_overlap(report: ScheduleReport) -> None:
    events: list[dict[str, Any]] = json.loads(chrome_trace(report.execution))["traceEvents"]
    for track in (0, 1):
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == track)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in itertools.pairwise(spans))
