"""The base class of joint placements."""

from __future__ import annotations

from typing import ClassVar

import attrs
import pytest

import spmdir
from spmdir import JointPlacement, SpmdirError
from spmdir.core.placement.joint import joint_placement


@attrs.frozen
class Paired(JointPlacement):
    text: ClassVar[str] = "Paired({part})"
    parts: ClassVar[tuple[str, ...]] = ("count", "total")
    part: int


def test_a_joint_placement_is_written_and_read_with_its_part():
    assert str(spmdir.parse_placement("Paired(1)")) == "Paired(1)"
    assert spmdir.parse_placement("Paired(0)").finish((1, 2)) == (1, 2)


def test_methods_are_those_of_the_placement_that_a_text_spells_or_a_name_alone_with_defaults():
    assert joint_placement("Paired") == Paired(0)
    assert joint_placement("Paired(1)") == Paired(1)


def test_a_part_that_the_state_lacks_is_an_error():
    with pytest.raises(SpmdirError, match=r"Paired\(2\) is no part of \(count, total\); expected 0 to 1"):
        spmdir.parse_placement("Paired(2)")
