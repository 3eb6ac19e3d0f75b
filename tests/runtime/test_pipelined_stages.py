"""torch's pipelining runs stages that `shard_module` partitions, in orders that spmdir makes."""

from __future__ import annotations

from pathlib import Path

from spmdir.pipelined.kinds import make_order
from spmdir.pipelined.rows import print_csv
from spmdir.pipelined.times import equal_stages
from tests.lowering.gloo_ranks import on_ranks
from tests.runtime import pipelined_cases


def test_gradients_equal_those_of_one_device(tmp_path: Path) -> None:
    orders = {}
    for kind in ("1f1b", "zb"):
        order = make_order(kind, pipelined_cases.RANKS, pipelined_cases.MICRO, equal_stages(2, 1, 1, 1))
        orders[kind] = str(tmp_path / f"{kind}.csv")
        Path(orders[kind]).write_text(print_csv(order))
    for errors in on_ranks(4, pipelined_cases.run, tmp_path, orders):
        assert errors.keys() == orders.keys()
        assert max(errors.values()) < 1e-12
