"""Element types that backends do not carry or do not reduce, and forms in which tensors cannot be viewed at once."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir
from spmdir.core.dtype import F32
from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from spmdir.lowering.emit import lower_to_fx
from spmdir.lowering.group import Group
from tests.lowering.collective_programs import Program

MESH = Mesh({"a": 2})

UNREDUCED = [
    ("i16", "sum", "neither gloo nor NCCL reduces i16 by sum; convert to i32"),
    ("i16", "max", "neither gloo nor NCCL reduces i16 by max; convert to i32"),
    ("f8E4M3FN", "sum", "neither gloo nor NCCL reduces f8E4M3FN by sum; convert to f32"),
    ("f8E5M2", "min", "neither gloo nor NCCL reduces f8E5M2 by min; convert to f32"),
    ("complex<f32>", "product", "neither gloo nor NCCL reduces complex<f32> by product, only by sum and avg"),
]


@pytest.mark.parametrize(("dtype", "op", "message"), UNREDUCED)
@pytest.mark.parametrize(("kind", "target"), [("all_reduce", ""), ("reduce_scatter", "a: S(0)")])
def test_reductions_that_no_backend_does_are_rejected_at_their_place(
    kind: str, target: str, dtype: str, op: str, message: str
) -> None:
    clauses = f"on [a]{' dim 0' if target else ''} op {op}"
    program = Program(MESH, kind, clauses, parse_sharding(f"a: P({op})"), parse_sharding(target), (4,), dtype)
    with pytest.raises(UnsupportedError, match=message) as caught:
        lower_to_fx(program.parse())
    assert caught.value.location is not None


def test_edges_of_placements_reduce_what_backends_do() -> None:
    group = Group("mesh:a", 2, 0, (4,), F32)
    for reduce in (group.all_reduce, group.reduce_scatter):
        with pytest.raises(UnsupportedError, match="reduces i16 by max; convert to i32"):
            reduce(torch.ones(2, 4, dtype=torch.int16), "max")


def test_a_conjugate_is_moved() -> None:
    text = """
    spmd.mesh @mesh <a = 2>
    func.func @main(%x: tensor<4x6xcomplex<f64>> {spmd.sharding = #spmd.sharding<@mesh, a: S(0)>})
        -> (tensor<4x6xcomplex<f64>> {spmd.sharding = #spmd.sharding<@mesh, a: S(1)>}) {
      %0 = aten._conj(%x) : tensor<4x6xcomplex<f64>> <a: S(0)>
      %1 = spmd.all_to_all %0 on [a] from 0 to 1 : tensor<4x6xcomplex<f64>> <a: S(1)>
      return %1 : tensor<4x6xcomplex<f64>>
    }
    """
    x = torch.randn(4, 6, dtype=torch.complex128)
    (found,) = spmdir.simulate(spmdir.parse(text), [x])
    assert torch.equal(found, x.conj())


def test_what_has_no_backend_type_is_moved_in_the_precision_that_is_given() -> None:
    sides = parse_sharding("a: S(0)"), parse_sharding("a: S(1)")
    program = Program(MESH, "all_to_all", "on [a] from 0 to 1", *sides, (4, 6), "f8E5M2")
    x = torch.randn(4, 6, dtype=torch.float64)
    (found,) = spmdir.simulate(program.parse(), [x])
    assert torch.equal(found, x)


DECIDED = {
    "a product of complex numbers": (lambda x: x.prod(0), torch.complex128),
    "the greatest of i16": (lambda x: x.amax(0), torch.int16),
    "a sum of complex numbers": (lambda x: x.sum(0), torch.complex128),
}


@pytest.mark.parametrize("placement", ["S(0)", "Strided(0, 2)"])
@pytest.mark.parametrize("case", DECIDED)
def test_what_is_decided_is_what_backends_reduce(case: str, placement: str) -> None:
    function, dtype = DECIDED[case]
    x = torch.randint(-4, 5, (4, 6)).to(dtype)
    module = spmdir.import_fx(make_fx(function)(x), MESH, {"input:0": f"a: {placement}"}, out_shardings=[""])
    (found,) = spmdir.simulate(module, [x], pipeline=spmdir.Pipeline(topology="flat"))
    assert torch.equal(found, function(x))
