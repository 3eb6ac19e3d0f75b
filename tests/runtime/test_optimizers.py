"""Training steps with each optimizer of torch, against its own updates."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim import Optimizer, lr_scheduler
from torch.utils import _pytree as pytree

import spmdir
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.runtime.training import training_step
from tests.importer.imported_programs import arguments, results
from tests.models.zoo import loss_of

MESH = spmdir.Mesh({"dp": 2, "tp": 2})
PLAN = {"up.weight": "dp: S(0), tp: S(1)", "down.weight": "tp: S(0)"}


class Net(nn.Module):
    """A network of matrices, and of a norm and a scale if Muon is not to train it."""

    def __init__(self, vectors: bool):
        super().__init__()
        self.up, self.down = nn.Linear(6, 8, bias=vectors), nn.Linear(8, 6, bias=False)
        self.norm = nn.LayerNorm(8) if vectors else nn.Identity()
        self.scale = nn.Parameter(torch.ones(())) if vectors else 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(torch.tanh(self.up(x)))) * self.scale


MAKES: dict[type[Optimizer], dict[str, dict[str, Any]]] = {
    torch.optim.ASGD: {"": {"t0": 2, "weight_decay": 0.1}},
    torch.optim.Adadelta: {"": {"weight_decay": 0.1}},
    torch.optim.Adafactor: {"": {}, "decay": {"weight_decay": 0.1, "d": 1.5}},
    torch.optim.Adagrad: {"": {"lr_decay": 0.1, "initial_accumulator_value": 0.2}, "fused": {"fused": True}},
    torch.optim.Adam: {"": {}, "amsgrad": {"amsgrad": True, "weight_decay": 0.1}, "fused": {"fused": True}},
    torch.optim.AdamW: {"": {}, "maximize": {"maximize": True, "betas": (0.8, 0.9)}, "foreach": {"foreach": True}},
    torch.optim.Adamax: {"": {"weight_decay": 0.1}},
    torch.optim.Muon: {"": {}, "adjusted": {"adjust_lr_fn": "match_rms_adamw", "nesterov": False}},
    torch.optim.NAdam: {"": {"decoupled_weight_decay": True, "weight_decay": 0.1}},
    torch.optim.RAdam: {"": {"weight_decay": 0.1}},
    torch.optim.RMSprop: {"": {"momentum": 0.9, "centered": True}, "plain": {}},
    torch.optim.Rprop: {"": {}},
    torch.optim.SGD: {
        "": {},
        "momentum": {"momentum": 0.9, "weight_decay": 0.05},
        "nesterov": {"momentum": 0.9, "nesterov": True, "fused": True},
    },
}
REFUSED = {
    torch.optim.LBFGS: "LBFGS, since the number of times that it evaluates the loss depends on values",
    torch.optim.SparseAdam: "SparseAdam, since it requires sparse gradients",
}
CASES = [
    pytest.param(kind, options, id=f"{kind.__name__} {name}")
    for kind, forms in MAKES.items()
    for name, options in forms.items()
]


@pytest.fixture(autouse=True)
def double():
    """Let torch's own counts of steps be in double precision too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def net(kind: type[Optimizer]) -> tuple[Net, Tensor, Tensor]:
    torch.manual_seed(0)
    return Net(vectors=kind is not torch.optim.Muon), torch.randn(4, 6), torch.randn(4, 6)


def grouped(model: nn.Module, kind: type[Optimizer], options: dict[str, Any]) -> Optimizer:
    """Return an optimizer with two groups of other rates."""
    parameters = list(model.parameters())
    return kind([{"params": parameters[:1], "lr": 0.02}, {"params": parameters[1:]}], lr=0.05, **options)  # type: ignore


def native(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, clip: float | None) -> tuple[Tensor, Any]:
    """Return the loss and the norm of one update by torch itself."""
    optimizer.zero_grad()
    value = loss_of(model, x, y)
    value.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip) if clip else None
    optimizer.step()
    return value.detach(), norm


def assert_ten_updates_are_native(
    model: nn.Module,
    optimizer: Optimizer,
    x: Tensor,
    y: Tensor,
    schedule: Callable[[Optimizer], Any] | None = None,
    clip: float | None = None,
    accumulate: int = 1,
    run: Callable[..., Callable[..., Any]] = lambda step, *args: step,
) -> None:
    step, state = training_step(model, loss_of, optimizer, clip_grad_norm=clip, accumulate=accumulate)
    state = pytree.tree_map(torch.clone, state)
    scheduler = schedule(optimizer) if schedule else None
    call = run(step, state, x, y)
    for _ in range(10):
        for name, rate in step.rates().items():
            state["lr"][name.removeprefix("lr.")].fill_(rate)
        found, state = call(state, x, y)
        expected, norm = native(model, optimizer, x, y, clip)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        if clip:
            torch.testing.assert_close(state["grad_norm"], norm, rtol=1e-12, atol=1e-12)
        if scheduler:
            scheduler.step()
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    torch.testing.assert_close(state["parameters"], parameters, rtol=1e-12, atol=1e-12)


