"""What edges say they cost: bytes and seconds as functions of shapes, of one collective or of several."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import attrs
import pytest

from spmdir.core.errors import PluginError, ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from spmdir.core.placement.standard import R
from spmdir.core.placement.tensor import TensorMeta
from spmdir.placement import UNKNOWN, Edge, ErrorBound, PartialPlacement, Placement, ShardPlacement
from spmdir.reshard.axis_price import axis_price
from spmdir.reshard.byte_bound import lower_bound
from spmdir.reshard.cost import sends_anything, step_cost
from spmdir.reshard.plan import plan_reshard
from spmdir.reshard.topology import H100X8


def sent(shape: tuple[int, ...], itemsize: float, count: int) -> tuple[float, float]:
    """Two all-reduces, of [n, 2] and of [m, 2]."""
    ring = 2 * (count - 1) / count * itemsize
    return ring * shape[0] * 2, ring * shape[1] * 2


@attrs.frozen
class LowRank(PartialPlacement):
    text: ClassVar[str] = "LowRank"
    error: ClassVar[ErrorBound] = UNKNOWN

    def edges(self):
        yield Edge(lambda x, group: x, source="P(sum)")
        yield Edge(lambda x, group: x, target="R", by=("all_reduce", "all_reduce"), bytes=sent)


@attrs.frozen
class Timed(Placement):
    text: ClassVar[str] = "Timed"

    def edges(self):
        yield Edge(
            lambda x, group: x,
            target="R",
            by="broadcast",
            bytes=lambda shape, itemsize, count: 100.0,
            seconds=lambda topology, shape, itemsize, count: topology.base_latency * math.prod(shape) * count,
        )


@attrs.frozen
class Miscounted(Placement):
    text: ClassVar[str] = "Miscounted"

    def edges(self):
        yield Edge(lambda x, group: x, target="R", by="broadcast", bytes=lambda shape, itemsize, count: (1.0, 2.0))
        yield Edge(lambda x, group: x, source="R", by="broadcast", bytes=lambda shape, itemsize, count: shape[2])


@pytest.mark.parametrize(("count", "wire"), [(2, 65_536), (4, 98_304), (8, 114_688)])
def test_a_low_rank_sum_of_a_matrix_costs_what_its_factors_are(count: int, wire: float) -> None:
    mesh = Mesh({"a": count})
    plan = plan_reshard((4096, 4096), "f32", "a: LowRank", "", mesh)
    assert plan.wire_bytes == pytest.approx(wire)
    assert plan.lower_bound is None, "no bound is known of what sends a function of the shape"
    dense = plan_reshard((4096, 4096), "f32", "a: P", "", mesh)
    assert dense.wire_bytes == pytest.approx(2 * (count - 1) / count * 4 * 4096**2)


def test_the_seconds_of_several_collectives_are_those_of_each() -> None:
    mesh = Mesh({"a": 4})
    (step,) = plan_reshard((4096, 4096), "f32", "a: LowRank", "", mesh).steps
    (dense,) = plan_reshard((4096, 2), "f32", "a: P", "", mesh).steps
    once = step_cost(dense, (4096, 2), 4, mesh, H100X8)
    assert step_cost(step, (4096, 4096), 4, mesh, H100X8).seconds == pytest.approx(2 * once.seconds)


def test_seconds_of_an_edge_replace_those_of_its_collective() -> None:
    mesh = Mesh({"a": 4})
    (step,) = plan_reshard((8, 3), "f32", "a: Timed", "", mesh).steps
    cost = step_cost(step, (8, 3), 4, mesh, H100X8)
    assert (cost.wire_bytes, cost.seconds) == (100.0, pytest.approx(H100X8.base_latency * 24 * 4))
    assert sends_anything(step, (8, 3), mesh)
    assert step_cost(step, (8, 3), 4, Mesh({"a": 1}), H100X8).seconds == 0


def test_the_price_of_an_axis_is_that_of_the_local_shape() -> None:
    local = TensorMeta((64, 16), "bf16")
    assert axis_price(LowRank(), R, 2048.0, 4, local=local).wire_bytes == pytest.approx(2 * 3 / 4 * 2 * (64 + 16) * 2)
    assert math.isnan(axis_price(LowRank(), R, 1.0, 4).seconds)


def test_a_bound_is_unknown_where_a_placement_is_neither_shard_nor_partial() -> None:
    mesh = Mesh({"a": 4})
    assert lower_bound((8, 3), 4, parse_sharding("a: Timed"), parse_sharding(""), mesh) is None


def test_bytes_that_are_no_number_for_each_collective_are_an_error_where_they_are_written() -> None:
    mesh = Mesh({"a": 2})
    with pytest.raises(ShardingError, match=r"`bytes` returns \(1.0, 2.0\) for \[8, 3\] on 2 ranks; expected") as found:
        plan_reshard((8, 3), "f32", "a: Miscounted", "", mesh)
    assert found.value.location is not None and found.value.location.file == __file__
    with pytest.raises(PluginError, match=r"`bytes` fails for \(\(8, 3\), 4, 2\): IndexError"):
        plan_reshard((8, 3), "f32", "", "a: Miscounted", mesh)


def test_an_edge_that_says_its_bytes_twice_or_of_no_collective_is_an_error() -> None:
    with pytest.raises(ShardingError, match="declares `bytes` but no collective"):
        Edge(lambda x, group: x, target="R", bytes=sent)
    with pytest.raises(ShardingError, match="declares both `bytes` and `itemsize`"):
        Edge(lambda x, group: x, target="R", by="broadcast", itemsize=1, bytes=sent)


def test_an_error_that_is_a_number_is_rejected_when_its_class_is_made() -> None:
    with pytest.raises(ShardingError, match=r"Rough is 0.1; expected an ErrorBound, as in `error = ErrorBound\(0.1\)`"):

        class Rough(PartialPlacement):
            text: ClassVar[str] = "Rough"
            error = 0.1  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("error", "bound", "text"),
    [
        (ErrorBound(), 0.0, "exact"),
        (ErrorBound(0.25), 0.25, "0.25 of the sum of the norms of the local tensors before the step (max)"),
        (ErrorBound(0.5, "l2", "result"), 0.5, "0.5 of the norm of the exact value (l2)"),
        (
            ErrorBound(lambda shape, count: (1 - count / math.prod(shape)) ** 0.5, "l2"),
            0.5,
            "a function of the shape of the sum of the norms of the local tensors before the step (l2)",
        ),
        (UNKNOWN, None, "unknown"),
    ],
)
def test_errors_are_bounds_in_a_norm_or_unknown(error: ErrorBound, bound: float | None, text: str) -> None:
    assert error.bound((4,), 3) == bound
    assert str(error) == text
    assert bool(error) == (text != "exact")


@pytest.mark.parametrize("wrong", [{"factor": -1.0}, {"factor": math.nan}, {"norm": "l3"}, {"of": "sum"}])
def test_an_error_in_no_norm_is_rejected(wrong: dict) -> None:
    with pytest.raises(ShardingError, match=f"`{next(iter(wrong))}` of an ErrorBound is"):
        ErrorBound(**wrong)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target": 5}, "`target` of Edge is 5 of type int; expected a text, or None"),
        ({"by": 5}, "`by` of Edge is 5 of type int; expected the name of a collective, or a tuple of names"),
        ({"bytes": 5, "by": "broadcast"}, "`bytes` of Edge is 5 of type int; expected a function, or None"),
        ({"itemsize": -1}, "`itemsize` of Edge is -1 of type int; expected a finite number of at least 0, or None"),
        ({"lower": None}, "`lower` of Edge is None of type NoneType; expected a function"),
    ],
)
def test_a_field_of_the_wrong_kind_is_an_error_at_the_line_of_the_edge(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ShardingError, match=message) as caught:
        Edge(**{"lower": lambda x, group: x, "target": "R", **fields})
    assert caught.value.location is not None and caught.value.location.file == __file__


@attrs.frozen
class Unrun(ShardPlacement):
    text: ClassVar[str] = "Unrun({dim})"
    dim: int

    def runs(self, size, count):
        return None


def test_runs_that_are_no_tuple_are_an_error_at_their_line() -> None:
    with pytest.raises(PluginError, match=r"`runs` of Unrun\(0\) returns None .*; expected a tuple of") as caught:
        plan_reshard((8, 4), "f32", "a: Unrun(0)", "", Mesh({"a": 2}))
    assert caught.value.location is not None and caught.value.location.file == __file__
