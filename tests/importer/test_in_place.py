"""Ops that write into their operand are imported as those that give a new tensor."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir
from spmdir.importer.as_strided import STRIDED_FORMS
from spmdir.importer.importer import import_fx
from spmdir.simulator.simulate import run_single, simulate

MESH = spmdir.Mesh({"dp": 2})


class Write(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        written = [x + 0.25 for _ in WRITES]
        for write, y in zip(WRITES.values(), written, strict=True):
            write(y)
        return written


WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    "add_": lambda y: y.add_(y, alpha=2),
    "sub_": lambda y: y.sub_(1),
    "mul_": lambda y: y.mul_(2),
    "div_": lambda y: y.div_(2, rounding_mode="floor"),
    "addcmul_": lambda y: y.addcmul_(y, y, value=2),
    "lerp_": lambda y: y.lerp_(torch.ones_like(y), 0.3),
    "clamp_": lambda y: y.clamp_(-0.5, 0.5),
    "relu_": lambda y: y.relu_(),
    "sigmoid_": lambda y: y.sigmoid_(),
    "neg_": lambda y: y.neg_(),
    "pow_": lambda y: y.pow_(2),
    "fill_": lambda y: y.fill_(3),
    "zero_": lambda y: y.zero_(),
    "copy_": lambda y: y.copy_(torch.ones(3)),
    "masked_fill_": lambda y: y.masked_fill_(y > 0, 7),
    "leaky_relu_": lambda y: torch.nn.functional.leaky_relu_(y),
    "bitwise_": lambda y: y.copy_(y.to(torch.int64).bitwise_and_(3)),
    "a part": lambda y: y[:, 1].add_(5),
}


def test_writes_are_imported_as_new_values():
    x = torch.randn(4, 3, dtype=torch.float64)
    exported = torch.export.export(Write(), (x,))
    module = spmdir.import_fx(exported, MESH, {"x": "dp: S(0)"}, missing_rule="error", check=True)
    names = [op.name for op in ir.main_function(module).body.block.ops]
    assert not [name for name in names if name.endswith("_")]
    for name, found, expected in zip(WRITES, spmdir.simulate(module, [x]), Write()(x), strict=True):
        torch.testing.assert_close(found, expected, msg=name)


def test_gradients_of_writes_to_parts_are_imported():
    def gradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = x * 2
        y[:, 1:4].mul_(3)
        y[2].sin_()
        y[1:3, ::2] += 1
        return torch.autograd.grad(y.pow(3).sum(), x)[0]

    x = torch.randn(4, 6, dtype=torch.float64)
    module = spmdir.import_fx(make_fx(gradient)(x), MESH, {"input:0": "dp: S(0)"}, check=True)
    torch.testing.assert_close(spmdir.simulate(module, [x])[0], gradient(x))


@settings(max_examples=300)
@given(st.data())
def test_slices_in_the_place_of_strides_give_and_take_the_same_elements(data):
    whole = torch.arange(math.prod(shape := data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=3))))
    whole = whole.reshape(shape)
    lengths = data.draw(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0, 1, 2, 3, 4, 6, 12, 24])), max_size=3))
    size, stride = [n for n, _ in lengths], [step for _, step in lengths]
    last = whole.numel() - 1 - sum((n - 1) * step for n, step in lengths)
    assume(last >= 0)
    offset = data.draw(st.integers(0, last))
    part = STRIDED_FORMS[torch.ops.aten.as_strided.default](whole, size, stride, offset)
    assume(part is not NotImplemented)
    assert torch.equal(part, whole.as_strided(size, stride, offset))
    assume(part.numel() == part.unique().numel())
    written = STRIDED_FORMS[torch.ops.aten.as_strided_scatter.default](whole, part + 100, size, stride, offset)
    assert torch.equal(written, torch.as_strided_scatter(whole, part + 100, size, stride, offset))


def test_inputs_that_share_memory_that_is_written_are_an_error_when_the_program_runs():
    def write(a, b):
        a.add_(1)
        return b * 1

    base = torch.zeros(4, 2)
    module = import_fx(make_fx(write)(torch.zeros(3, 2), torch.zeros(3, 2)), MESH)
    for run in (run_single, simulate):
        with pytest.raises(SpmdirError, match=r"'a_1', which the program writes to, shares memory with 'b_1'"):
            run(module, [base[:3], base[1:]])
    columns = torch.zeros(3, 4)
    assert torch.equal(run_single(module, [columns[:, :2], columns[:, 2:]])[0], torch.zeros(3, 2))
    reads = import_fx(make_fx(lambda a, b: a + b)(torch.zeros(3, 2), torch.zeros(3, 2)), MESH)
    run_single(reads, [base[:3], base[1:]])
