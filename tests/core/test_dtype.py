"""Element types: one value for each, known by its name."""

from __future__ import annotations

import pickle

import pytest
import torch

from spmdir.core.dtype import COMPLEX_F32, COMPLEX_F64, DTYPES, F32, F64, I32, RANKING, DType, as_dtype
from spmdir.core.errors import SpmdirError
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH, TORCH_DTYPES


def test_the_tables_list_the_same_element_types():
    assert set(DTYPES.values()) == set(RANKING) == set(TORCH_DTYPES) == set(DTYPES_OF_TORCH.values())


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_torch_agrees_about_size_kind_and_range(dtype: DType):
    known = TORCH_DTYPES[dtype]
    kind = "complex" if known.is_complex else "float" if known.is_floating_point else "int"
    assert dtype.itemsize == known.itemsize
    assert dtype.kind == ("bool" if known == torch.bool else kind)
    if dtype.largest < float("inf"):
        assert 0.99 * torch.finfo(known).max < dtype.largest <= torch.finfo(known).max


def test_real_and_complex_types_are_each_others():
    assert [dtype.real for dtype in (COMPLEX_F32, COMPLEX_F64, I32)] == [F32, F64, I32]
    assert [dtype.complex for dtype in (F32, F64, I32, COMPLEX_F64)] == [
        COMPLEX_F32,
        COMPLEX_F64,
        COMPLEX_F32,
        COMPLEX_F64,
    ]


def test_a_copy_of_an_element_type_equals_it():
    assert pickle.loads(pickle.dumps(F32)) == F32 != F64


def test_an_unknown_name_is_an_error_that_suggests_another():
    with pytest.raises(SpmdirError, match=r"unknown element type 'bf61'; expected one of f64, .*did you mean 'bf16'"):
        as_dtype("bf61")
