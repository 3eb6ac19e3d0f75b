"""Training steps: their arithmetic, and how they are imported."""

# pyright: reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import attrs
import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import spmdir
from spmdir.core.errors import ShardingError, UnsupportedError
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.names import full_name
from spmdir.importer.importer import import_fx
from spmdir.pipeline.pipeline import run_passes
from spmdir.report.communication import comm_report
from spmdir.runtime.training import training_step
from spmdir.simulator.simulate import run_single
from tests.importer.imported_programs import MESH, arguments, results
from tests.models.catalog import MLP
from tests.models.zoo import loss_of
from tests.runtime.parallelize_cases import loss_of as cross_entropy
from tests.runtime.parallelize_cases import transformer

aten = torch.ops.aten


def sgd(model: nn.Module, **options) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"momentum": 0.9, **options})


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_the_traced_step_computes_what_the_eager_one_does(mode):
    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float64)
    model = MLP(6, 8).double()
    step, state = training_step(model, loss_of, adamw(model))
    module = import_fx(make_fx(step, tracing_mode=mode)(state, x, x), MESH)
    found = run_single(module, pytree.tree_leaves((state, x, x)))
    for one, other in zip(found, pytree.tree_leaves(step(state, x, x)), strict=True):
        torch.testing.assert_close(one, other)


def test_one_key_shards_a_parameter_its_moments_and_their_new_values():
    model = MLP(6, 8)
    step, state = training_step(model, loss_of, adamw(model))
    traced = make_fx(step)(state, torch.ones(4, 6), torch.ones(4, 6))
    module = import_fx(traced, MESH, {"up.weight": "tp: S(0)", "exp_avg_sq.up.*": "dp: S(0)"})
    expected = {"parameters.up.weight": "tp: S(0)", "exp_avg.up.weight": "tp: S(0)", "exp_avg_sq.up.bias": "dp: S(0)"}
    for found in (arguments(module), dict(results(module))):
        assert {name: found[name] for name in expected} == expected
    assert arguments(module)["step.0"] is None


def test_what_is_left_open_is_decided_as_its_new_value_is_and_the_objective_has_what_that_takes():
    model = MLP(256, 1024)
    step, state = training_step(model, loss_of, sgd(model))
    traced = make_fx(step, tracing_mode="fake")(state, torch.ones(64, 256), torch.ones(64, 256))
    module = run_passes(import_fx(traced, MESH), "propagate")
    held, new = arguments(module), dict(results(module))
    renewed = [name for name in held if name in new]
    assert len(renewed) == 9 and {name: held[name] for name in renewed} == {name: new[name] for name in renewed}
    report = comm_report(run_passes(module, "expand,insert-reshard,lower-reshard"))
    assert report.objective == pytest.approx(sum(share.seconds for share in report.compute.values()) + report.seconds)


def test_buffers_that_the_model_changes_are_part_of_the_new_state():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    x = torch.randn(4, 6)
    step, state = training_step(model, loss_of, sgd(model))
    before = state["buffers"]["1.running_mean"].clone()
    module = import_fx(make_fx(step)(state, x, x), MESH)
    names = [name for name, _ in results(module)]
    found = run_single(module, pytree.tree_leaves((state, x, x)))[names.index("buffers.1.running_mean")]
    assert torch.equal(state["buffers"]["1.running_mean"], before)
    model(x)
    torch.testing.assert_close(found, model[1].running_mean)


def test_a_parameter_without_gradient_stays_as_it_is():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.used

    model = Half()
    step, state = training_step(model, loss_of, sgd(model))
    _, new = step(state, torch.ones(3), torch.zeros(3))
    assert torch.equal(new["parameters"]["unused"], torch.ones(3))
    assert not torch.equal(new["parameters"]["used"], torch.ones(3))


