"""Local batches of other sizes on each of two ranks: outputs and buffers are those of copies of the ranks' batches.

What a rank computes is what one device computes with as many copies of its batch as there are ranks; new values of
buffers are the means of that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import Tensor, nn

import spmdir
from tests.fuzz.batch import Kind, Wrong
from tests.fuzz.rank_processes import run_on_ranks

WIDTH, RANKS = 4, 2

ADDED: Mapping[str, Callable[[Tensor], Any]] = {
    "x.size(0)": lambda x: x.size(0),
    "1 / x.size(0)": lambda x: 1 / x.size(0),
    "x.size(0) * 3 - 1": lambda x: x.size(0) * 3 - 1,
    "arange(x.size(0)).sum()": lambda x: torch.arange(x.size(0)).sum().double(),
    "full((x.size(0), 2), 0.5).mean()": lambda x: torch.full((x.size(0), 2), 0.5, dtype=x.dtype).mean(),
    "x.sum() / x.size(0)": lambda x: x.sum() / x.size(0),
    "x.mean()": lambda x: x.mean(),
    "x.amax()": lambda x: x.amax(),
    "x.var(0).sum()": lambda x: x.var(0).sum(),
}
"""Code → what is added to a buffer."""

RETURNED: Mapping[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "y": (lambda x, y: y, 0),
    "y.t()": (lambda x, y: y.t(), 1),
    "y[:, :2]": (lambda x, y: y[:, :2], 0),
    "x": (lambda x, y: x, 0),
    "x.view(-1, 2, 2)": (lambda x, y: x.view(-1, 2, 2), 0),
}
"""Code → an output, which may share memory with another one or with the input, and its dimension of the batch."""

ONE: Mapping[str, Callable[[], Tensor]] = {
    "tensor([2.])": lambda: torch.tensor([2.0], dtype=torch.float64),
    "tensor(2.).expand(1)": lambda: torch.tensor(2.0, dtype=torch.float64).expand(1),
    "full((8,), 2.)[3::7]": lambda: torch.full((8,), 2.0, dtype=torch.float64)[3::7],
}
"""Code → a tensor of one element, of several strides."""


@attrs.frozen
class Batches:
    """What is added to buffers, what is returned, a factor of one element, and the rows of both ranks in each call."""

    added: tuple[str, ...]
    returned: tuple[str, ...]
    one: str
    rows: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return "\n".join(f"{field}: {value}" for field, value in attrs.asdict(self, recurse=False).items())

    def run(self, rank: int) -> tuple[str, str]:
        """Call the module on ranks, and on one device with copies of this rank's batch."""
        torch.manual_seed(0)
        alone: Any = Net(self).double()
        example = torch.randn(4 * RANKS, WIDTH, dtype=torch.float64)
        sharded: Any = spmdir.shard_module(
            copy.deepcopy(alone),
            spmdir.Mesh({"dp": RANKS}),
            {"x": "dp: S(0)", "one": ""},
            (example, torch.ones(1, dtype=torch.float64)),
            out_shardings=[f"dp: S({RETURNED[code][1]})" for code in self.returned],
            local_inputs=True,
            dynamic_shapes={"x": {0: torch.export.Dim("rows", min=2)}, "one": None},
        )
        for rows in self.rows:
            x = torch.randn(rows[rank], WIDTH, dtype=torch.float64)
            one = ONE[self.one]()
            outputs, expected = sharded(x, one), alone(torch.cat([x] * RANKS), one)
            for code, mine, other in zip(self.returned, outputs, expected, strict=True):
                dim = RETURNED[code][1]
                if not torch.allclose(mine, other.narrow(dim, 0, mine.shape[dim]), rtol=1e-9, atol=1e-9):
                    return "wrong", f"the output {code} differs"
            for (name, mine), other in zip(sharded.named_buffers(), alone.buffers(), strict=True):
                dist.all_reduce(other)
                other /= RANKS
                if not torch.allclose(mine.full_tensor(), other, rtol=1e-9, atol=1e-9):
                    return "wrong", f"buffer {name} is {mine.full_tensor()}; the mean is {other}"
        return "right", ""


class Net(nn.Module):
    """Adds to buffers, and returns what shares memory."""

    def __init__(self, case: Batches):
        super().__init__()
        self.layer, self.case = nn.Linear(WIDTH, WIDTH), case
        for at, _ in enumerate(case.added):
            self.register_buffer(f"buffer_{at}", torch.zeros(()))

    def forward(self, x: Tensor, one: Tensor) -> tuple[Tensor, ...]:
        for at, code in enumerate(self.case.added):
            self.get_buffer(f"buffer_{at}").add_(ADDED[code](x))
        y = self.layer(x) * one
        return tuple(RETURNED[code][0](x, y) for code in self.case.returned)


def check(case: Batches) -> str | None:
    """Run the case on its ranks; raises Wrong unless all are right, or all reject it."""
    rejected = run_on_ranks(RANKS, case)
    if rejected and len(rejected) < RANKS:
        raise Wrong(f"some ranks reject it: {rejected}")
    return rejected[0] if rejected else None


batches = st.builds(
    Batches,
    added=st.lists(st.sampled_from([*ADDED]), min_size=1, max_size=3).map(tuple),
    returned=st.lists(st.sampled_from([*RETURNED]), min_size=1, max_size=3).map(tuple),
    one=st.sampled_from([*ONE]),
    rows=st.lists(st.tuples(st.integers(2, 6), st.integers(2, 6)), min_size=1, max_size=3).map(tuple),
)

BATCHES = Kind("batches", batches, check, examples=8, seconds=60, share=1)
