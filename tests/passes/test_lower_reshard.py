"""Reshards become collectives that give the same value and share their steps."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Partial, Shard
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import run_passes
from spmdir.report.communication import comm_report
from spmdir.reshard.plan import plan_reshard
from spmdir.simulator.simulate import simulate

PLACEMENTS = [None, Shard(0), Shard(1), Partial("sum")]


@st.composite
def reshards(draw: st.DrawFn) -> tuple[Mesh, tuple[int, int], Sharding, list[Sharding]]:
    mesh = Mesh(dict(zip("ab", draw(st.sampled_from([(2,), (3,), (2, 2), (2, 3)])), strict=False)))

    def sharding() -> Sharding:
        axes = draw(st.permutations(mesh.axis_names))
        placed = [(axis, draw(st.sampled_from(PLACEMENTS))) for axis in axes]
        return Sharding([(axis, placement) for axis, placement in placed if placement])

    shape = (draw(st.integers(1, 7)), draw(st.integers(1, 7)))
    return mesh, shape, sharding(), [sharding() for _ in range(draw(st.integers(1, 3)))]


@settings(max_examples=50)
@given(reshards())
def test_lowered_reshards_keep_the_value_and_send_no_more_than_one_by_one(case) -> None:
    mesh, shape, source, targets = case
    type_ = f"tensor<{shape[0]}x{shape[1]}xf64>"
    comma = ", " if source.entries else ""
    attribute = f"{{spmd.sharding = #spmd.sharding<@mesh{comma}{source}>}}"
    lines = [f"%v{number} = spmd.reshard %x : {type_} <{target}>" for number, target in enumerate(targets)]
    names, types = (", ".join(part) for part in ([f"%v{n}" for n in range(len(targets))], [type_] * len(targets)))
    body = "\n".join([*lines, f"return {names} : {types}"])
    text = f"spmd.mesh @mesh {mesh}\nfunc.func @main(%x: {type_} {attribute}) -> ({types}) {{\n{body}\n}}\n"
    module = run_passes(ir.parse(text), "lower-reshard{topology=flat},verify-spmd{before-reshard}")
    assert "spmd.reshard" not in ir.print_ir(module)
    report = comm_report(module)
    alone = [plan_reshard(shape, "f64", source, target, mesh, "flat") for target in dict.fromkeys(targets)]
    assert report.wire_bytes <= sum(plan.wire_bytes for plan in alone) + 1e-6
    assert report.wire_bytes >= report.lower_bound - 1e-6
    value = torch.arange(shape[0] * shape[1], dtype=torch.float64).reshape(shape)
    for output in simulate(module, [value]):
        torch.testing.assert_close(output, value)
