"""Windows over sharded pixels: halos exchanged, simulated and between real processes, against torch on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import torch.distributed as dist
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import spmdir
from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from spmdir.lowering.emit import lower_to_fx
from spmdir.simulator.distribution import collect, distribute, random_like
from tests.lowering.gloo_ranks import on_ranks

MESHES = [Mesh({"a": 2}), Mesh({"a": 3}), Mesh({"a": 4}), Mesh({"a": 2, "b": 2}), Mesh({"a": 2, "b": 3})]


@attrs.frozen
class Case:
    """A convolution of a plane, its gradients, and how the plane is divided."""

    mesh: Mesh
    sharding: str
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: int
    padding: tuple[int, int]
    dilation: int
    groups: int = 1

    @property
    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(3)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        x, weight = drawn(2, 4, *self.size), drawn(4, 4 // self.groups, *self.kernel)
        return x, weight, drawn(*self.forward(x, weight).shape)

    @property
    def settings(self) -> tuple[Any, ...]:
        stride, dilation = (self.stride,) * 2, (self.dilation,) * 2
        return stride, self.padding, dilation, False, (0, 0), self.groups

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.convolution(x, weight, None, *self.settings)

    @property
    def expected(self) -> list[torch.Tensor]:
        x, weight, gradient = self.operands
        back = torch.ops.aten.convolution_backward(gradient, x, weight, [4], *self.settings, [True, True, True])
        return [self.forward(x, weight), *back]

    @property
    def text(self) -> str:
        """The program with every sharding given, so that the search has nothing to choose."""
        x, weight, out = (f"tensor<{'x'.join(map(str, t.shape))}xf64>" for t in self.operands)
        names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
        listed = [list(v) if isinstance(v, tuple) else str(v).lower() for v in self.settings]
        arguments = ", ".join(f"{name} = {value}" for name, value in zip(names, listed, strict=True))
        pending = ", ".join(f"{axis}: P(sum)" for axis in self.mesh.axis_names)
        kept, whole = f"spmd.sharding = #spmd.sharding<@mesh, {self.sharding}>", "spmd.sharding = #spmd.sharding<@mesh>"
        return f"""spmd.mesh @mesh {self.mesh}

