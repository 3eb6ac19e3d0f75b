"""Models × plans × meshes, simulated and compared with one device; `benchmarks/correctness.py` runs all of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spmdir
from tests.models import cases, test_shipped, zoo

EVEN, UNEVEN, ONE = (4, 8), (3, 7), (1, 5)

FORWARD = [
    ("llama", "tensor_parallel", "2x4", EVEN),
    ("llama", "sequence_parallel", "2x2x2", UNEVEN),
    ("llama", "fsdp", "8dp", EVEN),
    ("llama", "vocab_parallel", "3", ONE),
    ("gpt2", "none", "2x4", UNEVEN),
    ("gpt2", "vocab_parallel", "8", UNEVEN),
    ("gpt2", "fsdp_tensor_parallel", "4x2", EVEN),
    ("gpt2", "data_parallel", "3dp", EVEN),
    ("bert", "tensor_parallel", "3", UNEVEN),
    ("bert", "fsdp", "2x2x2dp", EVEN),
    ("bert", "sequence_parallel", "2x4", ONE),
    ("vit", "fsdp_tensor_parallel", "2x2x2dp", UNEVEN),
    ("vit", "sequence_parallel", "4x2", EVEN),
    ("vit", "none", "8", EVEN),
    ("t5", "vocab_parallel", "3", UNEVEN),
    ("t5", "fsdp", "2x4", EVEN),
    ("t5", "data_parallel", "2x2x2open", UNEVEN),
]
TRAINING = [
    ("llama:adamw", "vocab_parallel", "8", EVEN),
    ("llama:sgd", "fsdp_tensor_parallel", "3dp", UNEVEN),
    ("gpt2:sgd", "sequence_parallel", "2x4", EVEN),
    ("gpt2:adamw", "fsdp", "4x2", UNEVEN),
    ("vit:sgd", "fsdp_tensor_parallel", "3dp", UNEVEN),
    ("mlp:sgd", "none", "2x2x2", UNEVEN),
    *(("mlp:adamw", plan, mesh, UNEVEN) for plan in cases.PLANS for mesh in ("8", "2x4", "2x2x2dp")),
]
SINGLE = [
    ("llama", "fsdp", "2x4", UNEVEN),
    ("bert", "vocab_parallel", "8", UNEVEN),
    ("mlp:adamw", "fsdp_tensor_parallel", "2x2x2", EVEN),
]


def _parametrized(rows):
    """One worker runs all cases of a model, whose traced programs are made once a process."""
    return pytest.mark.parametrize(
        ("name", "plan", "mesh", "sizes"),
        [
            pytest.param(*row, id=f"{row[0]} {row[1]} on {row[2]} with {row[3]}", marks=pytest.mark.xdist_group(row[0]))
            for row in rows
        ],
    )


@_parametrized([*FORWARD, *TRAINING])
def test_in_f64_all_outputs_are_those_of_one_device(name, plan, mesh, sizes):
    assert cases.worst_error(name, plan, mesh, torch.float64, sizes) < cases.TOLERANCE[torch.float64]


@_parametrized(SINGLE)
def test_in_f32_all_outputs_are_those_of_one_device(name, plan, mesh, sizes):
    assert cases.worst_error(name, plan, mesh, torch.float32, sizes) < cases.TOLERANCE[torch.float32]


@pytest.mark.parametrize(
    ("dp", "tp"), [("tp", "dp"), ("dp", "tp")], ids=["rows cut by tp outermost", "rows cut by dp outermost"]
)
def test_parameters_sharded_twice_along_one_dimension_nest_in_the_annotated_order(dp, tp):
    layout = cases.LAYOUTS["2x4"]
    program = cases.program_of("mlp:sgd", "none", layout, sizes=UNEVEN)
    plan = {"*weight": f"{dp}: S(0), {tp}: S(0)", "*bias": "tp: S(0), dp: S(0)"}
    assert max(cases.errors(program, layout, plan)) < 1e-9


MESHES = [{"a": 2, "b": 4}, {"a": 3}, {"a": 2, "b": 2, "c": 2}, {"a": 8}, {"a": 2, "b": 3}]


@st.composite
def shardings(draw, rank: int, mesh: spmdir.Mesh, partial: bool) -> str:
    """Any sharding of a tensor of `rank` dimensions, with open axes; a partial sum only if `partial`."""
    kinds = ["R", "?", *(f"S({dim})" for dim in range(rank) for _ in range(2)), *(["P(sum)"] if partial else [])]
    axes = draw(st.permutations(mesh.axis_names))
    return ", ".join(f"{axis}: {draw(st.sampled_from(kinds))}" for axis in axes)


@pytest.mark.parametrize("name", ["mlp", "mlp:sgd", "bert"])
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_sharding_of_inputs_and_outputs_gives_what_one_device_gives(name, data):
    layout = cases.Layout(spmdir.Mesh(data.draw(st.sampled_from(MESHES))))
    program = cases.program_of(name, "none", layout, sizes=data.draw(st.sampled_from([EVEN, UNEVEN, ONE])))
    names, tensors = program.arguments
    chosen = data.draw(st.lists(st.sampled_from(range(len(names))), unique=True))
    plan = {names[i]: data.draw(shardings(tensors[i].rank, layout.mesh, tensors[i].dtype == "f64")) for i in chosen}
    out = None
    if data.draw(st.booleans()):
        doubles = [(value.dim(), value.dtype == torch.float64) for value in program.expected]
        out = [data.draw(st.none() | shardings(rank, layout.mesh, double)) for rank, double in doubles]
    assert max(cases.errors(program, layout, plan, out)) < 1e-9


def test_every_plan_and_every_mesh_is_tried():
    rows = [*FORWARD, *TRAINING, *SINGLE]
    assert {plan for _, plan, _, _ in rows} == set(cases.PLANS)
    assert {mesh for _, _, mesh, _ in (*rows, *test_shipped.CASES)} == set(cases.LAYOUTS)
    assert {name.partition(":")[0] for name, _, _, _ in rows} == set(zoo.MODELS)
