"""Which dimensions of a call are dynamic, and which sizes need a program of their own."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch.export import Dim

from spmdir.core.errors import ShardingError
from spmdir.runtime.dynamic_dims import drop_fixed_dims, find_dynamic_dims, fixed_dims, sizes_by_argument

BATCH, LENGTH = Dim("batch", max=16), Dim("length", min=2)
SPECS: dict[str, Any] = {"x": {0: BATCH, 1: LENGTH}, "others": [{0: BATCH}, {"y": {0: Dim.AUTO, 1: 8}}]}


class Pair(NamedTuple):
    """Containers keep their classes."""

    first: torch.Tensor
    second: torch.Tensor


def call(*shapes: tuple[int, ...]) -> dict[str, Any]:
    x, first, second = (torch.empty(shape, device="meta") for shape in shapes)
    return {"x": x, "others": [first, {"y": second}]}


@pytest.mark.parametrize(
    ("arguments", "fixed"),
    [
        (call((4, 6), (4,), (3, 8)), ()),
        (call((1, 6), (1,), (3, 8)), (("x", 0, 1), ("others_0", 0, 1))),
        (call((4, 6), (4,), (1, 8)), (("others_1_y", 0, 1),)),
        (call((0, 6), (0,), (0, 8)), (("x", 0, 0), ("others_0", 0, 0), ("others_1_y", 0, 0))),
    ],
)
def test_dynamic_dimensions_of_size_0_and_1_are_fixed_with_all_of_their_dim(arguments: Any, fixed: Any) -> None:
    assert fixed_dims(find_dynamic_dims(SPECS, arguments)) == fixed


def test_a_dimension_that_is_computed_from_a_dim_is_fixed_with_it() -> None:
    specs = {"x": {0: BATCH}, "y": {0: 2 * BATCH + 1}}
    arguments = {"x": torch.empty(1), "y": torch.empty(3)}
    assert fixed_dims(find_dynamic_dims(specs, arguments)) == (("x", 0, 1), ("y", 0, 3))
    with pytest.raises(ShardingError, match=r"argument 'y' \(Dim '2\*batch \+ 1'\) is 4; expected a size of the form"):
        fixed_dims(find_dynamic_dims(specs, {**arguments, "y": torch.empty(4)}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            call((4, 1), (4,), (3, 8)),
            "dimension 1 of argument 'x' (Dim 'length') is 1; expected at least 2, the range in dynamic_shapes",
        ),
        (
            call((1, 6), (3,), (3, 8)),
            "dimension 0 of argument 'others_0' (Dim 'batch') is 3 where dimension 0 of argument 'x' (Dim 'batch') is "
            "1; expected one size for one Dim",
        ),
    ],
)
def test_errors_name_the_argument_and_its_dim(arguments: Any, message: str) -> None:
    with pytest.raises(ShardingError) as caught:
        fixed_dims(find_dynamic_dims(SPECS, arguments))
    assert caught.value.message == message


def test_fixed_dimensions_are_left_out_of_the_sizes_of_a_trace() -> None:
    arguments = call((1, 6), (1,), (3, 8))
    fixed = fixed_dims(find_dynamic_dims(SPECS, arguments))
    assert drop_fixed_dims(SPECS, arguments, fixed) == {
        "x": {1: LENGTH},
        "others": [{}, {"y": {0: Dim.AUTO, 1: 8}}],
    }
    assert drop_fixed_dims({"x": {0: BATCH}}, {"x": torch.empty(1)}, (("x", 0, 1),)) is None


def test_sizes_fit_arguments_that_are_built_otherwise() -> None:
    specs = sizes_by_argument(({0: BATCH}, ({0: BATCH}, None)), ["x", "pair"])
    pair = Pair(torch.empty(4), torch.empty(4))
    assert drop_fixed_dims(specs, {"x": torch.empty(4), "pair": pair}, ()) == {
        "x": {0: BATCH},
        "pair": Pair({0: BATCH}, None),  # type: ignore[arg-type]  # what is said of its tensors
    }
    assert drop_fixed_dims(specs, {"x": torch.empty(4), "pair": [torch.empty(4)]}, ()) == {
        "x": {0: BATCH},
        "pair": [None],
    }
