"""Steps and models as traced programs, and their calling convention."""

# pyright: reportArgumentType=false
import re

import pytest
import torch
from torch._dynamo import convert_frame
from torch.export import Dim

from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.dialects.ir import print_ir
from spmdir.importer.importer import import_fx
from spmdir.runtime.capture import capture_model, capture_step
from spmdir.runtime.joint_capture import capture_joint
from spmdir.runtime.training import training_step

CPU = torch.device("cpu")
X = torch.ones(3)


def capture(step, state, *args):
    return capture_step(step, state, args, CPU)


@pytest.mark.parametrize(
    ("step", "state", "message"),
    [
        (lambda state, x: (x, {"n": state["n"] + 1}), {"n": 1}, "the step replaces 1 in the state by 2"),
        (lambda state, x: (x, {"n": x}), {"n": 1}, "replaces 1 in the state by a tensor"),
        (lambda state, x: x, {"n": X}, "expected (outputs, new_state)"),
        (lambda state, x: (x, {}), {"n": X}, "new_state has the structure of state"),
    ],
)
def test_a_step_whose_state_could_not_go_round_is_refused(step, state, message):
    with pytest.raises(SpmdirError, match=re.escape(message)):
        capture(step, state, X)


def test_outputs_and_state_are_told_apart():
    found = capture(lambda state, x: ({"y": x + state[0], "n": 2}, [state[0] * 2]), [X], X)
    assert [getattr(leaf, "name", leaf) for leaf in found.outputs] == ["add", 2]
    assert found.state == [X]
    assert found.convention.state_spec is not None


def test_tracing_neither_runs_nor_changes_the_state():
    def step(state, x):
        state["n"].add_(x)
        return x, {"n": state["n"] * 2}

    state = {"n": X.clone()}
    capture(step, state, X)
    assert torch.equal(state["n"], X)


def test_a_parameter_in_the_state_can_be_differentiated():
    def step(state, x):
        loss = (state["p"] * x).sum()
        (gradient,) = torch.autograd.grad(loss, [state["p"]])
        return loss, {"p": state["p"] - gradient}

    found = capture(step, {"p": torch.nn.Parameter(X)}, X)
    assert any(node.target is torch.ops.aten.sub.Tensor for node in found.program.graph.nodes)


def test_tensors_that_a_step_reads_from_outside_are_its_own():
    table = torch.ones(600, 600, dtype=torch.float64)  # too large for a constant of the text
    found = capture(lambda state, x: (x + table.sum(), state), [X], X)
    assert any(value is table for value in found.tensors.values())


def test_outputs_come_back_whole_unless_told_otherwise():
    found = capture(lambda state, x: ((x, 3, x + 1), [state[0]]), [X], X)
    assert found.result_shardings(None) == ["", None, "", "like:input:0"]
    assert found.result_shardings(["a: S(0)", None, None]) == ["a: S(0)", None, "", "like:input:0"]
    with pytest.raises(SpmdirError, match="has 1 entries; expected 3, as the program returns"):
        found.result_shardings([None])


def test_a_model_that_cannot_be_exported_is_refused():
    class Branches(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(SpmdirError, match="the model cannot be exported"):
        capture_model(Branches(), (X,))


def stepped(loss):
    model = torch.nn.Linear(4, 4)
    return training_step(model, loss, torch.optim.SGD(model.parameters()))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda state, x: (x.sum().item(), state),
            "the step cannot be traced: it reads a number out of a tensor; keep",
        ),
        (lambda state, x: (x.nonzero(), state), "the step cannot be traced: the size of a result depends on data"),
        (
            stepped(lambda model, x: model(x))[0],
            r"the loss is a tensor of shape \[2, 4\]; expected a",
        ),
    ],
)
def test_a_step_that_cannot_be_traced_is_told_what_to_write(step, message):
    _, state = stepped(lambda model, x: model(x).sum())
    with pytest.raises(SpmdirError, match=message):
        capture_step(step, state, (torch.ones(2, 4),), torch.device("cpu"))