class Checkpointed(nn.Module):
    """Two blocks with dropout, each run again for its gradients, and dropout after them."""

    def __init__(self, reentrant: bool, preserve: bool = True):
        super().__init__()
        self.first, self.block = nn.Linear(6, 6), nn.Linear(6, 6)
        self.options = {"use_reentrant": reentrant, "preserve_rng_state": preserve}

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.run_block, x, **self.options)
        return nn.functional.dropout(x, 0.5)

    def run_block(self, x):
        return nn.functional.dropout(torch.tanh(self.block(nn.functional.dropout(x, 0.5))), 0.5)


def five_updates_are_native(model: nn.Module, loss, *args, mode: str = "fake", **options) -> fx.GraphModule:
    """The traced step; assert that it and the step itself train as torch does, from the same seed."""
    step, state = training_step(model, loss, sgd(model, lr=0.1), **options)
    state = pytree.tree_map(torch.clone, state)
    before = torch.get_rng_state()
    traced = make_fx(step, tracing_mode=mode)(state, *args)
    assert torch.equal(before, torch.get_rng_state())
    reference = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    torch.manual_seed(7)
    expected = []
    for _ in range(5):
        reference.zero_grad()
        value = loss(model, *args)
        value.backward()
        reference.step()
        expected.append(value.detach())
    for run in (step, traced):
        torch.manual_seed(7)
        values, current = [], state
        for _ in range(5):
            value, current = run(current, *args)
            values.append(value)
        torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(current["parameters"], dict(model.named_parameters()), rtol=1e-9, atol=1e-9)
    return traced


def draws(traced: fx.GraphModule) -> int:
    return sum(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in traced.graph.nodes)


@pytest.mark.parametrize("mode", ["fake", "real"])
@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_checkpointed_functions_run_again_with_todays_weights_and_what_was_drawn(reentrant, mode):
    torch.manual_seed(0)
    model, x = Checkpointed(reentrant).double(), torch.randn(4, 6, dtype=torch.float64)
    traced = five_updates_are_native(model, lambda model, x: model(x).square().mean(), x, mode=mode)
    assert draws(traced) == 5
    module = import_fx(traced, MESH)
    state = training_step(model, loss_of, sgd(model))[1]
    torch.manual_seed(3)
    expected = pytree.tree_leaves(traced(state, x))
    torch.testing.assert_close(run_single(module, pytree.tree_leaves((state, x)), seed=3), expected)


def test_checkpointed_functions_that_preserve_no_random_state_draw_again_as_in_eager():
    torch.manual_seed(0)
    model, x = Checkpointed(False, preserve=False).double(), torch.randn(4, 6, dtype=torch.float64)
    traced = five_updates_are_native(model, lambda model, x: model(x).square().mean(), x)
    assert draws(traced) == 9


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_gradient_checkpointing_of_hugging_face_trains_as_torch_does(reentrant):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "vocab_size": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16}
    config = LlamaConfig(**sizes, **heads, attention_dropout=0.25, attn_implementation="eager")
    model = LlamaForCausalLM(config).double().train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    ids = torch.randint(32, (2, 6))

    def loss(model, ids):
        return nn.functional.cross_entropy(model(input_ids=ids, use_cache=False).logits.flatten(0, 1), ids.flatten())

    assert draws(five_updates_are_native(model, loss, ids)) == 1


def test_an_op_that_draws_again_from_where_another_drew_is_an_error():
    def loss(model, x):
        state = torch.get_rng_state()
        first = torch.rand_like(model(x))
        torch.set_rng_state(state)
        return (first * torch.randn_like(model(x)) * model(x)).sum()

    model = nn.Linear(2, 2)
    step, state = training_step(model, loss, sgd(model))
    with pytest.raises(UnsupportedError, match=r"draws .* where the forward drew aten\.rand_like\.default"):
        make_fx(step, tracing_mode="fake")(state, torch.zeros(3, 2))


