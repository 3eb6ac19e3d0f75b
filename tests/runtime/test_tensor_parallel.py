"""`tensor_parallel`: exported program in, a rank's exported program out; every rank together is the whole program."""

import io
import re
import types
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.lowering.process_groups import connect
from spmdir.simulator.lockstep import run_lockstep
from tests.models import zoo
from tests.runtime.parallelize_cases import transformer

MESH = Mesh({"tp": 4})
Styles = Mapping[str, str | ParallelStyle]


class MLP(nn.Module):
    """Two linear layers; the hidden value is looked at through views."""

    def __init__(self, bias: bool = True):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16, bias), nn.Linear(16, 8, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Heads(MLP):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        hidden = hidden.view(*hidden.shape[:-1], 8, 2)
        return self.down((hidden * hidden.sum(-1, keepdim=True)).flatten(-2))


class Several(MLP):
    """Many inputs and outputs, some of which are no tensors."""

    def forward(self, x: dict[str, Tensor], scale: float, *, shift: Tensor) -> dict[str, Any]:
        value, index = (self.up(x["a"]) * scale).max(-1)
        return {"value": value + shift, "index": index, "same": x["a"], "again": x["a"], "number": 3, "none": None}


class Changing(MLP):
    """A buffer that is updated from a divided value, one that is not kept, and a constant."""

    mean: Tensor
    table: Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("table", torch.arange(16.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        self.mean.mul_(0.5).add_(hidden.mean(0))
        return self.down(hidden + self.mean + self.table) * torch.tensor([1.0, 2.0] * 4)


class Unregistered(MLP):
    """An op that has no rule runs replicated."""

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.special.bessel_j1(self.up(x)))


class Factory(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x) + torch.arange(16, device=x.device))


def transformer_call() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a transformer with tied weights and its arguments."""
    model, ids, _ = transformer()
    return model, (ids,)


BOTH = {"up": "colwise", "down": "rowwise"}
X = torch.linspace(-1, 1, 48).reshape(6, 8)
CASES: dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any], Styles]] = {
    "both styles": (MLP(), (X,), {}, BOTH),
    "without bias": (MLP(bias=False), (X,), {}, BOTH),
    "colwise alone": (MLP(), (X,), {}, {"up": "colwise"}),
    "rowwise alone": (MLP(), (X,), {}, {"down": "rowwise"}),
    "rowwise, then colwise": (MLP(), (X,), {}, {"up": "rowwise", "down": "colwise"}),
    "no styles": (MLP(), (X,), {}, {}),
    "torch's own styles": (MLP(), (X,), {}, {"up": ColwiseParallel(), "down": RowwiseParallel()}),
    "a glob": (MLP(), (X,), {}, {"*": "colwise"}),
    "3-D input to a linear layer": (MLP(), (X.reshape(2, 3, 8),), {}, BOTH),
    "view of a divided value": (Heads(), (X,), {}, BOTH),
    "view of a divided 3-D value": (Heads(), (X.reshape(2, 3, 8),), {}, BOTH),
    "trees of inputs and outputs": (Several(), ({"a": X}, 0.5), {"shift": torch.ones(6)}, {"up": "colwise"}),
    "buffers and constants": (Changing(), (X,), {}, BOTH),
    "an op without a rule": (Unregistered(), (X,), {}, BOTH),
    "a factory": (Factory(), (X,), {}, BOTH),
    "tied weights": (*transformer_call(), {}, {"block.*": "colwise", "head": "colwise"}),
}
LLAMA = {
    "*.self_attn.[qkv]_proj": "colwise",
    "*.self_attn.o_proj": "rowwise",
    "*.gate_proj": "colwise",
    "*.up_proj": "colwise",
    "*.down_proj": "rowwise",
    "*lm_head": "colwise",
}


def run_together(programs: list[torch.export.ExportedProgram], args: Any, kwargs: Any) -> list[Any]:
    """What each rank's program returns: the new values of what it mutates, then its outputs."""
    leaves = pytree.tree_leaves((args, kwargs))
    inputs = []
    for program in programs:
        held: dict[str | None, Any] = {**program.state_dict, **program.constants}
        user = iter(leaves)
        specs = program.graph_signature.input_specs
        inputs.append([next(user) if s.kind == InputKind.USER_INPUT else held[s.target] for s in specs])
    return run_lockstep([program.graph_module for program in programs], inputs, MESH)


def ranks_of(exported: torch.export.ExportedProgram, styles: Styles) -> list[torch.export.ExportedProgram]:
    return [spmdir.tensor_parallel(exported, MESH, styles, rank) for rank in range(MESH.world_size)]


@pytest.mark.filterwarnings("ignore::spmdir.core.errors.SpmdirWarning")
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_ranks_together_compute_what_the_program_computes(name):
    model, args, kwargs, styles = CASES[name]
    exported = torch.export.export(model, args, kwargs)
    outputs = run_together(ranks_of(exported, styles), args, kwargs)
    mutated = list(exported.run_decompositions({}).graph_signature.buffers_to_mutate.values())
    returned = pytree.tree_leaves(exported.module()(*args, **kwargs))
    expected = [*(exported.state_dict[buffer] for buffer in mutated), *returned]
    for found in outputs:
        assert len(found) == len(expected)
        for leaf, wanted in zip(found, expected, strict=True):
            if isinstance(wanted, Tensor):
                torch.testing.assert_close(leaf, wanted)
            else:
                assert leaf == wanted


@torch.no_grad()
def test_llama_is_partitioned_exactly_with_a_quarter_of_each_projection():
    exported, inputs = zoo.forward_program("llama", torch.float64, 2, 8)
    programs = ranks_of(exported, LLAMA)
    expected = exported.module()(*inputs)
    for (found,) in run_together(programs, inputs, {}):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # norms and rotations are float32 inside
    for program in programs:
        for name, whole in exported.state_dict.items():
            divided = name.endswith("proj.weight") or "lm_head" in name
            assert program.state_dict[name].numel() * (4 if divided else 1) == whole.numel(), name


@pytest.mark.parametrize("x", [X, X.reshape(2, 3, 8)], ids=["2-D", "3-D"])
@torch.no_grad()
def test_linear_layers_are_found_in_decomposed_programs_too(x):
    exported = torch.export.export(MLP(), (x,)).run_decompositions()
    assert all(node.target is not torch.ops.aten.linear.default for node in exported.graph.nodes)
    programs = ranks_of(exported, BOTH)
    assert [program.state_dict["up.weight"].shape for program in programs] == [(4, 8)] * 4
    for (found,) in run_together(programs, (x,), {}):
        torch.testing.assert_close(found, exported.module()(x))


class Reserved(MLP):
    """Inputs with names of builtins, one of which is changed."""

    def forward(self, input: Tensor, device: Tensor, inf: Tensor) -> Tensor:
        inf.add_(1)
        return super().forward(input + device) + inf


def test_inputs_may_have_names_of_builtins():
    exported = torch.export.export(Reserved(), (X, X.clone(), X.clone()))
    programs = ranks_of(exported, BOTH)
    expected = exported.module()(X, X, X.clone())
    for changed, found in run_together(programs, (X, X, X.clone()), {}):
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(changed, X + 1)


def test_symbolic_sizes_are_refused():
    exported = torch.export.export(MLP(), (X,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with pytest.raises(spmdir.SpmdirError, match=r"the program has symbolic sizes.*without dynamic_shapes"):
        spmdir.tensor_parallel(exported, MESH, BOTH, 0)


def test_the_signature_says_what_the_graph_has():
    exported = torch.export.export(Several(), ({"a": X}, 0.5), {"shift": torch.ones(6)})
    program = spmdir.tensor_parallel(exported, MESH, {"up": "colwise", "down": "rowwise"}, 3)
    graph = list(program.graph.nodes)
    placeholders = [node.name for node in graph if node.op == "placeholder"]
    assert [spec.arg.name for spec in program.graph_signature.input_specs] == placeholders
    assert program.graph_signature.parameters == exported.graph_signature.parameters
    assert program.graph_signature.user_inputs == exported.graph_signature.user_inputs
    assert program.call_spec.in_spec == exported.call_spec.in_spec
    assert program.call_spec.out_spec == exported.call_spec.out_spec
    values = {node.name: node.meta["val"] for node in graph if node.op != "output"}
    assert values["p_up_weight"].shape == (4, 8)
    assert values["p_down_weight"].shape == (8, 4)
    assert all(isinstance(value, torch.nn.Parameter) for value in program.state_dict.values())


def test_column_pieces_are_rows_of_weight_and_bias_and_row_pieces_are_columns_of_the_weight():
    model = MLP()
    exported = torch.export.export(model, (X,))
    for rank, program in enumerate(ranks_of(exported, BOTH)):
        piece = slice(4 * rank, 4 * rank + 4)
        torch.testing.assert_close(program.state_dict["up.weight"], model.up.weight[piece])
        torch.testing.assert_close(program.state_dict["up.bias"], model.up.bias[piece])
        torch.testing.assert_close(program.state_dict["down.weight"], model.down.weight[:, piece])
        torch.testing.assert_close(program.state_dict["down.bias"], model.down.bias)


def test_nodes_remember_the_module_that_they_come_from():
    exported = torch.export.export(MLP(), (X,))
    program = spmdir.tensor_parallel(exported, MESH, BOTH, 0)
    found = {path for node in program.graph.nodes for path, _ in node.meta.get("nn_module_stack", {}).values()}
    assert {"up", "down"} <= found


def test_the_source_program_stays_as_it_was():
    exported = torch.export.export(Changing(), (X,))
    text, state = str(exported), {name: tensor.clone() for name, tensor in exported.state_dict.items()}
    program = spmdir.tensor_parallel(exported, MESH, BOTH, 1)
    program.state_dict["mean"].add_(1)
    assert str(exported) == text
    for name, tensor in exported.state_dict.items():
        assert torch.equal(tensor, state[name])


@torch.no_grad()
def test_a_ranks_program_survives_saving():
    exported = torch.export.export(Changing(), (X,))
    programs = []
    for program in ranks_of(exported, BOTH):
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        programs.append(torch.export.load(file))
    _, expected = run_together(ranks_of(exported, BOTH), (X,), {})[0]
    for _, found in run_together(programs, (X,), {}):
        torch.testing.assert_close(found, expected)


def test_ranks_that_differ_along_another_axis_have_one_program():
    exported = torch.export.export(MLP(), (X,))
    mesh = Mesh({"dp": 2, "tp": 2})
    graphs = [str(spmdir.tensor_parallel(exported, mesh, BOTH, rank).graph) for rank in range(4)]
    assert graphs[0] == graphs[2] and graphs[1] == graphs[3]
    by_name = spmdir.tensor_parallel(exported, Mesh({"a": 2, "b": 4}), BOTH, 5, axis="b")
    assert by_name.state_dict["up.weight"].shape == (4, 8)


@pytest.mark.parametrize(
    ("styles", "message"),
    [
        (
            {"upp": "colwise"},
            "'upp', which is not a linear layer; expected the name or glob of one; did you mean 'up'?",
        ),
        ({"nothing.*": "colwise"}, "is not a linear layer"),
        ({"up": "columnwise"}, "'up' has the style 'columnwise'; expected one of colwise"),
        (
            {"up": SequenceParallel()},
            "the style of 'up' sets the layout of an input or output of the module, but an exported",
        ),
        ({"norm": "colwise"}, "'norm' is not a linear layer; expected styles of linear layers and embeddings only"),
        ({"spread": "colwise"}, "'spread' is not a linear layer; expected styles of linear layers and embeddings only"),
    ],
)
def test_styles_that_fit_no_linear_layer_are_refused(styles, message):
    exported = torch.export.export(Others(), (torch.arange(6),))
    with pytest.raises(SpmdirError, match=re.escape(message)):
        spmdir.tensor_parallel(exported, MESH, styles, 0)


class Others(MLP):
    """Modules with weights that are not linear layers."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.spread = nn.Embedding(6, 8), nn.LayerNorm(8), nn.Conv1d(1, 2, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.spread(super().forward(self.norm(self.embed(ids))).unsqueeze(1))


@pytest.mark.parametrize(("style", "shape"), [("embedding_rowwise", (6, 16)), ("colwise", (24, 4))])
@torch.no_grad()
def test_an_embedding_is_sharded_by_its_rows_or_its_features(style, shape):
    model, ids, _ = transformer()
    exported = torch.export.export(model, (ids,))
    programs = ranks_of(exported, {"embed": style})
    assert programs[3].state_dict["embed.weight"].shape == shape
    for (found,) in run_together(programs, (ids,), {}):
        torch.testing.assert_close(found, model(ids))


@pytest.mark.parametrize(
    ("mesh", "rank", "axis", "message"),
    [
        (MESH, 4, None, "rank 4 is not in a mesh of 4"),
        (MESH, -1, None, "rank -1"),
        (MESH, 0, "dp", "axis 'dp' is not in mesh"),
        (Mesh({"a": 2, "b": 2}), 0, None, "expected the axis of the weights: pass it as axis="),
    ],
)
def test_a_rank_or_axis_that_the_mesh_lacks_is_refused(mesh, rank, axis, message):
    exported = torch.export.export(MLP(), (X,))
    with pytest.raises(SpmdirError, match=re.escape(message)):
        spmdir.tensor_parallel(exported, mesh, BOTH, rank, axis=axis)


def test_a_device_mesh_without_the_axis_of_a_program_is_refused():
    program = spmdir.tensor_parallel(torch.export.export(MLP(), (X,)), MESH, BOTH, 0)
    with pytest.raises(SpmdirError, match="does not fit the device mesh: axis 'tp' is not in mesh"):
        connect(program, types.SimpleNamespace(mesh_dim_names=("dp",), mesh=torch.arange(2)))
