"""What `torch.compile(model, backend="spmdir")` finds, and what it calls the inputs of a graph."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from spmdir.runtime.backend import from_options, input_names

ROOT = Path(__file__).parents[2]


def test_an_installed_spmdir_is_found_by_name() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    assert EntryPoint("spmdir", table["spmdir"], "torch_dynamo_backends").load() is from_options


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    def forward(self, x: Tensor, given: dict[str, list[Tensor]]) -> Tensor:
        return self.up(x) * given["scales"][0]


def names_of(function: Any, *args: Any) -> list[str]:
    """Return the names of the inputs of what Dynamo makes of a function."""
    found: list[str] = []

    def take(graph: fx.GraphModule, example_inputs: Any) -> Any:
        found.extend(input_names(graph))
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=take)(*args)
    return found


X, GIVEN = torch.ones(2, 2), {"scales": [torch.ones(2)]}


def test_parameters_and_buffers_are_called_as_in_the_module_and_arguments_as_in_the_function() -> None:
    found = names_of(Scaled(), X, GIVEN)
    held = [f"up.0.{name}" for name in ("weight", "bias")] + [f"up.1.{name}" for name in ("weight", "bias")]
    held += [f"up.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")]
    assert sorted(found) == sorted([*held, "x", "given.scales.0"])


def test_names_that_two_modules_have_begin_with_the_module() -> None:
    one, other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)

    def both(x: Tensor) -> Tensor:
        return one(x) + other(x)

    found = names_of(both, X)
    assert len(set(found)) == 3 and "x" in found
    assert all(name.endswith(".weight") for name in found if name != "x")