func.func @main(%x: {x} {{{kept}}}, %w: {weight} {{{whole}}}, %g: {out} {{{kept}}})
    -> ({out} {{{kept}}}, {x} {{{kept}}}, {weight} {{{whole}}}, tensor<4xf64> {{{whole}}}) {{
  %0 = aten.convolution(%x, %w, none) {{{arguments}}} : {out} <{self.sharding}>
  %1, %2, %3 = aten.convolution_backward(%g, %x, %w) {{bias_sizes = [4], output_mask = [true, true, true], {arguments}}} : {x} <{self.sharding}>, {weight} <{pending}>, tensor<4xf64> <{pending}>
  return %0, %1, %2, %3 : {out}, {x}, {weight}, tensor<4xf64>
}}
"""  # noqa: E501


def _allowed(case: Case) -> bool:
    """Whether the rules offer the case."""
    try:
        spmdir.run_passes(spmdir.parse(case.text), "propagate,insert-reshard")
    except ShardingError:
        return False
    return True


@st.composite
def cases(draw) -> Case:
    mesh = draw(st.sampled_from(MESHES))
    axes = draw(st.permutations(mesh.axis_names))
    sharding = ", ".join(f"{axis}: S({draw(st.sampled_from([2, 3]))})" for axis in axes)
    kernel = draw(st.tuples(st.sampled_from([1, 2, 3, 5]), st.sampled_from([1, 2, 3])))
    stride, dilation = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 1, 2]))
    reach = [dilation * (k - 1) for k in kernel]
    # Only such padding keeps blocks of the output beside those of the input.
    padding = tuple(draw(st.integers(max(0, r - stride + 1) // 2, (r + 1) // 2)) for r in reach)
    size = draw(st.tuples(st.sampled_from([6, 7, 8, 11, 12, 24]), st.sampled_from([6, 8, 12, 13])))
    return Case(mesh, sharding, size, kernel, stride, padding, dilation, draw(st.sampled_from([1, 2, 4])))


@settings(max_examples=40)
@given(case=cases())
def test_a_convolution_of_sharded_pixels_and_its_gradients_are_those_of_one_device(case: Case):
    assume(_allowed(case))
    found = spmdir.simulate(spmdir.parse(case.text), list(case.operands))
    for one, other in zip(found, case.expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


ROWS = Case(Mesh({"a": 2, "b": 2}), "b: S(2), a: S(2)", (12, 6), (3, 3), 1, (1, 1), 1)
UNEVEN = attrs.evolve(ROWS, mesh=Mesh({"a": 4}), sharding="a: S(2)", size=(13, 6))
TILES = Case(Mesh({"a": 2, "b": 2}), "a: S(2), b: S(3)", (12, 16), (5, 3), 2, (2, 1), 1, 2)
POINTS = Case(Mesh({"a": 2, "b": 2}), "a: S(2), b: S(3)", (8, 8), (1, 1), 2, (0, 0), 1)


@pytest.mark.parametrize("case", [ROWS, UNEVEN, TILES, POINTS], ids=lambda case: case.sharding)
def test_the_usual_cases_are_offered_and_travel_as_text(case: Case):
    module = spmdir.parse(case.text)
    spmdir.run_passes(module, "propagate,insert-reshard,verify-spmd,lower-reshard,localize")
    text = spmdir.print_ir(module)
    assert ("spmd.halo" in text and "spmd.halo_reduce" in text) == (case.kernel != (1, 1))
    assert "all_gather" not in text
    again = spmdir.parse(text)
    assert spmdir.print_ir(again) == text
    for one, other in zip(spmdir.simulate(again, list(case.operands)), case.expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (attrs.evolve(UNEVEN, stride=2), "13 rows at stride 2 give 7"),
        (attrs.evolve(UNEVEN, padding=(0, 0)), "without padding there are fewer rows than before"),
        (attrs.evolve(UNEVEN, kernel=(5, 3), padding=(2, 1)), "a block of one row has no border of two"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_blocks_that_do_not_correspond_are_rejected(case: Case, why: str):
    assert not _allowed(case)


def test_the_report_counts_the_halos_of_the_busiest_rank():
    module = spmdir.parse(TILES.text)
    spmdir.run_passes(module, "propagate,insert-reshard,lower-reshard,localize")
    shares = spmdir.report.comm_report(module).by_kind
    # Two neighbours each: rows of a block are 8 wide, columns are 6 high and with their halo of 2 and 1 rows 9.
    rows, columns = 2 * 4 * 8 * 2 * 8, 2 * 4 * 9 * 1 * 8
    assert shares["halo"].count == 4 and shares["halo"].wire_bytes == 2 * (rows + columns)
    assert shares["halo_reduce"].count == 2 and shares["halo_reduce"].wire_bytes == rows + columns


def test_a_pool_of_sharded_pixels_sees_nothing_beyond_the_plane():
    x = torch.randn(2, 3, 12, 8, dtype=torch.float64) - 10
    text = """spmd.mesh @mesh <a = 3>

func.func @main(%x: tensor<2x3x12x8xf64> {spmd.sharding = #spmd.sharding<@mesh, a: S(2)>}) -> (tensor<2x3x6x4xf64> {spmd.sharding = #spmd.sharding<@mesh, a: S(2)>}) {
  %0 = aten.max_pool2d(%x) {kernel_size = [3, 3], stride = [2, 2], padding = [1, 1]} : tensor<2x3x6x4xf64> <a: S(2)>
  return %0 : tensor<2x3x6x4xf64>
}
"""  # noqa: E501
    (found,) = spmdir.simulate(spmdir.parse(text), [x])
    assert torch.equal(found, torch.nn.functional.max_pool2d(x, 3, 2, 1))


def _on_rank(rank: int, every: list[Case]) -> list[Any]:
    outputs = []
    for case in every:
        mesh = case.mesh
        device_mesh = dist.device_mesh.init_device_mesh(
            "cpu", tuple(mesh.sizes.values()), mesh_dim_names=tuple(mesh.axis_names)
        )
        noise = random_like(torch.Generator().manual_seed(0))
        given = [parse_sharding(text) for text in (case.sharding, "", case.sharding)]
        local = [distribute(x, s, mesh, noise)[rank] for x, s in zip(case.operands, given, strict=True)]
        outputs.append(lower_to_fx(spmdir.parse(case.text), device_mesh=device_mesh)(*local))
    return outputs


@pytest.mark.gloo
def test_real_ranks_exchange_their_halos(tmp_path: Path):
    every = [ROWS, UNEVEN, TILES, POINTS]
    outputs = on_ranks(4, _on_rank, tmp_path, every)
    for index, case in enumerate(every):
        targets = [parse_sharding(text) for text in (case.sharding, case.sharding, "", "")]
        for number, (target, right) in enumerate(zip(targets, case.expected, strict=True)):
            shards = [results[index][number] for results in outputs]
            torch.testing.assert_close(collect(shards, target, case.mesh, right.shape), right, rtol=1e-9, atol=1e-9)
