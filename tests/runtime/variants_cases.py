"""Calls of sharded modules that are built otherwise than the example; cases return what their tests compare."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.export import Dim

import spmdir
from spmdir.core.errors import SpmdirError

SOON = 5.0
"""Seconds after which a rank that does not come is an error."""

MESH = spmdir.Mesh({"dp": 2})
X, Y, MASK = (
    torch.randn(8, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in range(3)
)


class Optional(nn.Module):
    """Takes a dict, and arguments that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(
        self, inputs: dict[str, Tensor], mask: Tensor | None = None, scale: float = 1.0, **further: Tensor
    ) -> dict[str, Tensor]:
        hidden = sum(self.layer(each) * (number + 1) for number, each in enumerate(inputs.values())) * scale
        if mask is not None:
            hidden = hidden * mask
        for number, each in enumerate(further.values()):
            hidden = hidden + each * number
        if "labels" not in further:
            return {"logits": hidden}
        return {"loss": (hidden - further["labels"]).square().mean(), "logits": hidden}


Call = tuple[tuple[Any, ...], dict[str, Any]]

CALLS: dict[str, Call] = {
    "as the example": (({"a": X, "b": Y},), {"labels": Y}),
    "keys in another order": (({"b": Y, "a": X},), {"labels": Y}),
    "keyword arguments in another order": (({"a": X, "b": Y},), {"other": X, "labels": Y}),
    "and back": (({"a": X, "b": Y},), {"labels": Y, "other": X}),
    "a mask": (({"a": X, "b": Y}, MASK), {"labels": Y}),
    "a mask by its name": (({"a": X, "b": Y},), {"labels": Y, "mask": MASK}),
    "a number": (({"a": X, "b": Y},), {"scale": 2.0, "labels": Y}),
    "an integer": (({"a": X, "b": Y},), {"scale": 2, "labels": Y}),
    "no labels": (({"a": X},), {}),
}


def full(value: Any) -> Any:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


def called(model: nn.Module, call: Call) -> dict[str, Any]:
    """The outputs of a call, and the gradients of their sum."""
    model.zero_grad()
    outputs = model(*call[0], **call[1])
    sum(output.square().mean() for output in outputs.values()).backward()
    gradients = [full(parameter.grad) for parameter in model.parameters()]
    return {"outputs": {key: full(output) for key, output in outputs.items()}, "gradients": gradients}


def structures() -> dict[str, Any]:
    """What each call gives on ranks and on one device, twice; and how many programs there are."""
    alone = Optional().double()
    args, kwargs = CALLS["as the example"]
    sharded = spmdir.shard_module(copy.deepcopy(alone), MESH, {"arg*": "dp: S(0)"}, args, example_kwargs=kwargs)
    found: dict[str, Any] = {}
    for name, call in (*CALLS.items(), *CALLS.items()):
        found[name] = (called(sharded, call), called(alone, call))
    found["programs"] = len(spmdir.report.rank_programs(sharded))
    found["limit"] = error_of(lambda: [sharded(*args, labels=Y, scale=float(number)) for number in range(3, 20)])
    return found


def shards() -> dict[str, Any]:
    """Calls with shards of inputs and outputs, and sizes that change, without an argument of the example."""
    model, args, kwargs = Optional().double(), *CALLS["as the example"]
    own = lambda tensor: tensor.chunk(2)[dist.get_rank()]  # noqa: E731
    local = spmdir.shard_module(
        model,
        MESH,
        {"arg*": "dp: S(0)"},
        args,
        example_kwargs={**kwargs, "mask": MASK},
        out_shardings=[None, "dp: S(0)"],
        local_inputs=True,
    )
    with torch.no_grad():
        mine = local({"a": own(X), "b": own(Y)})["logits"]
        expected = own(model({"a": X, "b": Y})["logits"])
        unknown = error_of(lambda: local({"a": own(X), "c": own(Y)}))
        rows = {0: Dim("rows", min=2)}
        sizes = {"inputs": {"a": rows, "b": rows}, "further": {"labels": rows}}
        dynamic = spmdir.shard_module(model, MESH, {}, args, example_kwargs=kwargs, dynamic_shapes=sizes)
        smaller = [each({"b": Y[:5]})["logits"] for each in (dynamic, model)]
    return {"logits": (mine, expected), "unknown": unknown, "smaller": smaller}


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except SpmdirError as error:
        return error.message
    return ""


class Factor(nn.Module):
    """Reads an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(4, 4), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.factor


def different_state() -> list[str]:
    """The errors of a rank whose state alone has changed, or of the others: in a first and in a third call."""
    errors = []
    for calls in (0, 2):  # ranks compare the inputs of the first, the second and the fourth call
        torch.manual_seed(0)
        sharded = spmdir.shard_module(Factor().double(), MESH, {"*": "dp: S(0)", "x": "dp: S(0)"}, (X,))
        for _ in range(calls):
            sharded(X)
        sharded.factor = 1.0 + dist.get_rank()
        errors.append(error_of(lambda: sharded(X)))  # noqa: B023  # called at once
    return errors


def run(rank: int, folder: str) -> dict[str, Any]:
    found = {"structures": structures(), "shards": shards()}
    join(rank, f"{folder}/short", SOON)
    found["different_state"] = different_state()
    join(rank, f"{folder}/last", 60)  # a group that has failed serves nothing more
    return found


def join(rank: int, store: str, timeout: float) -> None:
    dist.destroy_process_group()
    limit = timedelta(seconds=timeout)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=limit)
