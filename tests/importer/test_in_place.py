"""Ops that write into their operand are imported as those that give a new tensor."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import spmdir
from spmdir.dialects import ir

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
    module = spmdir.import_fx(exported, MESH, {"x": "dp: S(0)"}, missing_rule="error")
    names = [op.name for op in ir.main_function(module).body.block.ops]
    assert not [name for name in names if name.endswith("_")]
    for name, found, expected in zip(WRITES, spmdir.simulate(module, [x]), Write()(x), strict=True):
        torch.testing.assert_close(found, expected, msg=name)
