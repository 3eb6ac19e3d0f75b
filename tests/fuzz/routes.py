"""Random layers of experts: rows that are dispatched give the results and the gradients of one device."""

from __future__ import annotations

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor

from spmdir import run_passes, simulate
from spmdir.dialects import ir
from tests.fuzz.batch import Kind, Wrong

LAYER = """
spmd.mesh @mesh <{mesh}>

#tokens = #spmd.sharding<@mesh, {tokens}>
#experts = #spmd.sharding<@mesh, {experts_by}>

func.func @f(%ids: tensor<{t}x{k}xi64> {{spmd.sharding = #tokens}}, %x: tensor<{t}x6xf64> {{spmd.sharding = #tokens}},
             %w: tensor<{e}x6x4xf64> {{spmd.sharding = #experts}}, %dy: tensor<{t}x4xf64> {{spmd.sharding = #tokens}})
    -> (tensor<{t}x4xf64>, tensor<{t}x6xf64>, tensor<{e}x6x4xf64>) {{
  %order, %counts, %arrivals = experts.route(%ids) {{experts = {e}}} : tensor<{r}xi64>, tensor<{e}xi64>, tensor<{e}xi64>
  %column = aten.unsqueeze(%x) {{dim = 1}} : tensor<{t}x1x6xf64>
  %pairs = aten.expand(%column) {{size = [{t}, {k}, 6]}} : tensor<{t}x{k}x6xf64>
  %sorted = experts.sort_rows(%pairs, %order) : tensor<{r}x6xf64>
  %rows = experts.regroup(%sorted, %counts, %arrivals) : tensor<{r}x6xf64>
  %hidden = experts.grouped_mm(%rows, %w, %arrivals) : tensor<{r}x4xf64> <{rows}>
  %out = aten.cos(%hidden) : tensor<{r}x4xf64>
  %home = experts.regroup(%out, %counts, %arrivals) : tensor<{r}x4xf64>
  %results = experts.unsort_rows(%home, %order, %ids) : tensor<{t}x{k}x4xf64>
  %y = aten.sum.dim_IntList(%results) {{dim = [1]}} : tensor<{t}x4xf64>
  %dcolumn = aten.unsqueeze(%dy) {{dim = 1}} : tensor<{t}x1x4xf64>
  %dpairs = aten.expand(%dcolumn) {{size = [{t}, {k}, 4]}} : tensor<{t}x{k}x4xf64>
  %dsorted = experts.sort_rows(%dpairs, %order) : tensor<{r}x4xf64>
  %dout = experts.regroup(%dsorted, %counts, %arrivals) : tensor<{r}x4xf64>
  %sin = aten.sin(%hidden) : tensor<{r}x4xf64>
  %minus = aten.neg(%sin) : tensor<{r}x4xf64>
  %dhidden = aten.mul.Tensor(%dout, %minus) : tensor<{r}x4xf64>
  %dw = experts.grouped_outer(%rows, %dhidden, %arrivals) {{experts = {e}}} : tensor<{e}x6x4xf64>
  %wt = aten.transpose.int(%w) {{dim0 = 1, dim1 = 2}} : tensor<{e}x4x6xf64>
  %drows = experts.grouped_mm(%dhidden, %wt, %arrivals) : tensor<{r}x6xf64>
  %dhome = experts.regroup(%drows, %counts, %arrivals) : tensor<{r}x6xf64>
  %dresults = experts.unsort_rows(%dhome, %order, %ids) : tensor<{t}x{k}x6xf64>
  %dx = aten.sum.dim_IntList(%dresults) {{dim = [1]}} : tensor<{t}x6xf64>
  return %y, %dx, %dw : tensor<{t}x4xf64>, tensor<{t}x6xf64>, tensor<{e}x6x4xf64>
}}
"""
"""A layer of experts with its gradients. The cosine of padding is not zero, so a sum over padding would be wrong."""

