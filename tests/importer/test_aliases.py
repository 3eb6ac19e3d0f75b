"""Writes through views and aliases give what eager gives, or an error where their meaning depends on an order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import spmdir
from spmdir.core.errors import UnsupportedError
from spmdir.importer import aliases
from spmdir.simulator.simulate import run_single
from tests.importer.imported_programs import MESH, Function, export, results

WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    # Views whose inverse in torch loses elements or adds up differences.
    "unfold": lambda x: x.unfold(-1, 2, 2).sub_(0.25),
    "unfold of all": lambda x: x.unfold(0, 6, 1).mul_(3),
    "unfold of a transpose": lambda x: x.view(2, 3).t().unfold(0, 2, 2).sin_(),
    "expand": lambda x: x.expand(1, 6)[0].add_(0.1),
    "a column of an expansion, filled": lambda x: x.expand(3, 6)[:, -1].fill_(2.0),
    "an expansion, zeroed": lambda x: x.unsqueeze(1).expand(6, 2)[3].zero_(),
    "as_strided of a transpose": lambda x: x.view(2, 3).t().as_strided((2, 2), (1, 3), 1).neg_(),
    "as_strided of a view": lambda x: x[1:].as_strided((2,), (2,), 1)[1:].neg_(),
    "fill_diagonal_": lambda x: x.view(2, 3).fill_diagonal_(7.0),
    "fill_diagonal_ of a transpose": lambda x: x.view(2, 3).t().fill_diagonal_(7.0),
    "fill_diagonal_ of a value in another order": lambda x: (x.view(2, 3).t() * 1).fill_diagonal_(7.0),
    # Ops whose schema says nothing of their aliases.
    "unsafe_chunk": lambda x: x.unsafe_chunk(2)[0].mul_(3),
    "unsafe_split": lambda x: x.unsafe_split(4)[1].mul_(3),
    "_unsafe_view": lambda x: torch.ops.aten._unsafe_view(x, [2, 3])[1].mul_(3),
    "dropout in eval": lambda x: F.dropout(x, 0.5, False).mul_(3),
    "dropout of nothing": lambda x: F.dropout(x, 0.0, True).mul_(3),
    "feature_dropout in eval": lambda x: F.dropout1d(x.view(2, 3), 0.5, False).mul_(3),
    "einsum of itself": lambda x: torch.einsum("i->i", x).mul_(3),
    "einsum of a transpose": lambda x: torch.einsum("ij->ji", x.view(2, 3))[0].mul_(3),
    "sum_to_size": lambda x: x.sum_to_size(6).mul_(3),
    "type_as": lambda x: x.type_as(x).mul_(3),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x)[0].mul_(3),
    "meshgrid of one": lambda x: torch.meshgrid(x, indexing="ij")[0].mul_(3),
    "to_dense": lambda x: x.to_dense().mul_(3),
    "atleast_2d": lambda x: torch.atleast_2d(x).mul_(3),
    "resolve_conj": lambda x: x.resolve_conj().mul_(3),
    # Ops whose schema does.
    "contiguous": lambda x: x.contiguous().mul_(3),
    "to": lambda x: x.to(torch.float64).mul_(3),
    "double": lambda x: x.double().mul_(3),
    "reshape": lambda x: x.reshape(3, 2)[1].mul_(3),
    "flatten": lambda x: x.view(2, 3).flatten().mul_(3),
    "expand_as": lambda x: x.expand_as(x).mul_(3),
    "view_as": lambda x: x.view_as(x).mul_(3),
    "chunk": lambda x: x.chunk(2)[1].mul_(3),
    "unbind": lambda x: x.unbind()[2].mul_(3),
    "diagonal": lambda x: x.view(2, 3).diagonal().mul_(3),
    "real": lambda x: x.real.mul_(3),
    "view_as_real of view_as_complex": lambda x: torch.view_as_real(torch.view_as_complex(x.view(3, 2)))[1].mul_(3),
    "conj of conj": lambda x: torch.view_as_complex(x.view(3, 2)).conj().imag.mul_(3),
    "view of another type": lambda x: x.view(torch.int64).view(torch.float64)[2:].mul_(3),
}


@pytest.mark.parametrize("trace", ["make_fx", "export"])
def test_writes_through_aliases_change_what_they_share(trace: str):
    def program(*args: Tensor) -> list[Tensor]:
        read = []
        for index, (x, write) in enumerate(zip(args, WRITES.values(), strict=True)):
            # By turns an input and what only the program knows, each under one of the tracers.
            x = x if index % 2 == (trace == "export") else x + 1
            read += [write(x) * 2, x * 1]
        return read

    inputs = [torch.randn(6, dtype=torch.float64) for _ in WRITES]
    given, traced = ([x.clone() for x in inputs] for _ in range(2))
    graph = make_fx(program)(*traced) if trace == "make_fx" else export(lambda _, *args: program(*args), *traced)
    module = spmdir.import_fx(graph, MESH, check=True)
    found = run_single(module, [x.clone() for x in inputs])
    mutated = [name for name, kind in results(module, "kind") if kind == "mutation"]
    expected = program(*inputs)
    for index, (value, right) in enumerate(zip(found, expected, strict=False)):
        assert torch.equal(value, right), list(WRITES)[index // 2]
    changed = [x for x, before in zip(inputs, given, strict=True) if not torch.equal(x, before)]
    assert len(mutated) == len(changed)
    for name, value, right in zip(mutated, found[len(expected) :], changed, strict=True):
        assert torch.equal(value, right), name


@pytest.mark.parametrize("view", sorted(aliases.INVERTIBLE_VIEWS, key=str), ids=str)
def test_torch_writes_exactly_through_the_views_that_are_left_to_it(view):
    is_complex = view in (torch.ops.aten.view_as_real.default, torch.ops.aten._conj.default)
    x = torch.randn(4, 4, 2, dtype=torch.complex128 if is_complex else torch.float64)
    by_name = {
        "view": ([8, 4],), "_reshape_alias": ([8, 4], [4, 1]), "slice": (1, 1, 4, 2), "select": (1, 2),
        "transpose": (0, 1), "permute": ([2, 0, 1],), "dims": ([0, 1],), "dim": (0,), "unsqueeze": (1,),
        "split": (3, 1), "split_with_sizes": ([1, 3],), "unbind": (1,), "diagonal": (1, 0, 1),
        "as_strided": ([2, 3], [9, 2], 1), "dtype": (torch.int64,),
    }  # fmt: skip
    arguments = by_name.get(view._overloadname, by_name.get(view._schema.name.removeprefix("aten::"), ()))
    x = x[0] if view is torch.ops.aten.t.default else x

    def write(x: Tensor) -> Tensor:
        part = view(x, *arguments)
        part = part[0] if isinstance(part, list) else part
        part.mul_(3) if part.dtype != torch.int64 else part.bitwise_xor_(1)
        return x

    assert torch.equal(torch.func.functionalize(write)(x.clone()), write(x.clone()))


def test_parts_that_have_nothing_in_common_stay_as_they_are():
    def gates(x: Tensor) -> Tensor:
        first, second = (x + 1).unsafe_chunk(2, 1)
        return first.sigmoid_() * second.tanh_()

    text = spmdir.print_ir(spmdir.import_fx(make_fx(gates)(torch.randn(3, 4)), MESH))
    assert "scatter" not in text
    assert "clone" not in text


RELAID: dict[str, Callable[[Tensor], Tensor]] = {
    "t_": lambda x: x.t_().unfold(0, 2, 2).sub_(0.25),
    "t_ twice": lambda x: x.t_().t_().unfold(0, 2, 2).sub_(0.25),
    "t_ after a view was made": lambda x: (x[0], x.t_().unfold(0, 2, 2).sub_(0.25))[0].add_(1),
    "swapdims_": lambda x: x.swapdims_(0, 1).expand(2, 4, 4)[0].sub_(0.25),
    "as_strided_": lambda x: x.as_strided_((4, 4), (1, 4)).unfold(0, 2, 2).sub_(0.25),
    "unsqueeze_ and squeeze_": lambda x: x.unsqueeze_(0).add_(1).squeeze_(0),
}
"""Ops that change how their argument is laid out, which stays 4 × 4, and a write to it."""

RESHAPED: dict[str, Callable[[Tensor], Tensor]] = {
    "unsqueeze_": lambda x: x.unsqueeze_(0).add_(1),
    "resize_": lambda x: x.resize_(2, 2).add_(1),
    "as_strided_": lambda x: x.as_strided_((2, 2), (1, 2)).add_(1),
    "set_": lambda x: torch.ops.aten.set_(x, torch.zeros(4, 4, dtype=x.dtype)).add_(1),
}
"""Ops that leave their argument with another shape or memory, and a write to it."""

VALUES = {**RELAID, **RESHAPED, "transpose_ of an expansion": lambda x: x[0].expand(3, 4).transpose_(0, 1) * 2}


@pytest.mark.parametrize(("cases", "start"), [(RELAID, 0), (VALUES, 1)], ids=["of inputs", "of values"])
def test_layouts_that_change_in_place_give_the_numbers_of_eager(cases: dict[str, Callable[[Tensor], Tensor]], start):
    def program(*args: Tensor) -> list[Tensor]:
        args = tuple(x + start for x in args) if start else args
        return [value * 1 for x, case in zip(args, cases.values(), strict=True) for value in (case(x), x)]

    inputs = [torch.randn(4, 4, dtype=torch.float64) for _ in cases]
    traced, given = ([x.clone() for x in inputs] for _ in range(2))
    module = spmdir.import_fx(make_fx(program)(*traced), MESH)
    found = run_single(module, given)
    expected = [*program(*inputs), *([] if start else inputs)]
    for index, (value, right) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(value, right), index


@pytest.mark.parametrize("name", RESHAPED)
def test_inputs_that_get_another_shape_or_memory_in_place_are_rejected(name: str):
    graph = make_fx(lambda x: RESHAPED[name](x) * 1)(torch.randn(4, 4))
    with pytest.raises(
        UnsupportedError,
        match=rf"calls aten\.{name}\.\w+, which changes the shape or memory of the input 'x_1'; expected",
    ):
        spmdir.import_fx(graph, MESH)


OVERLAPPING: dict[str, Callable[[Tensor], Tensor]] = {
    "a window, more than once": lambda x: x.unfold(0, 2, 1).index_fill_(0, torch.tensor([1]), 2.0),
    "an expansion": lambda x: x.expand(2, 4).index_put_((torch.tensor([0]),), x),
}


@pytest.mark.parametrize("case", OVERLAPPING)
def test_writes_whose_meaning_depends_on_their_order_are_rejected(case: str):
    def program(x: Tensor) -> Tensor:
        OVERLAPPING[case](x)
        return x * 1

    with pytest.raises(
        UnsupportedError, match="depends on the order of writes; expected elements that occur once"
    ) as info:
        spmdir.import_fx(torch.export.export(Function(lambda _, x: program(x)), (torch.randn(4),)), MESH)
    assert info.value.location is not None
    assert isinstance(info.value.location.line, int)


def test_aliases_told_in_a_region_with_its_own_graph_are_rejected():
    def program(x: Tensor) -> Tensor:
        y = x + 1
        with torch.no_grad():
            F.dropout(y, 0.5, False).mul_(2)
        return y * 1

    with pytest.raises(UnsupportedError, match="in an inner graph"):
        spmdir.import_fx(export(lambda _, x: program(x), torch.randn(4)), MESH)
