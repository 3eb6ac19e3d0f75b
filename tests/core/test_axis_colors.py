"""Colours of axes can be read on light and on dark, and told apart by everyone."""

from __future__ import annotations

import itertools

from spmdir.core.axis_colors import AXIS_COLORS, axis_color
from spmdir.core.limits import AXES

SEEN = (
    ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
)
"""What readers see of linear red, green and blue: all of it, and without one kind of cone; Machado et al. 2009."""
CONES = ((0.4122, 0.5363, 0.0514), (0.2119, 0.6807, 0.1074), (0.0883, 0.2817, 0.6300))
OKLAB = ((0.2105, 0.7936, -0.0041), (1.9780, -2.4286, 0.4506), (0.0259, 0.7828, -0.8087))


def _times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def _linear(color):
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def _contrast(first, second):
    low, high = sorted(sum(_times(((0.2126, 0.7152, 0.0722),), _linear(color))) for color in (first, second))
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_read_on_light_and_on_dark():
    assert all(_contrast(color, ground) >= 3 for color in AXIS_COLORS for ground in ("#ffffff", "#1e1e1e"))


def test_no_two_colours_look_alike_to_any_reader():
    for eye in SEEN:
        seen = [_times(eye, _linear(color)) for color in AXIS_COLORS]
        lab = [_times(OKLAB, [max(c, 0) ** (1 / 3) for c in _times(CONES, [max(p, 0) for p in rgb])]) for rgb in seen]
        for one, other in itertools.combinations(lab, 2):
            assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 0.08


def test_each_axis_of_a_mesh_has_a_colour_of_its_own_and_its_parts_share_it():
    axes = [f"a{at}" for at in range(AXES.most)]
    assert len({axis_color(axis, axes) for axis in axes}) == AXES.most
    assert axis_color("a1(2)4", axes) == axis_color("a1", axes)