def simulated(step: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """Return the step as ranks run it, for arguments like `args`."""
    module = spmdir.import_fx(make_fx(step, tracing_mode="fake")(*args), MESH, PLAN)
    spmdir.run_passes(module, "propagate")
    spec = pytree.tree_structure((0, args[0]))
    return lambda *args: pytree.tree_unflatten(spmdir.simulate(module, pytree.tree_leaves(args)), spec)


def test_every_optimizer_of_torch_is_supported_or_refused():
    known = [entry for entry in vars(torch.optim).values() if isinstance(entry, type) and entry is not Optimizer]
    assert set(known) == {*MAKES, *REFUSED}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_optimizer_that_cannot_be_traced_is_refused_by_name(kind):
    model, _, _ = net(kind)
    with pytest.raises(UnsupportedError, match=f"a training step cannot be made with {REFUSED[kind]}"):
        training_step(model, loss_of, kind(model.parameters()))


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_ten_updates_of_groups_are_those_of_torch_with_clipping_and_a_scheduler(kind, options):
    model, x, y = net(kind)
    optimizer = grouped(model, kind, options)
    assert_ten_updates_are_native(model, optimizer, x, y, lambda o: lr_scheduler.CosineAnnealingLR(o, 10), clip=0.1)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor, torch.optim.Muon])
def test_ten_updates_on_ranks_are_those_of_torch(kind):
    model, x, y = net(kind)
    if kind is not torch.optim.Muon:
        model.norm.requires_grad_(False)
    optimizer = grouped(model, kind, {"momentum": 0.9} if kind is torch.optim.SGD else {})
    schedule = lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10)  # noqa: E731
    assert_ten_updates_are_native(model, optimizer, x, y, schedule, clip=0.1, run=simulated)


def test_an_option_that_changes_between_updates_is_an_error_that_names_it():
    model, _, _ = net(torch.optim.SGD)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    step, _ = training_step(model, loss_of, optimizer)
    optimizer.param_groups[0]["lr"] = 0.5
    assert step.rates() == {"lr.0": 0.5}
    optimizer.param_groups[0]["momentum"] = 0.8
    with pytest.raises(UnsupportedError, match=r"group 0 of the optimizer has momentum = 0.8; .* with 0.9 and keeps"):
        step.rates()


@pytest.mark.filterwarnings("error")
def test_a_scheduler_goes_on_from_a_rate_that_is_given_back_and_does_not_warn():
    model, _, _ = net(torch.optim.SGD)
    for lr in (0.5, torch.tensor(0.5)):
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        step, _ = training_step(model, loss_of, optimizer)
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
        assert step.rates() == {"lr.0": 0.5}
        step.set_rate("lr.0", 0.25)
        scheduler.step()
        assert step.rates() == {"lr.0": 0.125}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda model: torch.optim.SGD(nn.Linear(2, 2).parameters()),
            r"of shape \[2, 2\], is not a parameter of the model",
        ),
        (lambda model: torch.optim.SGD(model.parameters(), momentum=0.9, dampening=0.1), "has dampening = 0.1"),
        (lambda model: torch.optim.AdamW(model.parameters(), weight_decay=torch.tensor(0.1)), "a tensor; expected num"),
    ],
)
def test_what_a_step_cannot_keep_is_refused(make, message):
    model, _, _ = net(torch.optim.SGD)
    with pytest.raises(UnsupportedError, match=message):
        training_step(model, loss_of, make(model))


class DecayedFirst(torch.optim.AdamW):
    """AdamW whose own step shrinks the parameters before it calls that of AdamW."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.mul_(0.9)
        return super().step(closure)


class CountedLate(torch.optim.SGD):
    """An optimizer that creates its state without `_init_group`."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].setdefault("sum", torch.zeros_like(parameter)).add_(parameter.grad)


def test_a_step_that_updates_before_it_creates_its_state_is_that_of_torch():
    model, x, y = net(torch.optim.AdamW)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = DecayedFirst(model.parameters())
    training_step(model, loss_of, optimizer)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert_ten_updates_are_native(model, optimizer, x, y)


