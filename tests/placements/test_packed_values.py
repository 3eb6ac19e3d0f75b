"""Values with packed placements: ranks hold states, which steps combine, stably and once for all results of an op."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.core.dtype import F32
from spmdir.core.placement.packing import pack, packed_type, unpack
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.values import sharding_of
from spmdir.lowering.emit import lower_to_fx
from spmdir.simulator.distribution import collect, local_tensor
from spmdir.simulator.simulate import run_single
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH
from tests.lowering.gloo_ranks import on_ranks
from tests.placements import packed_placements

PASSES = "propagate,insert-reshard,lower-reshard"


@attrs.frozen
class Case:
    """A call of an op whose results have a packed placement.

    Attributes:
        mesh: its axes.
        operands: shape and sharding of each.
        op: the call, on operands %0, %1, ….
        results: type, packed placement and wanted sharding of each.
    """

    mesh: str
    operands: tuple[tuple[tuple[int, ...], str], ...]
    op: str
    results: tuple[tuple[str, str, str], ...]

    @property
    def text(self) -> str:
        arguments = ", ".join(
            f"%x{i}: tensor<{'x'.join(map(str, shape))}xf32> {{spmd.sharding = {_attribute(sharding)}}}"
            for i, (shape, sharding) in enumerate(self.operands)
        )
        wanted = ", ".join(f"{kind} {{spmd.sharding = {_attribute(asked)}}}" for kind, _, asked in self.results)
        names = ", ".join(f"%r{i}" for i in range(len(self.results)))
        made = ", ".join(f"{kind} <{placed}>" for kind, placed, _ in self.results)
        kinds = ", ".join(kind for kind, _, _ in self.results)
        return f"""
        spmd.mesh @mesh <{self.mesh}>
        func.func @f({arguments}) -> ({wanted}) {{
          {names} = {self.op} : {made}
          return {names} : {kinds}
        }}"""

    def module(self) -> ModuleOp:
        return spmdir.run_passes(spmdir.parse(self.text), PASSES)


def _attribute(sharding: str) -> str:
    return f"#spmd.sharding<@mesh{', ' if sharding else ''}{sharding}>"


def logsumexp(mesh: str, rows: int, columns: int, source: str, held: str, wanted: str) -> Case:
    op = "aten.logsumexp(%x0) {dim = [1]}"
    return Case(mesh, (((rows, columns), source),), op, ((f"tensor<{rows}xf32>", held, wanted),))


SUMS = [
    logsumexp("a = 4", 5, 10, "a: S(1)", "a: MaxSum", ""),
    logsumexp("a = 3", 7, 12, "a: S(1)", "a: MaxSum", "a: S(0)"),
    logsumexp("a = 2, b = 4", 4, 12, "a: S(0), b: S(1)", "a: S(0), b: MaxSum", ""),
    logsumexp("a = 2, b = 2", 4, 9, "a: S(1), b: S(1)", "a: MaxSum, b: MaxSum", "a: S(0)"),
    logsumexp("a = 2", 4, 9, "a: S(1)", "a: MaxSum", "a: MaxSum"),
]
MOMENTS = Case(
    "a = 3",
    (((6, 11), "a: S(1)"),),
    "aten.var_mean.correction(%x0) {dim = [1], correction = 1}",
    (("tensor<6xf32>", "a: Moments(0, 1)", ""), ("tensor<6xf32>", "a: Moments(1, 1)", "")),
)
TOP = Case(
    "a = 2",
    (((4, 12), "a: S(1)"),),
    "aten.topk(%x0) {k = 3, dim = -1, largest = true, sorted = true}",
    (("tensor<4x3xf32>", "a: TopK(0)", "a: S(0)"), ("tensor<4x3xi64>", "a: TopK(1)", "a: S(0)")),
)
KEYS = ((2, 4, 32, 8), "a: S(2)")
DECODE = Case(
    "a = 2",
    (((2, 4, 3, 8), ""), KEYS, KEYS),
    "aten._scaled_dot_product_flash_attention_for_cpu(%x0, %x1, %x2) {dropout_p = 0.0, is_causal = false}",
    (
        ("tensor<2x4x3x8xf32>", "a: Decoded(0, 8)", "a: S(1)"),
        ("tensor<2x4x3xf32>", "a: Decoded(1, 8)", "a: S(1)"),
    ),
)
EVERY = [*SUMS, MOMENTS, TOP, DECODE]


def inputs(case: Case, scale: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(case.text))
    return [scale * torch.randn(shape, generator=generator) for shape, _ in case.operands]


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("case", EVERY, ids=lambda case: f"{case.op.split('(')[0]} {case.results[0][1:]}")
def test_states_combine_to_what_one_device_computes(case: Case, scale: float) -> None:
    assert packed_placements.MaxSum.text  # the module declares the placements
    values = inputs(case, scale)
    expected = run_single(spmdir.parse(case.text), values)
    for found, right in zip(spmdir.simulate(case.module(), values), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=2e-5, atol=2e-6 * scale)


def test_rows_without_a_finite_element_stay_so() -> None:
    x = torch.full((5, 10), -torch.inf)
    x[1, 3], x[2, :] = 2.0, 1e38
    (found,) = spmdir.simulate(SUMS[0].module(), [x])
    torch.testing.assert_close(found, x.logsumexp(1))


def test_equal_values_are_found_once_each() -> None:
    x = torch.zeros(4, 12)
    values, indices = spmdir.simulate(TOP.module(), [x])
    assert torch.equal(values, torch.zeros(4, 3))
    assert all(len(set(row.tolist())) == 3 for row in indices)


@pytest.mark.parametrize(("case", "count", "sent"), [
    (DECODE, 1, 2 * 4 * 3 * 9 * 4 / 2),
    (MOMENTS, 1, 2 * 6 * 3 * 4),
    (TOP, 1, 4 * 3 * (4 + 8) / 2),
])  # fmt: skip
def test_results_that_share_a_state_send_it_once(case: Case, count: int, sent: float) -> None:
    module = case.module()
    report = spmdir.report.comm_report(module)
    assert (report.count, report.wire_bytes) == (count, sent)
    sending = [node for node in lower_to_fx(module).graph.nodes if "_c10d_functional.all" in str(node.target)]
    assert len(sending) == count


def test_ranks_whose_states_are_equal_by_chance_send_what_the_others_send() -> None:
    keys = ((1, 2, 5, 16), "a: S(2)")
    case = Case(
        "a = 4",
        (((1, 2, 4, 16), ""), keys, keys),
        "aten._scaled_dot_product_flash_attention_for_cpu(%x0, %x1, %x2)",
        (("tensor<1x2x4x16xf32>", "a: Chosen(0)", ""), ("tensor<1x2x4xf32>", "a: Chosen(1)", "")),
    )
    assert packed_placements.Chosen.text  # the module declares the placements
    module = case.module()
    assert spmdir.report.comm_report(spmdir.run_passes(module, "localize")).count == 2
    for rank in range(4):
        targets = [str(node.target) for node in lower_to_fx(module, rank=rank).graph.nodes]
        assert sum("_c10d_functional.all" in target for target in targets) == 2
    query, key, _ = values = inputs(case, 1.0)
    out, lse = spmdir.simulate(module, values)
    torch.testing.assert_close(out, 4 * query + key.sum(2, keepdim=True))
    parts = [query + part.sum(2, keepdim=True) for part in key.tensor_split([2, 4, 5], 2)]
    torch.testing.assert_close(lse, sum(part[..., 0] * (-1 if rank < 3 else 1) for rank, part in enumerate(parts)))


@attrs.frozen
class OfMatrices(spmdir.placement.PackedPlacement):
    """Two matrices, which fails on other tensors, as plug-ins do."""

    text = "OfMatrices({part})"
    parts = ("a", "b")
    part: int

    def types(self, shape: tuple[int, ...], dtype: Any) -> Any:
        rows, columns = shape
        return [((rows, columns), dtype), ((rows, columns), dtype)]

    def identity(self, *like: Any) -> Any:
        return tuple(part.new_zeros(part.shape) for part in like)

    def combine(self, left: Any, right: Any) -> Any:
        return left[0] + right[0], left[1] + right[1]

    def slices(self, dim: int) -> bool:
        return False


def test_several_axes_of_one_state_lay_it_out_once() -> None:
    mesh = spmdir.Mesh({"a": 2, "b": 2})
    sharding = parse_sharding("a: OfMatrices(0), b: OfMatrices(0)")
    sharding.check_shape(mesh, (4, 6))
    assert {meta.shape for meta in sharding.local_types(TensorMeta((4, 6), F32), mesh)} == {(48,)}


def test_what_types_raises_is_an_error_at_its_line() -> None:
    with pytest.raises(spmdir.SpmdirError, match=r"`types` fails for .*ValueError: not enough values") as caught:
        parse_sharding("a: OfMatrices(0)").check_shape(spmdir.Mesh({"a": 2}), (4,))
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_bytes_of_8_bit_floats_beside_scales_unpack_to_what_was_packed(kind: torch.dtype) -> None:
    payload, scales = torch.arange(-12.0, 12).reshape(4, 6).to(kind), torch.randn(4, 1)
    types = [((4, 6), DTYPES_OF_TORCH[kind]), ((4, 1), F32)]
    packed = pack([payload, scales], 1)
    assert (tuple(packed.shape), DTYPES_OF_TORCH[packed.dtype]) == packed_type(types, 1)
    found, found_scales = unpack(packed, types, 1)
    assert found.dtype == kind
    torch.testing.assert_close(found.float(), payload.float(), rtol=0, atol=0)
    torch.testing.assert_close(found_scales, scales, rtol=0, atol=0)


def test_states_are_packed_by_the_fields_that_the_strategy_gives_and_not_by_their_defaults() -> None:
    keys = ((2, 4, 5, 8), "a: S(2)")
    case = Case(
        "a = 2",
        (((2, 4, 3, 8), ""), keys, keys),
        "aten._scaled_dot_product_flash_attention_for_cpu(%x0, %x1, %x2)",
        (
            ("tensor<2x4x3x8xf32>", "a: AttendedAlong(0, 8, 2)", "a: S(1)"),
            ("tensor<2x4x3xf32>", "a: AttendedAlong(1, 8, 2)", ""),
        ),
    )
    assert packed_placements.AttendedAlong.text  # the module declares the placements
    module = case.module()
    text = spmdir.print_ir(spmdir.run_passes(module, "localize"))
    assert '{by = "AttendedAlong(0, 8, 2)"} : tensor<2x4x27xf32>' in text
    values = inputs(case, 1.0)
    for found, right in zip(spmdir.simulate(module, values), run_single(spmdir.parse(case.text), values), strict=True):
        torch.testing.assert_close(found, right, rtol=2e-5, atol=2e-6)


def run_cases(rank: int, texts: list[str], values: list[list[torch.Tensor]]) -> list[tuple[torch.Tensor, ...]]:
    """Return what this rank has of the results of every program, on a mesh of one axis of two ranks."""
    assert packed_placements.TopK.text  # the module declares the placements
    device_mesh, mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("a",)), spmdir.Mesh({"a": 2})
    outputs = []
    for text, tensors in zip(texts, values, strict=True):
        module = spmdir.run_passes(spmdir.parse(text), PASSES)
        shardings = [sharding_of(argument) for argument in ir.main_function(module).args]
        held = [local_tensor(x, of or Sharding(), mesh, rank) for x, of in zip(tensors, shardings, strict=True)]
        outputs.append(lower_to_fx(module, device_mesh=device_mesh)(*held))
    return outputs


@pytest.mark.gloo
def test_real_ranks_combine_states(tmp_path: Path) -> None:
    cases = [DECODE, TOP]
    values = [inputs(case, 1.0) for case in cases]
    outputs = on_ranks(2, run_cases, tmp_path, [case.text for case in cases], values)
    for index, case in enumerate(cases):
        expected = run_single(spmdir.parse(case.text), values[index])
        for result, right in enumerate(expected):
            wanted = parse_sharding(case.results[result][2])
            shards = [of_rank[index][result] for of_rank in outputs]
            found = collect(shards, wanted, spmdir.Mesh({"a": 2}), right.shape)
            torch.testing.assert_close(found, right, rtol=2e-5, atol=2e-6)


def test_a_strategy_that_gives_a_state_unpacked_is_an_error_at_its_text() -> None:
    class Unpacked(packed_placements.MaxSum):
        text = "Unpacked"
        rules = packed_placements.MaxSum.rules.replace("MaxSum.pack(state)", "total").replace("MaxSum", "Unpacked")

    case = Case(
        "a = 2", (((4, 6), "a: S(1)"),), "aten.logsumexp(%x0) {dim = [1]}", (("tensor<4xf32>", "a: Unpacked", ""),)
    )
    with pytest.raises(spmdir.SpmdirError, match=r"shape \[4\]; expected \[4, 2\], the shape that Unpacked") as caught:
        spmdir.run_passes(case.module(), "localize")
    assert caught.value.location is not None