def test_frozen_parameters_stay_and_cost_no_moments_and_no_gradient():
    torch.manual_seed(0)
    model, x = MLP(6, 8).double(), torch.randn(4, 6, dtype=torch.float64)
    model.up.requires_grad_(False)
    before = model.up.weight.clone()
    traced = five_updates_are_native(model, loss_of, x, x)
    assert torch.equal(model.up.weight, before)
    _, state = training_step(model, loss_of, adamw(model))
    assert list(state["exp_avg"]) == list(state["exp_avg_sq"]) == ["down.weight", "down.bias"]
    products = [node for node in traced.graph.nodes if node.target in (aten.mm.default, aten.addmm.default)]
    assert len(products) == 3, "two products forward and the gradient of one weight"
    with pytest.raises(UnsupportedError, match="no parameter of the optimizer requires a gradient"):
        training_step(model, loss_of, adamw(model.requires_grad_(False)))


def test_a_parameter_that_the_loss_does_not_take_from_its_model_is_an_error_that_names_it():
    model = MLP(6, 8)
    weight = model.up.weight
    step, state = training_step(model, lambda model, x: model(x).sum() + weight.square().sum(), sgd(model))
    with pytest.raises(UnsupportedError, match=r"uses the original parameter 'up.weight'"):
        make_fx(step, tracing_mode="fake")(state, torch.ones(4, 6))


def test_globs_of_parameters_leave_counts_of_steps_alone():
    def step(state, x):
        count = {name: count + 1 for name, count in state["step"].items()}
        weights = {name: w - x.sum() / count[name] for name, w in state["parameters"].items()}
        return x.sum(), {"parameters": weights, "step": count}

    state = {"parameters": {"up.weight": torch.ones(4, 4)}, "step": {"up.weight": torch.zeros(())}}
    traced = make_fx(step)(state, torch.ones(2))
    for plan in ({"*weight": "tp: S(0)"}, {"*weight": "tp: S(0)", "step.up.weight": ""}):
        found = arguments(import_fx(traced, MESH, plan))
        assert found["parameters.up.weight"] == "tp: S(0)"
        assert found["step.up.weight"] == plan.get("step.up.weight")
    assert arguments(import_fx(traced, MESH, {"*": ""}))["step.up.weight"] == ""
    for key in ("step.up.weight", "step.*"):
        with pytest.raises(ShardingError, match=r"sharding of 'step.up.weight'"):
            import_fx(traced, MESH, {key: "tp: S(0)"})


def test_inputs_are_told_apart_from_the_parameters_of_other_modules() -> None:
    other = nn.Linear(8, 8).requires_grad_(False)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    step, state = spmdir.training_step(model, lambda m, x: other(m(x)).mean(), sgd(model, lr=1e-2))
    module = spmdir.import_fx(make_fx(step)(state, torch.ones(4, 8)), spmdir.Mesh({"dp": 1}))
    names = [full_name(argument) for argument in ir.main_function(module).args]
    assert len(set(names)) == len(names)
    assert spmdir.print_ir(spmdir.parse(spmdir.print_ir(module))) == spmdir.print_ir(module)
    spmdir.lower_to_fx(module)


@pytest.mark.parametrize("is_cast", [False, True])
def test_gradients_of_bf16_compute_are_reduced_in_f32(is_cast):
    model = transformer()[0].float()

    def loss(model: nn.Module, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
            return cross_entropy(model, ids, target)

    step, state = training_step(model, loss, adamw(model), compute_dtype=None if is_cast else torch.bfloat16)
    mesh = spmdir.Mesh({"fsdp": 4})
    plan = spmdir.placement.sharding_plan(model, mesh, "fsdp")
    keys = {"arg*" if key == "input:*" else key: given for key, given in plan.shardings.items()}
    ids = torch.zeros(512, 64, dtype=torch.int64)
    module = import_fx(make_fx(step, tracing_mode="fake")(state, ids, ids), mesh, attrs.evolve(plan, shardings=keys))
    module = run_passes(module, "propagate{topology=cpu-gloo},expand,insert-reshard,lower-reshard")
    ops = [op for op in ir.functions(module)[0].body.block.ops if "reduce" in op.name]
    reduced = [meta_of(operand.type) for op in ops for operand in op.operands]
    shapes = {tuple(parameter.shape) for parameter in model.parameters()}
    gradients = [meta.dtype.name for meta in reduced if meta and meta.shape in shapes]
    assert len(gradients) >= 8 and {*gradients} == {"f32"}