def test_one_example_tensor_for_two_arguments_keeps_both_in_the_program():
    class Difference(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x - y

    x = torch.ones(2)
    placeholders = capture_model(Difference(), (x, x)).program.graph.find_nodes(op="placeholder")
    assert [len(node.users) for node in placeholders] == [1, 1]


def test_a_call_with_another_number_of_arguments_says_how_many():
    capture = capture_model(torch.nn.ReLU(), (torch.ones(2),))
    with pytest.raises(SpmdirError, match="found 2 arguments; expected 1, as in example_inputs"):
        capture.convention.tensors((torch.ones(2), torch.ones(2)))


def test_a_module_that_branches_on_values_is_an_error_at_its_line():
    class Branches(torch.nn.Module):
        def forward(self, x):
            return x.sin() if x.sum() > 0 else x

    message = r"^test_capture.py:\d+:1: error: the module cannot be captured: .*branch"
    with pytest.raises(UnsupportedError, match=message):
        capture_joint(Branches(), (X,), {}, CPU, ShardingPlan({}))


class Flattened(torch.nn.Module):
    """Takes an argument that is called as an op of its backward."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, t, *, scale=1.0):
        return self.layer(t.reshape(t.size(0) * t.size(1), 4)).sum() * scale


def test_open_sizes_of_a_module_with_its_gradients_have_ranges_and_arguments_their_names():
    shapes, x = {"t": {0: Dim("b", max=16), 1: Dim("l")}, "scale": None}, torch.ones(2, 3, 4)
    joint = capture_joint(Flattened(), (x,), {"scale": 2.0}, CPU, ShardingPlan({}), dynamic_shapes=shapes)
    module = import_fx(joint.program, Mesh({"dp": 2}), {"t": "dp: S(0)"}, out_shardings=[None] * 3)
    assert "spmd.sizes {s0 = 2 in 2..16, s1 = 3 in 2..}" in print_ir(module)
    assert "t: tensor<2x3x4xf32, #spmd.dims<s0, s1, 4>>" in print_ir(module)
    with pytest.raises(UnsupportedError, match=r"the module cannot be captured: .*'y'"):
        capture_joint(Flattened(), (x,), {"scale": 2.0}, CPU, ShardingPlan({}), dynamic_shapes={"y": {0: Dim("b")}})


@pytest.mark.parametrize(("shapes", "made"), [(None, 0), ({"t": {0: Dim("b")}, "scale": None}, 1)])
def test_dynamo_makes_guards_only_to_check_open_sizes(monkeypatch, shapes, made):
    managers = []
    build = convert_frame.GraphCaptureOutput.build_guards
    monkeypatch.setattr(convert_frame.GraphCaptureOutput, "build_guards", lambda *args: managers.append(build(*args)))
    capture_joint(Flattened(), (torch.ones(2, 3, 4),), {"scale": 2.0}, CPU, ShardingPlan({}), dynamic_shapes=shapes)
    assert len(managers) == made


class Squares(torch.nn.Module):
    """Its first product is in bf16 and its second one in f32."""

    def __init__(self):
        super().__init__()
        self.narrow = torch.nn.Linear(16, 8, bias=False).bfloat16()
        self.wide = torch.nn.Linear(8, 8, bias=False)

    def forward(self, x):
        return self.wide(self.narrow(x).float()).relu().square().mean()


@pytest.mark.parametrize("batch", [8, 12])
def test_a_cast_of_an_activation_is_none_of_a_gradient_whatever_the_batch(batch):
    x = torch.zeros(batch, 16, dtype=torch.bfloat16)
    joint = capture_joint(Squares(), (x,), {}, CPU, ShardingPlan({}))
    text = print_ir(import_fx(joint.program, Mesh({"dp": 2}), {}, out_shardings=[None] * 3))
    assert "{dtype = f32}" in text and "spmd.cast_first" not in text
