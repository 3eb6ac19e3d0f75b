"""What ranks keep for steps from one run to the next: error feedback of sums, simulated and on real ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
import torch
from torch.distributed.tensor import DTensor
from xdsl.utils.exceptions import VerifyException

import spmdir
from spmdir import Mesh, S
from spmdir.core.errors import ShardingError, SpmdirError
from spmdir.dialects import ir
from spmdir.placement import UNKNOWN, Edge, EdgeState, ErrorBound, PartialPlacement, ShardPlacement
from tests.lowering.gloo_ranks import on_ranks

F64 = torch.float64


@attrs.frozen
class Largest(PartialPlacement):
    """A partial sum of which each rank sends its `k` largest elements, and adds the others to those of the next run."""

    text: ClassVar[str] = "Largest({k})"
    error: ClassVar[ErrorBound] = UNKNOWN
    k: int

    def edges(self):
        yield Edge(lambda x, group: x, source="P(sum)")
        yield Edge(self.send, target="R", by=("all_gather",) * 2, bytes=self.sent, state={"error": EdgeState()})

    def sent(self, shape, itemsize, count):
        rows = (count - 1) * min(self.k, math.prod(shape))
        return rows * itemsize, rows * 8

    def send(self, x, group, state):
        wanted = (x + state["error"]).flatten()
        places = wanted.abs().topk(min(self.k, wanted.numel())).indices
        values = wanted[places]
        left = wanted.index_put((places,), torch.zeros_like(values))
        places, values = group.all_gather(places).flatten(), group.all_gather(values).flatten()
        return torch.zeros_like(wanted).index_add(0, places, values).reshape(x.shape), {"error": left.reshape(x.shape)}


@attrs.frozen
class Factored(PartialPlacement):
    """A partial sum of matrices by two factors of one column, begun with the second of the run before."""

    text: ClassVar[str] = "Factored"
    error: ClassVar[ErrorBound] = UNKNOWN

    def edges(self):
        yield Edge(lambda x, group: x, source="P(sum)")
        yield Edge(self.factors, target="R", by=("all_reduce",) * 2, bytes=self.sent, state=self.kept)

    def kept(self, shape, count):
        q = EdgeState(lambda shape, count: (shape[1], 1), initial="random", shared=True)
        return {"error": EdgeState(), "q": q} if len(shape) == 2 else {}

    def sent(self, shape, itemsize, count):
        ring = 2 * (count - 1) / count * itemsize
        return (ring * shape[0], ring * shape[1]) if len(shape) == 2 else (ring * math.prod(shape), 0.0)

    def factors(self, x, group, state):
        if not state:
            return group.all_reduce(x), {}
        own = x + state["error"]
        p = torch.nn.functional.normalize(group.all_reduce(own @ state["q"]), dim=0)
        q = group.all_reduce(own.T @ p)
        return p @ q.T, {"error": own - p @ (p.T @ own), "q": q}


@attrs.frozen
class Forgetful(PartialPlacement):
    """One that declares a state and gives another."""

    text: ClassVar[str] = "Forgetful"
    error: ClassVar[ErrorBound] = UNKNOWN

    def edges(self):
        yield Edge(
            lambda x, group, state: (group.all_reduce(x), {}), target="R", by="all_reduce", state={"e": EdgeState()}
        )


@attrs.frozen
class Recent(ShardPlacement):
    """Shards of a row matrix, whose gather remembers what it gave."""

    text: ClassVar[str] = "Recent({dim})"
    error: ClassVar[ErrorBound] = UNKNOWN
    dim: int

    def ranges(self, size, count, index):
        return S(0).ranges(size, count, index)

    def edges(self):
        last = EdgeState(lambda shape, count: (count, *shape), shared=True)
        yield Edge(self.gather, target="R", by="all_gather", state={"last": last})

    def gather(self, x, group, state):
        missing = state["last"].shape[1] - x.shape[0]
        blocks = group.all_gather(torch.nn.functional.pad(x, (0, 0, 0, missing)))
        return blocks.flatten(0, 1)[: group.shape[0]], {"last": blocks}


PROGRAM = """
spmd.mesh @mesh <dp = 2, tp = 2>
func.func @f(%x: tensor<6x5xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>},
             %y: tensor<6x8xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>})
    -> (tensor<5x8xf64> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %0 = aten.permute(%x) {dims = [1, 0]} : tensor<5x6xf64>
  %g = aten.mm(%0, %y) : tensor<5x8xf64>
  %1 = spmd.constraint %g : tensor<5x8xf64> <dp: PLACEMENT, tp: S(0)>
  return %1 : tensor<5x8xf64>
}
"""


def lowered(placement: str) -> Any:
    module = ir.parse(PROGRAM.replace("PLACEMENT", placement))
    return spmdir.run_passes(module, "propagate{topology=flat},insert-reshard,lower-reshard")


def inputs(run: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(run)
    return [torch.randn(6, size, generator=generator, dtype=F64) for size in (5, 8)]


@pytest.mark.parametrize("placement", ["Largest(3)", "Factored"])
def test_what_was_sent_and_what_is_left_is_all_that_there_was(placement: str) -> None:
    module, state = lowered(placement), {}
    sent, whole = torch.zeros(5, 8, dtype=F64), torch.zeros(5, 8, dtype=F64)
    for run in range(6):
        x, y = inputs(run)
        (once,) = spmdir.simulate(module, [x, y], state=state)
        assert not torch.allclose(once, x.T @ y), "it is compressed"
        sent, whole = sent + once, whole + x.T @ y
    # Rows of dp and tp, of 3 rows each where the second half has two of tp.
    error = state["g.error"].reshape(2, 2, 3, 8).sum(0)
    left = torch.cat([error[0], error[1, :2]])
    torch.testing.assert_close(sent + left, whole, rtol=0, atol=1e-12)
    assert not error[1, 2].any(), "nothing is behind a smaller shard"


def test_a_state_that_is_shared_is_one_for_the_ranks_of_the_step() -> None:
    module, state = lowered("Factored"), {}
    spmdir.simulate(module, inputs(0), state=state)
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {"g.error": (4, 3, 8), "g.q": (2, 8, 1)}


def test_a_state_that_is_shared_has_one_shape_where_shards_differ_in_size() -> None:
    text = """
    spmd.mesh @mesh <dp = 4>
    func.func @f(%x: tensor<10x2xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: Recent(0)>})
        -> (tensor<10x2xf64> {spmd.sharding = #spmd.sharding<@mesh>}) {
      return %x : tensor<10x2xf64>
    }"""
    module, x, state = (
        spmdir.run_passes(ir.parse(text), "propagate,insert-reshard,lower-reshard"),
        torch.randn(10, 2, dtype=F64),
        {},
    )
    (found,) = spmdir.simulate(module, [x], state=state)
    assert torch.equal(found, x)
    rows = torch.cat([x, torch.zeros(2, 2, dtype=F64)])
    assert torch.equal(state["x.last"], rows.reshape(1, 4, 3, 2))


def test_the_same_state_gives_the_same_run_and_none_begins_anew() -> None:
    module, state = lowered("Largest(3)"), {}
    (first,) = spmdir.simulate(module, inputs(0), state=state)
    before = dict(state)
    (second,) = spmdir.simulate(module, inputs(1), state=state)
    assert torch.equal(second, spmdir.simulate(module, inputs(1), state=before)[0])
    assert torch.equal(first, spmdir.simulate(module, inputs(0))[0])
    assert not torch.equal(second, spmdir.simulate(module, inputs(1))[0])


def test_states_are_read_back_and_checked_before_and_after_localize() -> None:
    module = lowered("Factored")
    for text in (ir.print_ir(module), ir.print_ir(spmdir.run_passes(module, "localize"))):
        again = spmdir.run_passes(ir.parse(text), "verify-spmd")
        assert ir.print_ir(again) == text
    with pytest.raises(
        (SpmdirError, VerifyException), match=r"takes the state 'q' as 2x9x1xf64 .*; expected 2x8x1xf64"
    ):
        ir.parse(ir.print_ir(lowered("Factored")).replace("2x8x1xf64", "2x9x1xf64"))


def test_a_step_without_the_states_of_its_edge_is_rejected() -> None:
    text = """
    spmd.mesh @mesh <dp = 2>
    func.func @f(%x: tensor<4x8xf64> {spmd.sharding = #spmd.sharding<@mesh, dp: Largest(2)>}) -> tensor<4x8xf64> {
      %y = spmd.convert %x : tensor<4x8xf64> <>
      return %y : tensor<4x8xf64>
    }"""
    with pytest.raises((SpmdirError, VerifyException), match="takes 0 states; expected error, which its edge declares"):
        ir.parse(text)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('spmd.state = "zeros"', 'spmd.state = "noughts"', 'spmd.state of argument 2 is "noughts"; expected "zeros"'),
        ('spmd.name = "g.error", ', 'spmd.name = "g.other", ', "state 'g.error' is not both an argument and"),
    ],
)
def test_a_state_that_is_no_argument_and_result_is_rejected(old: str, new: str, match: str) -> None:
    text = ir.print_ir(lowered("Largest(3)"))
    assert old in text
    with pytest.raises((SpmdirError, VerifyException), match=match):
        ir.parse(text.replace(old, new))


def test_an_edge_that_gives_other_states_is_an_error_where_it_is_declared() -> None:
    text = PROGRAM.replace("dp: S(0), tp: S(1)>", "dp: Forgetful>").replace("6x5", "5x8")
    text = text[: text.index("  %0")] + "  return %x : tensor<5x8xf64>\n}\n"
    with pytest.raises(SpmdirError, match="returns the states none; expected e") as found:
        spmdir.simulate(ir.parse(text), [torch.randn(5, 8, dtype=F64), inputs(0)[1]])
    assert found.value.location is not None and found.value.location.file == __file__


@pytest.mark.parametrize("wrong", [{"initial": "noise"}, {"dtype": "f7"}])
def test_a_state_that_cannot_be_made_is_rejected(wrong: dict[str, str]) -> None:
    with pytest.raises(SpmdirError):
        EdgeState(**wrong)
    with pytest.raises(ShardingError, match="`state` of an edge has"):
        Edge(lambda x, group, state: (x, state), target="R", state={"a b": EdgeState()})


def descend(state: dict, x: torch.Tensor, y: torch.Tensor) -> tuple:
    """A step of a linear model whose gradient is constrained; it returns what was sent."""
    error = x @ state["w"] - y
    gradient = spmdir.constrain(x.T @ error / len(x), "dp: Largest(4)")
    return ((error**2).mean(), gradient), {"w": state["w"] - 0.1 * gradient}


def train(rank: int, folder: str) -> tuple:
    """Return the gradients sent by three steps, and the error that this rank has left then and from one step on."""
    start = {"w": torch.zeros(5, 8, dtype=F64)}
    plan = {"input:1": "dp: S(0)", "input:2": "dp: S(0)"}
    pipeline = spmdir.Pipeline(topology="flat")
    step = spmdir.parallelize(descend, Mesh({"dp": 2}), plan, inputs(0), state=start, pipeline=pipeline)
    (name,) = [name for name in step.state if name.endswith(".error")]
    held = step.state[name]
    assert isinstance(held, DTensor) and not held.to_local().any()
    sent, after = [], []
    for run in range(3):
        sent.append(step(*inputs(run))[1])
        after.append(held.to_local().clone())
    held.to_local().copy_(after[0])
    step.state[next(name for name in step.state if "w" in name)].to_local().copy_(-0.1 * sent[0])
    again = step(*inputs(1))[1]
    assert name not in step.state_dict()
    return torch.stack(sent), torch.stack(after), again


@pytest.mark.gloo
def test_parallel_keeps_states_from_call_to_call(tmp_path: Path) -> None:
    (sent, first, again), (other, second, _) = on_ranks(2, train, tmp_path, str(tmp_path))
    assert torch.equal(sent, other)
    weight, total = torch.zeros(5, 8, dtype=F64), torch.zeros(5, 8, dtype=F64)
    for run in range(3):
        x, y = inputs(run)
        total += x.T @ (x @ weight - y) / 6
        weight -= 0.1 * sent[run]
        left = (first[run] + second[run])[0]
        torch.testing.assert_close(sent[: run + 1].sum(0) + left, total, rtol=0, atol=1e-12)
    assert torch.equal(again, sent[1]), "a state that is set is what the next call begins with"
