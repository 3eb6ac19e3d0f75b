"""Prices that a decision pays in addition to the serial time of ops and reshards: memory, and hidden transfers."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class ValuePrices:
    """Prices of holding and sending the values of a program.

    Attributes:
        holding: [value], the price in seconds of holding one byte of it as produced; 0 if empty.
        copy_holding: the same for each copy that a reshard makes.
        exposed: [value], the fraction of the time of its reshards that counts; 1 if empty.
    """

    holding: Sequence[float] = ()
    copy_holding: Sequence[float] = ()
    exposed: Sequence[float] = ()


NO_PRICES = ValuePrices()
"""Memory is free, and nothing is hidden."""
