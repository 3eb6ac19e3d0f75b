"""A product that is split gives what it gives on one device, beside whatever another axis does, and on real graphs."""

from __future__ import annotations

import pytest
import torch

import spmdir
from spmdir.checking.rules.samples.sample import Sample, f, sample
from spmdir.checking.rules.soundness import judge, prepare
from spmdir.core.mesh import Mesh
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.strategy import shard_counts

SAMPLES = [
    sample("mm", f(4, 6), f(6, 8)),
    sample("bmm", f(4, 2, 6), f(4, 6, 8)),
    sample("linear", f(2, 4, 6), f(8, 6), f(8)),
    sample("addmm", f(4, 8), f(4, 6), f(6, 8), beta=2, alpha=3),
    sample("einsum", [f(2, 4, 6), f(6, 4, 2)], equation="abc,cde->adbe"),
]


@pytest.mark.parametrize("tried", SAMPLES, ids=lambda one: one.op)
def test_a_split_product_is_right_beside_every_strategy_of_another_axis(tried: Sample):
    case, mesh = prepare(tried, default()), Mesh({"x": 2, "y": 2})
    chosen = [
        (("x", other), ("y", split))
        for other in case.rule.strategies(2)
        for split in case.rule.split_strategies(2, shard_counts([(other, 2)]))
        if not {p.kind for p in other.results if p.trait == "partial"} - {"sum"}
    ]
    verdicts = [judge(case, pair, mesh) for pair in chosen]
    assert len({split for _, (_, split) in chosen}) > 3
    assert [f"{one.strategy}: {one.fault}" for one in verdicts if one.fault] == []


SPLIT = """spmd.mesh @mesh <dp = 2, tp = 4>
func.func @f(%x: tensor<2x8x6xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
             %up: tensor<6x12xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
             %down: tensor<12x6xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> tensor<2x8x6xf64> {
  %0 = aten.matmul(%x, %up) : tensor<2x8x12xf64> <dp: S(0), tp: S(2)> attributes {spmd.split}
  %1 = aten.relu(%0) : tensor<2x8x12xf64> <dp: S(0), tp: S(2)>
  %2 = aten.matmul(%1, %down) : tensor<2x8x6xf64> <dp: S(0), tp: S(1)> attributes {spmd.split}
  return %2 : tensor<2x8x6xf64>
}"""


def test_the_graphs_of_all_ranks_give_what_one_device_gives():
    torch.manual_seed(0)
    x, up, down = (torch.randn(*shape, dtype=torch.float64) for shape in ((2, 8, 6), (6, 12), (12, 6)))
    module = spmdir.run_passes(spmdir.parse(SPLIT), "localize,verify-spmd")
    (found,) = spmdir.simulate(module, [x, up, down])
    torch.testing.assert_close(found, torch.relu(x @ up) @ down, rtol=1e-12, atol=1e-12)
    assert spmdir.report.comm_report(module).by_kind.keys() == {"rotate"}


def test_passes_that_run_again_leave_a_split_product_as_it_is():
    again = "insert-reshard,lower-reshard,fuse-collectives,localize"
    texts = [spmdir.print_ir(spmdir.run_passes(spmdir.parse(SPLIT), passes)) for passes in (again, "localize")]
    assert texts[0] == texts[1]
