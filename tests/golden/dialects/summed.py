"""A packed placement of sums beside their counts, for the files of ops on states."""

import attrs

from spmdir.placement import PackedPlacement


@attrs.frozen
class Summed(PackedPlacement):
    text = "Summed({part})"
    parts = ("total", "count")
    part: int

    def identity(self, *like):
        return tuple(part.new_zeros(part.shape) for part in like)

    def combine(self, left, right):
        return tuple(a + b for a, b in zip(left, right, strict=True))
