"""The base class of packed placements."""

from __future__ import annotations

from typing import ClassVar

import attrs
import pytest

import spmdir
from spmdir import SpmdirError
from spmdir.core.dtype import F32
from spmdir.core.placement.packed import find_packed_placement
from spmdir.placement import PackedPlacement


@attrs.frozen
class Paired(PackedPlacement):
    text: ClassVar[str] = "Paired({part})"
    parts: ClassVar[tuple[str, ...]] = ("count", "total")
    part: int


def test_a_joint_placement_is_written_and_read_with_its_part():
    assert str(spmdir.placement.parse_placement("Paired(1)")) == "Paired(1)"
    assert spmdir.placement.parse_placement("Paired(0)").finish((1, 2)) == (1, 2)  # type: ignore


def test_methods_are_those_of_the_placement_that_a_text_spells_or_a_name_alone_with_defaults():
    assert find_packed_placement("Paired") == Paired(0)
    assert find_packed_placement("Paired(1)") == Paired(1)


def test_a_part_that_the_state_lacks_is_an_error():
    with pytest.raises(
        SpmdirError,
        match=r"Paired\(2\) names a part that does not exist; expected 0 to 1, an index of \(count, total\)",
    ):
        spmdir.placement.parse_placement("Paired(2)")


class Tensor:
    """What a method of a placement is asked about a tensor."""

    def __init__(self, *shape: int, dtype: str = "f32"):
        self.shape, self.dtype = shape, dtype


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        (
            "combine",
            (Tensor(1), Tensor(2)),
            r"`combine` of Paired\(1\) returns 'count' of shape \[1\] and f32; .*\[2\]",
        ),
        ("combine", (Tensor(2), Tensor(2, dtype="f64")), "returns 'total' of shape .* and f64; expected .* and f32"),
        ("combine", (Tensor(2),), "returns 1 tensors; expected 2: count, total"),
        ("combine", None, "returns NoneType; expected a tensor for each of count, total"),
        ("finish", (Tensor(2), Tensor(2), Tensor(2)), r"`finish` of Paired\(1\) returns 3 tensors; expected 2"),
        ("finish", (Tensor(2), Tensor(1)), r"returns a tensor of shape \[1\]; expected \[2\]"),
        (
            "types",
            7,
            r"`types` of Paired\(1\) returns 7; expected shape and element type of each part",
        ),
        ("types", [((2,), "f32")], "expected shape and element type of each part"),
    ],
)
def test_what_a_method_gives_is_checked_at_its_line(method: str, given: object, message: str) -> None:
    state = [Tensor(2), Tensor(2)]
    methods = {"combine": lambda self, left, right: left, "unpack": lambda self, *packed: state}
    methods |= {method: lambda self, *arguments: given}
    placement = type("Paired", (Paired,), {**methods, "__module__": Paired.__module__})(1)
    ask = placement.local_type if method == "types" else placement.collect_as
    with pytest.raises(SpmdirError, match=message) as caught:
        ask((2,), F32, 2, 0) if method == "types" else ask([None, None], (2,), F32)  # type: ignore
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


def test_a_state_has_parts():
    with pytest.raises(SpmdirError, match=r"`parts` of Empty is \(\); expected the names of the parts of a state"):
        type("Empty", (PackedPlacement,), {"parts": ()})
