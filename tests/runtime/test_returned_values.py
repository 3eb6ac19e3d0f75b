"""Values other than tensors that a program takes and returns are of the type and value that they are on one device."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spmdir

pytestmark = pytest.mark.gloo

MESH = spmdir.Mesh({"dp": 1})
GIVEN = (True, 3, 2.0, "relu", None)


class Returning(nn.Module):
    """Returns its arguments, and values that it computes from them and from sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)
        nn.init.ones_(self.layer.weight)

    def forward(self, x: Tensor, flag: bool, count: int, scale: float, name: str, nothing: None) -> Any:
        y = self.layer(x) * (scale if flag else count)
        return y, {"given": (flag, count, scale, name, nothing)}, count + 1, x.shape[0], False


def module() -> Callable[..., Any]:
    return spmdir.shard_module(Returning(), MESH, {}, (torch.ones(2, 2), *GIVEN))


def forward() -> Callable[..., Any]:
    return spmdir.parallelize(Returning(), MESH, {}, (torch.ones(2, 2), *GIVEN))


def step() -> Callable[..., Any]:
    model = Returning()
    state = dict(model.named_parameters())
    examples = (torch.ones(2, 2), *GIVEN)
    return spmdir.parallelize(
        lambda state, *args: (torch.func.functional_call(model, state, args), state), MESH, {}, examples, state=state
    )


@pytest.mark.parametrize("front", [module, forward, step], ids=lambda front: front.__name__)
def test_returned_values_have_the_type_of_one_device(alone, front):
    x = torch.ones(2, 2)
    _, *found = front()(x, *GIVEN)
    assert repr(found) == repr([{"given": GIVEN}, 4, 2, False])


@pytest.mark.parametrize("front", [forward, step], ids=lambda front: front.__name__)
@pytest.mark.parametrize("equal", [(1, 3, 2.0), (True, 3.0, 2.0), (True, 3, 2)])
def test_an_equal_value_of_another_type_is_another_program(alone, front, equal):
    with pytest.raises(spmdir.SpmdirError, match=r"argument \d is \d"):
        front()(torch.ones(2, 2), *equal, *GIVEN[3:])


def test_a_module_has_a_program_for_each_of_equal_values_that_differ(alone):
    x = torch.ones(2, 2)
    sharded = module()
    for scale in (0.0, -0.0, 1, 1.0, True, math.nan, math.nan):
        y, found, *_ = sharded(x, True, 3, scale, "relu", None)
        assert repr(found["given"][2]) == repr(scale)
        assert repr(y[0, 0].item()) == repr(2.0 * scale)
    assert len(spmdir.report.rank_programs(sharded)) == 7  # one for the examples, and one for both NaNs
