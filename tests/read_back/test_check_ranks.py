"""The program of the ranks is compared with that of one device; wrong collectives are found."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir
from spmdir.core.errors import ShardingError
from tests.read_back.mutated_collectives import Collectives, mutations
from tests.read_back.rank_graphs import all_reduce, import_function, import_graph, random_inputs, reduce_scatter, trace

BLOCK = random_inputs(
    {
        "x": (4, 6, 8),
        "norm": (8,),
        "wq": (8, 16),
        "wk": (8, 16),
        "wv": (8, 16),
        "wo": (16, 8),
        "w1": (8, 12),
        "w2": (12, 8),
    }
)
BLOCK_SHARDINGS = {
    "x": "dp: S(0), tp: S(1)",
    **dict.fromkeys(["wq", "wk", "wv", "w1"], "tp: S(1)"),
    **dict.fromkeys(["wo", "w2"], "tp: S(0)"),
}
BLOCK_CALLS = ["gather", "scatter", "gather", "scatter"]


class OneDevice(Collectives):
    """The same program on one device: no collective does anything."""

    def all_reduce(self, x, axis, op="sum"):
        return x

    def all_gather(self, x, dim, axis):
        return x

    def reduce_scatter(self, x, dim, axis, op="sum"):
        return x


def attention(x, wq, wk, wv, wo, head_size):
    batch, sequence, _ = x.shape
    q, k, v = ((x @ w).view(batch, sequence, -1, head_size).transpose(1, 2) for w in (wq, wk, wv))
    probabilities = torch.softmax(q @ k.transpose(-1, -2) / head_size**0.5, -1)
    return (probabilities @ v).transpose(1, 2).reshape(batch, sequence, -1) @ wo


def block(c, x, norm, wq, wk, wv, wo, w1, w2):
    """A transformer block with sequence parallelism."""
    h = c.all_gather(F.rms_norm(x, (8,), norm), 1, "tp")
    x = x + c.reduce_scatter(attention(h, wq, wk, wv, wo, 4), 1, "tp")
    h = c.all_gather(F.rms_norm(x, (8,), norm), 1, "tp")
    return x + c.reduce_scatter(F.gelu(h @ w1) @ w2, 1, "tp")


STEP = random_inputs({"x": (4, 6, 8), "target": (4, 6, 8), "w1": (8, 12), "w2": (12, 8)})
STEP_SHARDINGS = {
    "x": "dp: S(0)",
    "target": "dp: S(0)",
    "w1": "dp: S(0), tp: S(1)",
    "w2": "tp: S(0), dp: S(1)",
}
STEP_CALLS = ["gather", "gather", "reduce", "scatter", "scatter", "reduce"]


def step(c, x, target, w1, w2):
    """A training step with sharded weights along dp, and tensor parallelism along tp; its gradients by hand."""
    w1, w2 = c.all_gather(w1, 0, "dp"), c.all_gather(w2, 1, "dp")
    before = x @ w1
    hidden = torch.relu(before)
    difference = c.all_reduce(hidden @ w2, "tp") - target
    loss = difference.square().mean()
    gradient = difference * (2 / difference.numel())
    g2 = torch.einsum("bsi,bso->io", hidden, gradient)
    g1 = torch.einsum("bsi,bso->io", x, (gradient @ w2.t()) * (before > 0))
    g1, g2 = c.reduce_scatter(g1, 0, "dp", "avg"), c.reduce_scatter(g2, 1, "dp", "avg")
    return c.all_reduce(loss, "dp", "avg"), g1, g2


PROGRAMS = {
    "block": (block, BLOCK, BLOCK_SHARDINGS, BLOCK_CALLS),
    "step": (step, STEP, STEP_SHARDINGS, STEP_CALLS),
}


def reference(program, inputs):
    return make_fx(lambda *args: program(OneDevice(), *args), tracing_mode="fake")(*inputs.values())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_right_program_equals_one_device(name):
    program, inputs, shardings, _ = PROGRAMS[name]
    module = import_function(lambda *args: program(Collectives(), *args), inputs, shardings)
    comparison = spmdir.check_ranks(module, reference(program, inputs))
    assert comparison.is_equal, comparison
    assert str(comparison).startswith("equal: ")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_one_wrong_collective_is_rejected_or_differs(name):
    program, inputs, shardings, calls = PROGRAMS[name]
    expected = reference(program, inputs)
    undetected = []
    count = rejected = 0
    for label, mutated in mutations(program, calls):
        try:
            graph = trace(mutated, inputs, shardings)
        except RuntimeError:
            continue  # its shapes are wrong, so it does not run
        count += 1
        try:
            module = import_graph(graph, inputs, shardings)
            is_equal = spmdir.check_ranks(module, expected).is_equal
        except ShardingError:
            rejected += 1
            is_equal = False
        if is_equal:
            undetected.append(label)
    assert not undetected
    assert count >= 20
    assert rejected


def test_a_program_of_the_same_ops_is_proved_equal():
    inputs = random_inputs({"x": (4, 8), "w1": (8, 6), "w2": (6, 8)})
    module = import_function(
        lambda x, w1, w2: all_reduce(torch.relu(x @ w1) @ w2),
        inputs,
        {"x": "dp: S(0)", "w1": "tp: S(1)", "w2": "tp: S(0)"},
    )
    single = make_fx(lambda x, w1, w2: torch.relu(x @ w1) @ w2, tracing_mode="fake")(*inputs.values())
    comparison = spmdir.check_ranks(module, single)
    assert comparison.proved == (0,)
    assert str(comparison) == "equal: proved for output 0: the same expression of the inputs"


def test_the_first_op_that_differs_is_named():
    inputs = random_inputs({"x": (4, 8), "w1": (8, 6), "w2": (6, 8)})
    module = import_function(
        lambda x, w1, w2: all_reduce(torch.sigmoid(x @ w1) @ w2), inputs, {"w1": "tp: S(1)", "w2": "tp: S(0)"}
    )
    single = make_fx(lambda x, w1, w2: torch.relu(x @ w1) @ w2, tracing_mode="fake")(*inputs.values())
    comparison = spmdir.check_ranks(module, single)
    assert not comparison.is_equal
    assert "The first op with a result that the reference does not have is 'aten.sigmoid'" in str(comparison)


def test_another_global_shape_of_an_input_is_an_error():
    inputs = random_inputs({"x": (4, 8), "w": (8, 6)})
    module = import_function(lambda x, w: x @ w, inputs, {"w": "tp: S(1)"})
    single = make_fx(lambda x, w: x @ w, tracing_mode="fake")(torch.randn(4, 8), torch.randn(8, 3))
    with pytest.raises(ShardingError, match=r"input 1 of the ranks is tensor<8x6xf64>"):
        spmdir.check_ranks(module, single)


def test_another_scaling_is_named_with_its_factor():
    inputs = random_inputs({"x": (4, 8), "w1": (8, 6), "w2": (6, 8)})
    module = import_function(
        lambda x, w1, w2: all_reduce(torch.relu(x @ w1) @ w2, op="avg"), inputs, {"w1": "tp: S(1)", "w2": "tp: S(0)"}
    )
    single = make_fx(lambda x, w1, w2: torch.relu(x @ w1) @ w2, tracing_mode="fake")(*inputs.values())
    assert "it is 0.5 times the reference" in str(spmdir.check_ranks(module, single))


def test_a_packed_message_on_the_wrong_axis_is_named():
    def local(x, w):
        return reduce_scatter(x @ w, 1, "dp")

    inputs = random_inputs({"x": (4, 8), "w": (8, 6)})
    with pytest.raises(
        ShardingError, match=r"'_c10d_functional.reduce_scatter_tensor' gets a shard of dimension 0 over dp"
    ):
        import_function(local, inputs, {"x": "dp: S(0), tp: S(1)", "w": "tp: S(0)"})
