"""What is drawn again from one state of the generator is what eager draws, or an error."""

# pyright: reportArgumentType=false
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from spmdir.core.errors import UnsupportedError
from spmdir.runtime.training import training_step

X = torch.linspace(0.1, 0.9, 12, dtype=torch.float64).reshape(3, 4)


class Model(nn.Module):
    """A weight that the loss has to use, so that there is something to train."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))


def step_of(draw: Callable[[Tensor], Tensor]) -> tuple[Callable[..., Tensor], dict]:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters())
    step, state = training_step(model, lambda model, x: draw(x * model.weight).sum(), optimizer)
    return lambda state, x: step(state, x)[0], state


def twice(first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def draw(x: Tensor) -> Tensor:
        state = torch.get_rng_state()
        before = first(x)
        torch.set_rng_state(state)
        return before + 100 * second(x)

    return draw


def in_place(x: Tensor) -> Tensor:
    y = x * 1
    y.view(-1).mul_(0.5)
    return torch.bernoulli(y)


def hidden_write(x: Tensor) -> Tensor:
    y = x.detach() * 1
    first = twice(torch.bernoulli, lambda _: x)(y)
    state = torch.get_rng_state()
    again = torch.bernoulli(y)
    torch.set_rng_state(state)
    y.view(-1).mul_(0)
    return first + again + torch.bernoulli(y)


DIFFERENT: dict[str, Callable[[Tensor], Tensor]] = {
    "probabilities": twice(lambda x: torch.bernoulli(x, 0.1), lambda x: torch.bernoulli(x, 0.9)),
    "dropped shares": twice(lambda x: F.dropout(x, 0.5), lambda x: F.dropout(x * 3, 0.9)),
    "shares of native dropout": twice(
        lambda x: torch.native_dropout(x, 0.5, True)[0], lambda x: torch.native_dropout(x, 0.9, True)[0]
    ),
    "means": twice(lambda x: torch.normal(x, 1.0), lambda x: torch.normal(x, 2.0)),
    "element types": twice(torch.rand_like, lambda x: torch.rand_like(x, dtype=torch.float32)),
    "tensors of probabilities": twice(torch.bernoulli, lambda x: torch.bernoulli(1 - x)),
    "tensors of means": twice(lambda x: torch.normal(x, 1.0), lambda x: torch.normal(x + 1, 1.0)),
    "probabilities that are written through a view": twice(lambda x: torch.bernoulli(x * 1), in_place),
    "memory that is written in between": hidden_write,
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_an_op_that_draws_again_with_other_arguments_is_an_error_at_its_line(name: str):
    step, state = step_of(DIFFERENT[name])
    with pytest.raises(UnsupportedError, match=r"where the forward drew on other values") as caught:
        make_fx(step, tracing_mode="fake")(state, X)
    assert caught.value.location
    assert caught.value.location.file == "test_watch_step.py"


SAME: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout of other values": twice(lambda x: F.dropout(x, 0.5), lambda x: F.dropout(x * 3, 0.5)),
    "native dropout of other values": twice(
        lambda x: torch.native_dropout(x, 0.5, True)[0], lambda x: torch.native_dropout(x * 3, 0.5, True)[0]
    ),
    "native dropout of all": twice(
        lambda x: torch.native_dropout(x, 1.0, True)[0], lambda x: torch.native_dropout(x * 3, 1.0, True)[0]
    ),
    "equal probabilities": twice(lambda x: torch.bernoulli(x.sigmoid()), lambda x: torch.bernoulli(x.sigmoid())),
    "equal probabilities by writes": twice(
        lambda x: torch.bernoulli((x * 1).sigmoid_()), lambda x: torch.bernoulli((x * 1).sigmoid_())
    ),
    "in place": twice(lambda x: (x * 0).bernoulli_(0.5), lambda x: (x * 2).bernoulli_(0.5)),
    "in checkpoints": lambda x: checkpoint(
        lambda x: torch.bernoulli(F.dropout(x, 0.2).sigmoid()) * x, x, use_reentrant=False
    ),
    "in checkpoints that are reentrant": lambda x: checkpoint(
        lambda x: torch.bernoulli(F.dropout(x, 0.2).sigmoid()) * x, x, use_reentrant=True
    ),
}


@pytest.mark.parametrize("mode", ["fake", "real"])
@pytest.mark.parametrize("name", SAME)
def test_what_is_drawn_again_is_what_eager_draws(name: str, mode: str):
    step, state = step_of(SAME[name])
    traced = make_fx(step, tracing_mode=mode)(state, X)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        expected = step(state, X)
        torch.manual_seed(3)
        found = traced(state, X)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
