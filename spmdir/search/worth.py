"""What counts in a decision beside the time of a program whose ops and reshards run one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class Worth:
    """What holding and sending the values of a program are worth.

    Attributes:
        holding: by value, the seconds that holding one byte of it as it is made is worth; nothing if empty.
        copy_holding: the same for each copy of it that a reshard makes.
        exposed: by value, the part of the time of its reshards that counts; all of it if empty.
    """

    holding: Sequence[float] = ()
    copy_holding: Sequence[float] = ()
    exposed: Sequence[float] = ()


PLAIN = Worth()
"""Memory is free, and nothing is hidden."""
