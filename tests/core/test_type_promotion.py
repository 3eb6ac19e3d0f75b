"""Promotion agrees with torch for all element types, ranks and numbers."""

from __future__ import annotations

import itertools

import pytest
import torch

from spmdir.core import dtype as dt
from spmdir.core.dtype import RANKING, DType
from spmdir.core.type_promotion import COMPLEX_F16, common_type, result_type
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH, TORCH_DTYPES

NUMBERS = (True, 1, 1.0, 1j)


def tensor(dtype: DType, rank: int) -> torch.Tensor:
    return torch.ones((2,) * rank, dtype=TORCH_DTYPES[dtype])


def in_torch(left: object, right: object) -> DType | None:
    """Return what torch promotes two operands to; None if it rejects them."""
    try:
        return (DTYPES_OF_TORCH | {torch.complex32: COMPLEX_F16})[torch.result_type(left, right)]  # type: ignore[call-overload]
    except RuntimeError:
        return None


@pytest.mark.parametrize("left", RANKING, ids=str)
def test_two_operands_promote_as_in_torch(left: DType):
    for right in RANKING:
        for ranks in itertools.product((0, 1, 2), repeat=2):
            expected = in_torch(tensor(left, ranks[0]), tensor(right, ranks[1]))
            assert result_type([(left, ranks[0]), (right, ranks[1])]) == expected, (right, ranks)
        assert common_type(left, right) == in_torch(tensor(left, 1), tensor(right, 1))
    for number, rank in itertools.product(NUMBERS, (0, 1)):
        assert result_type([(left, rank)], [number]) == in_torch(tensor(left, rank), number), (number, rank)


def test_a_number_counts_less_than_a_tensor_of_rank_0():
    assert result_type([(dt.I32, 2), (dt.F64, 0)], [1.0]) == dt.F64
    assert result_type([(dt.I32, 2), (dt.I64, 0)], [1.0]) == dt.F32
    assert result_type([], [1, 1.0]) == dt.F32
    assert result_type([]) is None
