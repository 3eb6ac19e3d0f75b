"""What a program has in the memory of the host: from the begin of a copy to there to the end of the last one back."""

from __future__ import annotations

import spmdir

X = "tensor<8x8xf32>"
WHOLE = "{spmd.sharding = #spmd.sharding<@mesh>}"


def host_bytes(body: str) -> float:
    head = f'func.func @f(%x: {X} {WHOLE}) -> ({X} {WHOLE}) attributes {{spmd.stage = "local"}} {{'
    text = f"spmd.mesh @mesh <dp = 2>\n{head}\n"
    return spmdir.report.memory_report(spmdir.parse(f"{text}{body}\n}}")).host_bytes


def test_a_value_is_there_from_the_copy_to_the_copy_back() -> None:
    one_by_one = f"""  %a = spmd.offload %x : !spmd.host<{X}> <>
  %b = spmd.reload %a : {X} <>
  %c = spmd.offload %b : !spmd.host<{X}> <>
  %d = spmd.reload %c : {X} <>
  return %d : {X}"""
    assert host_bytes(one_by_one) == 256


def test_a_value_that_is_on_its_way_is_there() -> None:
    together = f"""  %a = spmd.offload_start %x : !spmd.pending<!spmd.host<{X}>> <>
  %y = aten.neg(%x) : {X} <>
  %b = spmd.offload_start %y : !spmd.pending<!spmd.host<{X}>> <>
  %c = spmd.wait %a : !spmd.host<{X}> <>
  %d = spmd.wait %b : !spmd.host<{X}> <>
  %e = spmd.reload %c : {X} <>
  %f = spmd.reload %d : {X} <>
  %g = aten.add.Tensor(%e, %f) : {X} <>
  return %g : {X}"""
    assert host_bytes(together) == 512


def test_what_never_comes_back_is_there_for_as_long_as_its_copy() -> None:
    copy = f"spmd.offload %x : !spmd.host<{X}> <>"
    assert host_bytes(f"  %a = {copy}\n  %b = {copy}\n  return %x : {X}") == 256
    assert host_bytes(f"  return %x : {X}") == 0
