"""The collectives that edges of placements call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from spmdir.core.dtype import F32
from spmdir.core.mesh import Mesh
from spmdir.lowering.group import Group
from spmdir.simulator.lockstep import run_lockstep


def _rotation(group: Group, steps: int) -> Callable[[Tensor], tuple[Tensor]]:
    def rotated(x: Tensor) -> tuple[Tensor]:
        return (group.rotate(x, steps),)

    return rotated


@pytest.mark.parametrize("steps", [1, 3, 5, -1, 4])
def test_a_rotation_gives_the_tensor_of_the_rank_as_many_steps_before(steps: int) -> None:
    groups = [Group("mesh:a,b", 4, index, (3,), F32) for index in range(4)]
    programs = [make_fx(_rotation(of, steps), tracing_mode="fake")(torch.empty(3)) for of in groups]
    found = run_lockstep(programs, [[torch.full((3,), float(rank))] for rank in range(4)], Mesh({"a": 2, "b": 2}))
    assert [int(out[0]) for (out,) in found] == [(rank - steps) % 4 for rank in range(4)]
