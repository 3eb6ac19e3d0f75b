"""The table of ops that return memory of operands without an alias in their schemas, compared with torch."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from spmdir.checking.rules.references import REFERENCES
from spmdir.checking.rules.samples import all_samples
from spmdir.core.undeclared_aliases import UNDECLARED, may_return_operand
from spmdir.rules.rule_set import default
from spmdir.torch_interop.schemas import declares_aliases, resolve, torch_op

SQUARE, ROW, LIST = torch.ones(3, 3), torch.ones(1), [torch.ones(3, 3)]

CALLS: dict[str, tuple[Any, ...]] = {
    "aten._cast_Byte": (SQUARE.byte(),),
    "aten._cast_Char": (SQUARE.char(),),
    "aten._cast_Double": (SQUARE.double(),),
    "aten._cast_Float": (SQUARE,),
    "aten._cast_Half": (SQUARE.half(),),
    "aten._cast_Int": (SQUARE.int(),),
    "aten._cast_Long": (SQUARE.long(),),
    "aten._cast_Short": (SQUARE.short(),),
    "aten._unsafe_view": (SQUARE, [9]),
    "aten.alpha_dropout": (SQUARE, 0.5, False),
    "aten.atleast_1d": (SQUARE,),
    "aten.atleast_1d.Sequence": (LIST,),
    "aten.atleast_2d": (SQUARE,),
    "aten.atleast_2d.Sequence": (LIST,),
    "aten.atleast_3d": (SQUARE,),
    "aten.atleast_3d.Sequence": (LIST,),
    "aten.broadcast_tensors": (LIST,),
    "aten.cartesian_prod": ([torch.ones(3)],),
    "aten.conj_physical": (SQUARE,),
    "aten.cumprod_backward": (ROW, ROW, 0, ROW),
    "aten.data": (SQUARE,),
    "aten.dropout": (SQUARE, 0.5, False),
    "aten.einsum": ("ab->ba", LIST),
    "aten.feature_alpha_dropout": (SQUARE, 0.5, False),
    "aten.feature_dropout": (SQUARE, 0.5, False),
    "aten.flatten_dense_tensors": (LIST,),
    "aten.lift": (SQUARE,),
    "aten.meshgrid": ([torch.ones(3)],),
    "aten.meshgrid.indexing": ([torch.ones(3), torch.ones(3)],),
    "aten.sum_to_size": (SQUARE, [3, 3]),
    "aten.to_dense": (SQUARE,),
    "aten.to_dense_backward": (SQUARE, SQUARE),
    "aten.type_as": (SQUARE, SQUARE),
    "aten.unflatten_dense_tensors": (torch.ones(9), LIST),
    "aten.unsafe_chunk": (SQUARE, 1),
    "aten.unsafe_split.Tensor": (SQUARE, 3),
    "aten.unsafe_split_with_sizes": (SQUARE, [3]),
}


def storages(values: Any) -> set[int]:
    """Return the storages of the tensors in a structure that have elements."""
    return {
        value.untyped_storage().data_ptr()
        for value in pytree.tree_leaves(values)
        if isinstance(value, torch.Tensor) and value.numel()
    }


@pytest.mark.parametrize("name", CALLS)
def test_an_op_of_the_table_returns_memory_of_an_operand_without_a_declaration(name: str) -> None:
    arguments = CALLS[name]
    keywords = {"indexing": "ij"} if name == "aten.meshgrid.indexing" else {}
    assert not declares_aliases(torch_op(name))
    assert storages(arguments) & storages(torch_op(name)(*arguments, **keywords))
    assert may_return_operand(name, 1)


def test_each_op_of_the_table_has_a_call() -> None:
    assert {*CALLS} == {*UNDECLARED, "aten.einsum"} - {"aten._to_dense"}  # which only sparse kernels have


def test_no_other_op_returns_memory_of_an_operand() -> None:
    found = set()
    for sample in all_samples(default()):
        op = resolve(sample.op)
        if op is None or declares_aliases(op) or sample.op in REFERENCES:  # these have no kernel for all CPUs
            continue
        tensors = [argument for argument in op._schema.arguments if "Tensor" in str(argument.type)]
        named = {argument.name: value for argument, value in zip(tensors, sample.operands, strict=False)}
        tensor_count = len([leaf for leaf in pytree.tree_leaves(named) if isinstance(leaf, torch.Tensor)])
        for flags in ({}, {"train": False}) if "dropout" in sample.op else ({},):
            arguments = {**named, **sample.arguments, **flags}
            with suppress(Exception):
                if storages(named) & storages(op(**arguments)) and not may_return_operand(sample.op, tensor_count):
                    found.add(sample.op)
    assert not found
