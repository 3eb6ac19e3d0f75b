"""The lower bound against known optima and against counting element by element."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.core.placement.standard import Partial, R, Shard
from spmdir.reshard.byte_bound import lower_bound

EIGHT = Mesh({"a": 8})
WIDE = Mesh({"a": 2, "b": 8})
TALL = Mesh({"a": 4, "b": 2})

KNOWN = [
    (EIGHT, "a: S(0)", "", 7 / 8),
    (EIGHT, "a: P", "a: S(0)", 7 / 8),
    (EIGHT, "a: P", "", 2 * 7 / 8),
    (EIGHT, "a: S(0)", "a: S(1)", 7 / 64),
    (EIGHT, "", "a: S(0)", 0),
    (EIGHT, "", "a: P", 0),
    (EIGHT, "a: P", "a: P(avg)", 0),
    (EIGHT, "a: S(0)", "a: P", 0),
    (WIDE, "a: S(0)", "b: S(0)", 0.125),
    (WIDE, "a: S(0), b: S(1)", "a: S(1), b: S(0)", 0.0625),
    (WIDE, "a: S(0), b: S(0)", "a: S(1), b: S(1)", 0.05859375),
    (WIDE, "b: S(0)", "a: S(0)", 0.5),
    (WIDE, "a: P, b: S(0)", "a: S(0), b: S(0)", 0.125),
    (WIDE, "a: P, b: S(0)", "a: S(1)", 0.5),
    (WIDE, "a: P, b: P", "b: S(0)", 1.0),
    (WIDE, "b: S(0)", "a: S(0), b: S(1)", 0.0625),
    (WIDE, "a: P, b: P", "", 2 * 15 / 16),
    (TALL, "a: P, b: P", "a: P", 1.0),
    (WIDE, "a: S(0), b: P", "b: P", 0.5),
    (TALL, "a: P, b: S(1)", "a: S(1)", 0.5),
]


@pytest.mark.parametrize(("mesh", "source", "target", "fraction"), KNOWN)
def test_the_bound_of_a_known_reshard_is_the_known_fraction(mesh, source, target, fraction) -> None:
    shape = (256, 256)
    bound = lower_bound(shape, 4, parse_sharding(source), parse_sharding(target), mesh)
    assert bound is not None
    assert bound / (4 * math.prod(shape)) == pytest.approx(fraction)


def bound_by_elements(shape, source: Sharding, target: Sharding, mesh: Mesh) -> float:
    """The same argument, one element at a time, over sets of ranks."""
    ranks = range(mesh.world_size)
    pending, left = [a for a, _ in source.partial], [a for a, _ in target.partial]
    classes = {mesh.index(rank, pending) for rank in ranks}
    groups = {mesh.group(rank, left) for rank in ranks}
    lacking = dict.fromkeys(groups, 0)
    leaving = dict.fromkeys(ranks, 0)
    telling = [axis for axis, _ in source.entries]
    messages = 0

    def holds(sharding: Sharding, rank: int, element: tuple[int, ...]) -> bool:
        held = [sharding.local_ranges(d, size, mesh, mesh.coordinate(rank)) for d, size in enumerate(shape)]
        return all(any(start <= at < end for start, end in own) for at, own in zip(element, held, strict=True))

    for element in itertools.product(*map(range, shape)):
        needers = [group for group in groups if holds(target, group[0], element)]
        known = [len({mesh.index(r, pending) for r in group if holds(source, r, element)}) for group in needers]
        for group, count in zip(needers, known, strict=True):
            lacking[group] += count < len(classes)
        for rank in ranks:
            group_has = [
                any(holds(source, r, element) and mesh.index(r, pending) == mesh.index(rank, pending) for r in group)
                for group in needers
            ]
            leaving[rank] += holds(source, rank, element) and not all(group_has)
        if max(known) == len(classes):
            lacks = sum(count < len(classes) for count in known)
            messages += len(classes) + lacks - 1 if lacks else 0
        else:
            messages += len(classes) - max(known) + len(needers) - 1
    sent = max(leaving.values()) * mesh.group_size(telling) / mesh.world_size
    return max(messages / mesh.world_size, max(lacking.values()) / len(next(iter(groups))), sent)


@st.composite
def cases(draw):
    mesh = draw(st.sampled_from([Mesh({"a": 3}), Mesh({"a": 2, "b": 2}), Mesh({"a": 2, "b": 3})]))
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=2, max_size=2)))
    placement = st.sampled_from([R, Shard(0), Shard(1), Partial()])
    order = st.permutations(mesh.axis_names)
    source, target = (Sharding([(axis, draw(placement)) for axis in draw(order)]) for _ in range(2))
    return shape, source, target, mesh


@settings(max_examples=150)
@given(cases())
def test_the_bound_is_what_counting_element_by_element_gives(case) -> None:
    shape, source, target, mesh = case
    expected = 0.0 if source == target else bound_by_elements(shape, source, target, mesh)
    assert lower_bound(shape, 1, source, target, mesh) == pytest.approx(expected)
