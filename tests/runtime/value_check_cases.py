"""What each rank does in `test_value_check_on_ranks`: a model with an op that flips a bit on one rank."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

import spmdir
from spmdir.core.mesh import Mesh

FAULTY_RANK = 2
faults: list[bool] = []
"""Not empty while the op flips a bit on FAULTY_RANK."""


@torch.library.custom_op("value_check_cases::scale", mutates_args=())
def scale(x: Tensor) -> Tensor:
    """Double a tensor; with a fault, flip the sign bit of one element."""
    result = 2 * x
    if faults and dist.is_initialized() and dist.get_rank() == FAULTY_RANK:
        result.view(-1)[3] *= -1
    return result


@scale.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Net(nn.Module):
    """Two linear layers with a scale between them."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.sin(scale(self.up(x))))


RULE = "value_check_cases.scale(x: *) -> *\n"
PLAN = {"x": "dp: S(0)", "up.*": "tp: S(0)", "down.weight": "tp: S(1)", "down.bias": ""}


def message_of(check) -> str:
    """Return the text of the error that `check` raises, or its result."""
    try:
        return str(check())
    except spmdir.SpmdirError as error:
        return str(error)


def run(rank: int, rules: str) -> dict[str, str]:
    torch.manual_seed(0)
    model, x = Net().double(), torch.randn(4, 8, dtype=torch.float64)
    pipeline = spmdir.Pipeline(spmdir.pipeline.pipeline.SCHEDULED, plugins=[rules])
    parallel = spmdir.parallelize(model, Mesh({"dp": 2, "tp": 2}), PLAN, (x,), pipeline=pipeline)
    texts = {"right": message_of(lambda: parallel.check(x))}
    faults.append(True)
    texts["fault"] = message_of(lambda: parallel.check(x))
    faults.clear()
    if rank == FAULTY_RANK:
        with torch.no_grad():
            parallel.state["down.bias"].to_local()[1] += 1
    texts["state"] = message_of(lambda: parallel.check(x))
    return texts
