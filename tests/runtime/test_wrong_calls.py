"""Calls of the front doors that they do not take: an error says what was expected, before it asks for ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir

MESH = spmdir.Mesh({"dp": 1})
X = torch.ones(4, 4)
GRAPH = make_fx(lambda x: x + 1)(X)
ORDER = "; the order of arguments is (model, mesh, plan, example_inputs)"
DOORS = [spmdir.shard_module, spmdir.parallelize]


def step(**options: Any) -> object:
    model = nn.Linear(4, 4)
    return spmdir.training_step(model, lambda model, x: model(x).sum(), torch.optim.SGD(model.parameters()), **options)


import_fx: Any = spmdir.import_fx
UNNAMED: dict[str, tuple[Callable[[], object], str]] = {
    "an earlier name": (
        lambda: import_fx(GRAPH, MESH, shardings={}),
        "no argument 'shardings'; expected program",
    ),
    "what it is now": (lambda: import_fx(GRAPH, MESH, shardings={}), "; use 'plan'"),
    "a short name": (lambda: step(clip=1.0), "training_step has no argument 'clip'; expected model, loss, optimizer"),
    "its full name": (lambda: step(clip=1.0), "; use 'clip_grad_norm'"),
    "no argument": (lambda: import_fx(), "missing a required argument: 'program'; expected (program,"),
    "too many": (lambda: import_fx(GRAPH, MESH, None, None, 5), "too many positional arguments; expected"),
}


@pytest.mark.parametrize("case", UNNAMED)
def test_a_call_with_other_arguments_than_a_function_has_is_an_error(case: str) -> None:
    call, message = UNNAMED[case]
    with pytest.raises(spmdir.SpmdirError, match=re.escape(message)):
        call()


WRONG: dict[str, tuple[tuple[Any, ...], Mapping[str, Any], str]] = {
    "an earlier order": ((nn.Linear(4, 4), (X,), MESH, {}), {}, ORDER),
    "a mesh that is a dict": ((nn.Linear(4, 4), {"dp": 1}, {}, (X,)), {}, "mesh is {'dp': 1} of type dict; expected a"),
    "inputs that are a tensor": ((nn.Linear(4, 4), MESH, {}, X), {}, "of type Tensor; expected a tuple of positional"),
    "an option of another type": ((nn.Linear(4, 4), MESH, {}, (X,)), {"local_inputs": "yes"}, "expected True or False"),
    "an earlier name": ((nn.Linear(4, 4), MESH, None, (X,)), {"shardings": {}}, "; use 'plan'"),
    "a pipeline that is a list": ((nn.Linear(4, 4), MESH, {}, (X,)), {"pipeline": []}, "pipeline is [] of type list"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_comes_before_a_missing_process_group(case: str, door: Callable[..., Any]) -> None:
    args, options, message = WRONG[case]
    with pytest.raises(spmdir.SpmdirError, match=re.escape(message)):
        door(*args, **options)


REFUSED: dict[str, tuple[tuple[Any, ...], Mapping[str, Any], str]] = {
    "an input too many": ((X, X), {}, "the forward of Linear cannot be called with the example inputs: too many"),
    "an axis of an output": ((X,), {"out_shardings": ["zz: S(0)"]}, "sharding of output 0 (4x4xf32): axis 'zz'"),
    "a dimension of an output": ((X,), {"out_shardings": ["dp: S(5)"]}, "sharding of output 0 (4x4xf32): S(5)"),
    "a dimension too far": ((X,), {"dynamic_shapes": ({2: Dim.AUTO},)}, "dimension 2 of argument 'input', which has 2"),
    "a dimension below 0": (
        (X,),
        {"dynamic_shapes": ({-3: Dim.AUTO},)},
        "dimension -3 of argument 'input', which",
    ),
    "sizes of no argument": (
        (X,),
        {"dynamic_shapes": {"x": {0: Dim.AUTO}}},
        "the argument 'x'; expected one of i",
    ),
    "sizes for two": (
        (X,),
        {"dynamic_shapes": ({}, {})},
        "has 2 entries; expected one for each of input",
    ),
    "sizes that are a number": ((X,), {"dynamic_shapes": (5,)}, "has 5 for argument 'input'; expected its dimensions"),
    "nothing decided": ((X,), {"pipeline": ""}, "has no sharding after the pipeline; expected `propagate` in it"),
}


@pytest.mark.filterwarnings("ignore::spmdir.errors.SpmdirWarning")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_the_model_is_an_error(case: str, door: Callable[..., Any], alone: None) -> None:
    inputs, options, message = REFUSED[case]
    with pytest.raises(spmdir.SpmdirError, match=re.escape(message)) as caught:
        door(nn.Linear(4, 4), MESH, {}, inputs, **options)
    assert "0:0" not in str(caught.value) and "tangents" not in str(caught.value)


def test_reports_say_what_to_give_of_what_runs_on_ranks(alone: None) -> None:
    parallel = spmdir.parallelize(nn.Linear(4, 4), MESH, {"input": "dp: S(0)"}, (X,))
    sharded = spmdir.shard_module(nn.Linear(4, 4), MESH, {"input": "dp: S(0)"}, (X,))
    programs = spmdir.report.rank_programs(sharded)
    for value, hint in ((parallel, "its `.module`"), (programs, "its `[0].module`"), (programs[0], "its `.module`")):
        for report in (spmdir.report.comm_report, spmdir.report.memory_report, spmdir.report.schedule_report):
            with pytest.raises(spmdir.SpmdirError, match=re.escape(f"; pass {hint}, or its ")):
                report(value)  # type: ignore


def test_an_error_at_a_module_without_source_lines_names_the_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    module = spmdir.import_fx(torch.export.export(model, (X,)), spmdir.Mesh({"dp": 2}))
    with pytest.raises(spmdir.SpmdirError, match=r"^module '0': error: an operand of 'aten.linear' has no shard"):
        spmdir.run_passes(module, "insert-reshard")
