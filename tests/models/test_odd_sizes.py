"""Models of sizes that no axis divides, however their parameters and inputs are sharded."""

from __future__ import annotations

import warnings

import pytest

import spmdir
from spmdir.core.errors import SpmdirWarning
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.rules.rule_set import default
from tests.models import cases, decisions, zoo

SIZES = (3, 7)
MESHES = ("2x4", "2x2x2")
CASES = [
    (name, kind, mesh)
    for place, name in enumerate(zoo.ODD_MODELS)
    for kind, mesh in ((("core", "")[place % 2], "2x2x2"), ("sgd", MESHES[place % 2]))
]
"""Each model exported, with one of the sorts of decompositions, and as a training step; `benchmarks/correctness.py`
tries all kinds on both meshes, with more shardings."""

TRACED = [
    *((name, kind) for name in zoo.ODD_MODELS for kind in ("", "inference", "core", "sgd")),
    *((name, "adamw") for name in ("odd_mlp", "odd_moe")),
]
"""How a model is traced: exported, with both sorts of decompositions, and training steps."""

CHECKED = [(name, kind) for name, kind in TRACED if kind != "sgd"]
"""The steps of all models would take longer than the rest; those of two are among them."""


def _case(name: str, kind: str, *rest: str):
    title = " ".join([name, kind or "exported", *rest])
    return pytest.param(name, kind, *rest, id=title, marks=pytest.mark.xdist_group(name))


@pytest.mark.parametrize(("name", "kind", "mesh"), [_case(*row) for row in CASES])
def test_any_shardings_give_what_one_device_gives(name, kind, mesh):
    assert cases.worst_error(f"{name}:{kind}", f"random {mesh} {kind}", mesh, sizes=SIZES) < 1e-9


@pytest.mark.parametrize(("name", "kind"), [_case(*row) for row in TRACED])
def test_every_op_has_a_rule(name, kind):
    layout = cases.LAYOUTS["2x4"]
    traced = cases.program_of(f"{name}:{kind}", "none", layout, sizes=SIZES).traced
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpmdirWarning)
        module = spmdir.import_fx(traced, layout.mesh)
    ops = [op for op in ir.main_function(module).body.block.ops if isinstance(op, AtenOp)]
    assert {op.name for op in ops if default().instantiate(op.call()) is None} == set()


@pytest.mark.parametrize(("name", "kind"), [_case(*row) for row in CHECKED])
@pytest.mark.filterwarnings("ignore::spmdir.core.errors.SpmdirWarning")
def test_the_imported_program_computes_what_its_graph_does(name, kind):
    program = cases.program_of(f"{name}:{kind}", "none", cases.LAYOUTS["2x4"], sizes=SIZES)
    spmdir.import_fx(program.traced, cases.LAYOUTS["2x4"].mesh, example_inputs=program.inputs, check=True)


@pytest.mark.parametrize(
    ("name", "kind", "mesh"),
    [
        _case("odd_mlp", "sgd", "2x2x2"),
        _case("odd_moe", "sgd", "2x4"),
        _case("odd_llama", "core", "2x4"),
        _case("odd_gpt2", "", "2x2x2"),
        _case("odd_bert", "sgd", "3"),
        _case("odd_mixtral", "", "2x4"),
        _case("odd_mamba", "core", "3"),
        _case("odd_vit", "sgd", "3"),
        _case("odd_t5", "", "3"),
    ],
)
def test_any_strategies_of_all_ops_together_give_what_one_device_gives(name, kind, mesh, monkeypatch):
    decisions.decide_at_random(monkeypatch, f"{name} {kind}")
    assert cases.worst_error(f"{name}:{kind}", f"random {mesh}", mesh, sizes=SIZES) < 1e-9
