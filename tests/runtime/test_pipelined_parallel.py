"""A training step that `parallelize` cuts into stages computes on four gloo ranks what one device computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import spmdir
from spmdir.core.errors import SpmdirError
from tests.lowering.gloo_ranks import on_ranks
from tests.runtime import pipelined_parallel_cases
from tests.runtime.pipelined_parallel_cases import staged
from tests.simulator import pipelined_steps

ROWS = {"*.up.weight": "tp: S(0)", "*.down.weight": "tp: S(1)"}
GPT2 = "transformer.h.1,transformer.h.2,transformer.h.3"
LAYERS = "layers.1,layers.3,layers.5"
CASES: list[pipelined_parallel_cases.Case] = [
    ("llama", "pp*fsdp", ("pp", "fsdp"), (2, 2)),
    ("llama", "pp(schedule=zb)", ("pp",), (4,)),
    ("gpt2", staged(GPT2), ("pp",), (4,)),
    ("gpt2", staged(GPT2, "zbv"), ("pp", "tp"), (2, 2)),
    ("blocks", staged("2", "gpipe", **ROWS), ("tp", "pp"), (2, 2)),
    ("blocks", staged("1,2,3", **ROWS), ("pp", "tp"), (2, 2)),
    ("SkipConnections", staged(LAYERS, "search", **{"input:*": "dp: S(0)"}), ("pp", "dp"), (2, 2)),
    ("SkipConnections", staged(LAYERS, "zb"), ("pp", "dp"), (4, 1)),
    ("batch_norms", staged("1,2,3", "zbv"), ("pp", "tp"), (2, 2)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoint."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def results(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The results of the ranks."""
    return on_ranks(4, pipelined_parallel_cases.run, tmp_path_factory.mktemp("ranks"), CASES, 5, str(folder))


@pytest.mark.gloo
def test_five_updates_equal_those_of_one_device(results: list[Any]) -> None:
    for errors, _ in results:
        assert dict(enumerate(errors)) == {number: pytest.approx(0, abs=1e-12) for number in range(len(CASES))}


@pytest.mark.gloo
def test_a_checkpoint_is_loaded_for_other_numbers_of_stages(results: list[Any]) -> None:
    for _, losses in results:
        for name in ("saved", "four stages", "folded", "no stages"):
            assert losses[name] == pytest.approx(losses["expected"], rel=1e-12)


@pytest.mark.gloo
def test_a_checkpoint_of_stages_is_loaded_on_one_device(results: list[Any], folder: Path) -> None:
    torch.manual_seed(0)
    model = pipelined_steps.gpt2().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step, state = spmdir.training_step(model, pipelined_steps.cross_entropy, optimizer, clip_grad_norm=0.1)
    spmdir.checkpoint.load(folder, {"train": state})
    loss, _ = step(state, *pipelined_steps.tokens())
    assert float(loss) == pytest.approx(results[0][1]["expected"], rel=1e-12)


@pytest.mark.gloo
def test_a_rank_keeps_the_state_of_its_stage_only(results: list[Any]) -> None:
    names = [of_rank["names"] for _, of_rank in results]
    assert all(names)
    kept_twice = {name for name in set().union(*names) if sum(name in of_rank for of_rank in names) > 1}
    assert kept_twice == {"parameters.transformer.wte.weight", "exp_avg.transformer.wte.weight"}  # the tied embedding


@pytest.mark.parametrize(
    ("plan", "accumulate", "options", "message"),
    [
        ("pp", 1, {}, r"a step with accumulate=1; expected .* training_step\(…, accumulate=4\)"),
        ("pp", 4, {"local_inputs": True}, "local_inputs is not supported with the pipeline axis 'pp'"),
        ("pp(stages=3)", 4, {"out_shardings": [None]}, "out_shardings is not supported"),
        (
            "pp(schedule=zbv, stages=3)",
            4,
            {},
            r"found 3 stages for 'zbv' on 1 ranks; expected 2, two for each rank",
        ),
    ],
)
def test_what_stages_do_not_support_is_an_error(
    alone: None, plan: str, accumulate: int, options: dict[str, Any], message: str
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    step, state = spmdir.training_step(model, pipelined_steps.square_error, optimizer, accumulate=accumulate)
    x = torch.ones(8, 8)
    with pytest.raises(SpmdirError, match=message):
        spmdir.parallelize(step, spmdir.Mesh({"pp": 1}), plan, (x, x), state=state, **options)


class Swap(torch.optim.SGD):
    """SGD that swaps two tensors of its state at each step."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, 0.1)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].update(even=torch.zeros_like(parameter), odd=torch.ones_like(parameter))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for parameter in self.param_groups[0]["params"]:
            kept = self.state[parameter]
            kept["even"], kept["odd"] = kept["odd"], kept["even"]


def test_a_new_value_that_is_the_old_value_of_another_tensor_is_not_overwritten(alone: None) -> None:
    model, x = torch.nn.Linear(2, 2), torch.ones(4, 2)
    step, state = spmdir.training_step(model, pipelined_steps.square_error, Swap(model.parameters()), accumulate=2)
    parallel = spmdir.parallelize(step, spmdir.Mesh({"pp": 1}), "pp", (x, x), state=state)
    parallel(x, x)
    swapped = parallel.state_dict()
    assert torch.equal(swapped["even.weight"], torch.ones(2, 2))
    assert torch.equal(swapped["odd.weight"], torch.zeros(2, 2))


def test_modules_are_not_cut_into_stages(alone: None) -> None:
    model, x = torch.nn.Linear(8, 8), torch.ones(8, 8)
    with pytest.raises(SpmdirError, match="the program is a Linear; expected a training step with micro-batches"):
        spmdir.parallelize(model, spmdir.Mesh({"pp": 1}), "pp", (x,))
    with pytest.raises(
        SpmdirError, match="each call of a sharded module runs all of the model; expected training_step"
    ):
        spmdir.shard_module(model, spmdir.Mesh({"pp": 1}), "pp", (x,))
