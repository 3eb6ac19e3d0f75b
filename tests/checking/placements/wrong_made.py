"""How a wrong placement is made from a right one."""

from __future__ import annotations

import textwrap

import attrs

from tests.checking.placements.right_placements import HEAD


@attrs.frozen
class WrongPlacement:
    """A class made from a right one.

    Attributes:
        law: the law that it breaks.
        text: its source, without HEAD; NAME stands for its name.
    """

    law: str
    text: str


def instead(right: str, old: str, new: str, law: str) -> WrongPlacement:
    """Return `right` with the first `old` replaced."""
    assert old in right, old
    return WrongPlacement(law, right.replace(old, new, 1))


def extended(right: str, more: str, law: str) -> WrongPlacement:
    """Return `right` with members behind its own."""
    return WrongPlacement(law, right + "\n" + textwrap.indent(textwrap.dedent(more).strip("\n"), "    ") + "\n")


def source(text: str, name: str) -> str:
    """Return the file that declares the placement `name`."""
    return HEAD + text.replace("NAME", name)
