"""Two real ranks, one of which is made different: all of them end with right numbers, or with a SpmdirError."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import spmdir
from tests.fuzz.batch import Kind, Wrong
from tests.fuzz.rank_processes import Own, run_on_ranks

WORLD = 2

DIFFERENCES = {
    "nothing": "",
    "weights": "other initial weights",
    "sizes": "an input of another size",
    "program": "a layer more",
    "type": "an input of another element type",
    "shardings": "other shardings",
    "error in the model": "an exception while the model is traced",
    "error before the run": "an exception of its own before the first run",
    "calls": "a run more than the others",
    "seed": "another seed of the random generator",
}
"""What one rank has that the other has not."""


@attrs.frozen
class Pair:
    """A model on two ranks, the second of which is different in one respect."""

    difference: str
    layers: int
    width: int
    batch: int
    dropout: bool
    dynamic: bool
    sharding: str
    mesh: Mapping[str, int] = {"tp": WORLD}

    def run(self, rank: int) -> tuple[str, str]:
        """Return how the case ends on a rank."""
        return _run(rank, self)

    def __str__(self) -> str:
        return f"rank 1 has {DIFFERENCES[self.difference] or 'nothing else'}: {attrs.asdict(self)}"


class Net(nn.Module):
    """Layers of one width; a rank may fail in it."""

    def __init__(self, pair: Pair, more: int, fails: bool):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(pair.width, pair.width) for _ in range(pair.layers + more))
        self.fails, self.dropout = fails, pair.dropout

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        if self.fails:
            raise RuntimeError("this rank fails")
        return nn.functional.dropout(x, 0.5, training=self.dropout)


def check(pair: Pair) -> str | None:
    """Run the pair on both ranks; raises Wrong unless each of them ends as it may."""
    rejected = run_on_ranks(WORLD, pair)
    if pair.difference == "nothing" and rejected:
        raise Wrong(f"equal ranks are rejected: {rejected}")
    return rejected[0] if rejected else None


def _run(rank: int, pair: Pair) -> tuple[str, str]:
    def has(difference: str) -> bool:
        return rank == 1 and pair.difference == difference

    model = Net(pair, int(has("program")), has("error in the model")).double()
    if has("weights"):
        with torch.no_grad():
            model.layers[-1].bias.add_(1)  # type: ignore
    shape = (pair.batch + 2 * has("sizes"), pair.width)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if has("type"):
        x = x.float()
    sharding = "tp: S(1)" if has("shardings") else pair.sharding
    batch = torch.export.Dim("batch", min=2, max=64)
    parallel = spmdir.parallelize(
        model,
        spmdir.Mesh(pair.mesh),
        {"layers.0.weight": sharding},
        (x,),
        dynamic_shapes=({0: batch},) if pair.dynamic else None,
    )
    if has("error before the run"):
        raise Own
    torch.manual_seed(3 + has("seed"))
    found = parallel(x)
    torch.manual_seed(3)
    expected = model(x)
    if found.shape != expected.shape:
        return "wrong", f"the shape is {found.shape} instead of {expected.shape}"
    if not torch.allclose(found, expected, rtol=1e-9, atol=1e-9):
        return "wrong", f"the numbers differ by {(found - expected).abs().max()}"
    parallel(x)  # the inputs of a second call are compared, those of a third are not
    if has("calls"):
        parallel(x)
    return "right", ""


pairs = st.builds(
    Pair,
    st.sampled_from([*DIFFERENCES]),
    layers=st.integers(1, 2),
    width=st.sampled_from((4, 3)),
    batch=st.sampled_from((4, 3)),
    dropout=st.booleans(),
    dynamic=st.booleans(),
    sharding=st.sampled_from(("tp: S(0)", "", "tp: S(1)")),
    mesh=st.sampled_from(({"tp": WORLD}, {"dp": 1, "tp": WORLD}, {"tp": WORLD, "dp": 1})),
)

RANKS = Kind("ranks", pairs, check, examples=6, seconds=60, share=1)
