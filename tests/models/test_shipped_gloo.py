"""Training steps with zig-zag sequences and cyclic parameters on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

import spmdir
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.values import sharding_of
from spmdir.simulator.distribution import collect
from tests.lowering.gloo_ranks import on_ranks
from tests.models import cases, shipped

CASES = {
    "odd_llama:sgd": (Mesh({"cp": 4}), "cp: ZigZag(1)", {"*norm.weight": "", "*weight": "cp: Cyclic(0, 2)"}),
    "odd_gpt2:sgd": (
        Mesh({"dp": 2, "cp": 2}),
        "cp: ZigZag(1), dp: S(0)",
        {"*weight": "dp: Cyclic(0, 1), cp: ZigZag(0)"},
    ),
}
"""Training step → mesh, the sharding of tokens and labels, those of parameters."""


@pytest.mark.gloo
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name.partition(":")[0])) for name in CASES]
)
def test_real_ranks_train_as_one_device_does(name: str, tmp_path: Path) -> None:
    mesh, tokens, parameters = CASES[name]
    program = cases.program_of(name, "none", cases.Layout(mesh), sizes=(3, 7))
    module = spmdir.import_fx(program.traced, mesh, {"arg*": tokens, **parameters})
    spmdir.run_passes(module, cases.PIPELINE)
    shards = on_ranks(mesh.world_size, shipped.run, tmp_path, str(module), program.inputs)
    results = ir.terminator(ir.main_function(module)).operands
    for index, (value, expected) in enumerate(zip(results, program.expected, strict=False)):
        found = collect(
            [outputs[index] for outputs in shards], sharding_of(value) or Sharding(), mesh, tuple(expected.shape)
        )
        assert cases.error(found, expected) < cases.EXACT