LAYOUTS = (
    ("ep = 2", "ep: S(0)", "ep: S(0)", "ep: Grouped(0)"),
    ("ep = 4", "ep: S(0)", "ep: S(0)", "ep: Grouped(0)"),
    ("ep = 4", "ep: S(0)", "ep: S(0)", "ep: Home(0)"),
    ("dp = 2, ep = 2", "dp: S(0), ep: S(0)", "ep: S(0)", "dp: Home(0), ep: Grouped(0)"),
    ("dp = 2, ep = 2", "dp: S(0), ep: S(0)", "dp: S(0), ep: S(0)", "dp: Grouped(0), ep: Grouped(0)"),
    ("ep = 2, tp = 2", "ep: S(0)", "ep: S(0), tp: S(2)", "ep: Grouped(0), tp: S(1)"),
)
"""Mesh, shardings of tokens and of weights, and sharding of the rows of experts."""

LOWERED = "propagate,expand,insert-reshard,lower-reshard,fuse-collectives"


@attrs.frozen
class Layer:
    """A layer of experts.

    Attributes:
        layout: an element of LAYOUTS.
        ids: the experts of each token.
        experts: the number of experts.
        is_in_slots: whether rows are in slots, if ranks have equally many tokens.
        is_scheduled: whether exchanges have a start and a wait.
    """

    layout: tuple[str, str, str, str]
    ids: tuple[tuple[int, ...], ...]
    experts: int
    is_in_slots: bool
    is_scheduled: bool

    @property
    def text(self) -> str:
        """The program."""
        mesh, tokens, experts_by, rows = self.layout
        t, k = len(self.ids), len(self.ids[0])
        sizes = {"t": t, "k": k, "r": t * k, "e": self.experts}
        return LAYER.format(mesh=mesh, tokens=tokens, experts_by=experts_by, rows=rows, **sizes)

    def __str__(self) -> str:
        return f"slots {self.is_in_slots}, scheduled {self.is_scheduled}, experts of tokens {self.ids}\n{self.text}"


def check(case: Layer) -> None:
    """Simulate the layer; raises Wrong where a result or a gradient differs from that of one device."""
    inputs = _inputs(case)
    expected = _one_device(case, *inputs)
    module = run_passes(ir.parse(case.text), LOWERED)
    ranks = ir.mesh(module).world_size
    passes = "localize,split-async,reorder" if case.is_scheduled else "localize"
    if case.is_in_slots and len(case.ids) % ranks == 0 and "Grouped" in case.layout[3]:
        passes = f"pad-rows{{capacity={len(case.ids)}}},{passes}"
    run_passes(module, f"{passes},verify-spmd")
    results = simulate(module, [torch.tensor(case.ids), *inputs])
    for name, result, right in zip(("y", "dx", "dw"), results, expected, strict=True):
        if not torch.allclose(result, right, rtol=1e-11, atol=1e-11):
            raise Wrong(f"{name} is another:\n{ir.print_ir(module)}")


def _inputs(case: Layer) -> list[Tensor]:
    """Return random tokens, weights, and a gradient of the result."""
    generator, t = torch.Generator().manual_seed(0), len(case.ids)
    shapes = (t, 6), (case.experts, 6, 4), (t, 4)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def _one_device(case: Layer, x: Tensor, w: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """Return the result of the layer and its gradients, from the experts of each token in turn."""
    x.requires_grad_(), w.requires_grad_()
    y = torch.stack(
        [torch.stack([(row @ w[e]).cos() for e in of_token]).sum(0) for row, of_token in zip(x, case.ids, strict=True)]
    )
    gradients = torch.autograd.grad(y, (x, w), dy)
    return tuple(value.detach() for value in (y, *gradients))


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    """Return a layer whose tokens choose random experts, or all the same one, or never some of them."""
    layout, experts, k = draw(st.sampled_from(LAYOUTS)), draw(st.sampled_from((4, 8))), draw(st.integers(1, 3))
    count = draw(st.integers(4, 13))
    chosen = draw(st.lists(st.integers(0, experts - 1), min_size=k, max_size=experts, unique=True))
    ids = draw(st.lists(st.permutations(chosen).map(lambda order: tuple(order[:k])), min_size=count, max_size=count))
    return Layer(layout, tuple(ids), experts, draw(st.booleans()), draw(st.booleans()))


ROUTES = Kind("routes", layers(), check, examples=30, seconds=60)
