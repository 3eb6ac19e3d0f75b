"""Whole models: the imported program computes what eager does, and its text reads back as it was written."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from spmdir.dialects.ir import parse, print_ir
from spmdir.importer.importer import import_fx
from spmdir.simulator.simulate import run_single
from tests.importer.imported_programs import MESH, arguments, ops
from tests.models import plans, zoo

STAGES = {"functional": {}, "core": torch.export.default_decompositions}
VARIANTS = [
    *((name, "sdpa", "training") for name in zoo.MODELS),
    *((name, "sdpa", "functional") for name in zoo.MODELS),
    *((name, "eager", "core") for name in zoo.MODELS),
    ("llama", "sdpa", "core"),
]
TRAINED = [("mlp", "sgd"), ("llama", "adamw"), ("gpt2", "sgd"), ("t5", "sgd")]


def _of_models(names: str, rows: Iterable[tuple[str, ...]]) -> pytest.MarkDecorator:
    """One worker runs all cases of a model, whose traced programs are made once a process."""
    cases = [pytest.param(*row, id="-".join(row), marks=pytest.mark.xdist_group(row[0])) for row in rows]
    return pytest.mark.parametrize(names, cases)


@cache
def _stage(name: str, attention: str, stage: str) -> Any:
    program, _ = zoo.forward_program(name, attention=attention)
    table = STAGES.get(stage)
    return program if table is None else program.run_decompositions(table() if callable(table) else table)


@_of_models("name, attention, stage", VARIANTS)
def test_the_imported_forward_computes_what_eager_does(name, attention, stage):
    program, inputs = zoo.forward_program(name, attention=attention)
    module = import_fx(_stage(name, attention, stage), MESH)
    (found,) = run_single(module, inputs, program.state_dict)
    torch.testing.assert_close(found, zoo.eager_model(name, attention=attention)(*inputs))


@_of_models("name, optimizer", TRAINED)
def test_the_imported_training_step_computes_what_eager_does(name, optimizer):
    graph, leaves, _ = zoo.training_graph(name, optimizer)
    module = import_fx(graph, MESH, plans.plan(name, "fsdp_tensor_parallel"))
    step, given = zoo.training_case(name, optimizer, torch.float64, 4, 8)
    torch.manual_seed(0)
    expected = pytree.tree_leaves(step(*given))
    torch.manual_seed(0)
    for found, wanted in zip(run_single(module, leaves), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@_of_models("name", zip(zoo.MODELS))
def test_every_model_reads_back_as_it_was_written(name):
    module = import_fx(_stage(name, "sdpa", "functional"), MESH, plans.plan(name, "fsdp_tensor_parallel"))
    for generic in (False, True):
        text = print_ir(module, generic=generic)
        assert print_ir(parse(text), generic=generic) == text


@_of_models("name, kind", itertools.product(zoo.MODELS, plans.KINDS))
def test_every_plan_fits_its_model(name, kind):
    given = plans.plan(name, kind)
    module = import_fx(_stage(name, "sdpa", "functional"), MESH, given)
    assert any(arguments(module).values()) == bool(given)


@_of_models("name", zip(zoo.MODELS))
def test_a_constrained_residual_is_a_constraint_after_every_block(name):
    program, _ = zoo.forward_program(name, residual=plans.RESIDUAL)
    module = import_fx(program, MESH, plans.plan(name, "tensor_parallel"))
    found = [str(o.shardings[0]) for o in ops(module) if o.name == "spmd.constraint"]
    assert found == [plans.RESIDUAL] * (4 if name == "t5" else 2)