def test_an_optimizer_whose_initial_state_is_unknown_is_refused():
    model, _, _ = net(torch.optim.SGD)
    with pytest.raises(UnsupportedError, match=r"CountedLate.step does not call _init_group to create its state"):
        training_step(model, loss_of, CountedLate(model.parameters()))


def test_the_optimizer_is_no_name():
    with pytest.raises(SpmdirError, match=r"optimizer is 'adamw'.*expected an optimizer of torch.optim, as torch.opt"):
        training_step(nn.Linear(2, 2), loss_of, "adamw")  # type: ignore


def test_a_step_goes_on_where_its_optimizer_is():
    model, x, y = net(torch.optim.AdamW)
    optimizer = grouped(model, torch.optim.AdamW, {})
    for _ in range(3):
        native(model, optimizer, x, y, None)
    assert_ten_updates_are_native(model, optimizer, x, y)


def test_parameters_that_the_optimizer_has_not_stay_and_adapters_train():
    model, x, y = net(torch.optim.AdamW)
    before = model.down.weight.clone()
    assert_ten_updates_are_native(model, torch.optim.AdamW(model.up.parameters()), x, y)
    assert torch.equal(model.down.weight, before)
    step, state = training_step(model, loss_of, torch.optim.AdamW(model.up.parameters()))
    assert list(state["exp_avg"]) == ["up.weight", "up.bias"]
    assert torch.equal(step(state, x, y)[1]["parameters"]["down.weight"], before)


def test_micro_batches_give_the_update_of_the_batch():
    model, x, y = net(torch.optim.AdamW)
    assert_ten_updates_are_native(model, torch.optim.AdamW(model.parameters()), x, y, clip=0.1, accumulate=2)
    step, state = training_step(model, loss_of, torch.optim.AdamW(model.parameters()), accumulate=4)
    model.zero_grad()
    loss_of(model, x, y).backward()
    found = step(state, x, y)[1]["gradients"]
    torch.testing.assert_close(found, {name: p.grad for name, p in model.named_parameters()}, rtol=1e-12, atol=1e-12)
    with pytest.raises(UnsupportedError, match=r"argument 1 .* has shape \[3, 6\]; .* multiple of accumulate=4"):
        step(state, x, y[:3])


def test_rates_in_double_precision_leave_sums_in_f32_split_among_ranks():
    model = nn.Linear(64, 64, dtype=torch.float32)
    step, state = training_step(model, loss_of, torch.optim.SGD(model.parameters()))
    graph = make_fx(step, tracing_mode="fake")(state, *torch.zeros(2, 2**16, 64, dtype=torch.float32))
    module = spmdir.run_passes(spmdir.import_fx(graph, MESH, {"arg*": "dp: S(0)"}), "propagate")
    (product,) = (line for line in spmdir.print_ir(module).splitlines() if "aten.mm(" in line)
    assert "dp: P(sum)" in product


def test_rows_and_columns_that_an_optimizer_keeps_are_sharded_with_their_parameter():
    model, x, y = net(torch.optim.Muon)
    step, state = training_step(model, loss_of, torch.optim.Adafactor(model.parameters()))
    for key in ("up.weight", "up.*"):
        module = spmdir.import_fx(make_fx(step)(state, x, y), MESH, {key: "dp: S(0), tp: S(1)"})
        for found in (arguments(module), dict(results(module))):
            assert found["parameters.up.weight"] == "dp: S(0), tp: S(1)"
            assert (found["row_var.up.weight"], found["col_var.up.weight"]) == ("dp: S(0)", "tp: S(1)")


def test_compute_in_bf16_keeps_parameters_and_gradients_in_f32():
    model, x, y = net(torch.optim.SGD)
    model, x, y, seen = model.float(), x.float(), y.float(), []

    def loss(model: nn.Module, *args: Tensor) -> Tensor:
        seen.extend((model.up.weight.dtype, model(args[0]).dtype))
        return loss_of(model, *args)

    options = {"clip_grad_norm": 1e9, "compute_dtype": torch.bfloat16}
    step, state = training_step(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), **options)  # type: ignore
    _, new = step(state, x, y)
    assert seen == [torch.bfloat16] * 2
    half = Net(vectors=True).bfloat16()
    half.load_state_dict(model.state_dict())
    loss_of(lambda x: half(x.bfloat16()), x, y).backward()
    for name, parameter in half.named_parameters():
        expected = state["parameters"][name] - parameter.grad.float()
        torch.testing.assert_close(new["parameters"][name], expected, rtol=0, atol=0)
