"""Every collective, simulated on every rank, against the placements' reference semantics."""

import pytest
import torch

from spmdir.lowering import simulate
from spmdir.mesh import Mesh
from tests.lowering.programs import programs

KINDS = ("slice", "partition", "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "permute", "broadcast")
MESHES = (Mesh({"a": 2}), Mesh({"a": 3}), Mesh({"a": 2, "b": 2}), Mesh({"a": 2, "b": 3}))
SHAPES = ((6, 12), (7, 5), (5, 1), (2, 0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_collective_keeps_the_global_value_whatever_the_sizes_and_nesting_orders(mesh, kind):
    count = 0
    for shape in SHAPES:
        for program in programs(mesh, kind, shape):
            x = torch.arange(shape[0] * shape[1], dtype=torch.float64).reshape(shape) + 1
            (y,) = simulate(program.parse(), [x])
            torch.testing.assert_close(y, x, msg=lambda m, program=program: f"{program.text}\n{m}")
            count += 1
    assert count or kind in ("all_to_all", "permute")
