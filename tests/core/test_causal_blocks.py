"""What a causal mask leaves of the block of two shards, against the pairs counted one by one."""

from __future__ import annotations

import random

from spmdir.core.causal_blocks import beyond, both, irregular, reaches, since, triangle, upto
from spmdir.core.intervals import Ranges


def _ranges(draw: random.Random) -> Ranges:
    cuts = sorted(draw.sample(range(14), 2 * draw.randint(0, 4)))
    return tuple(zip(cuts[::2], cuts[1::2], strict=True))


def test_every_number_of_two_shards_is_that_of_the_pairs():
    draw, kinds = random.Random(0), set()
    for _ in range(2000):
        queries, keys = _ranges(draw), _ranges(draw)
        rows, columns = ([at for start, end in ranges for at in range(start, end)] for ranges in (queries, keys))
        seen = [(i, j) for i, row in enumerate(rows) for j, column in enumerate(columns) if row >= column]
        assert reaches(queries, keys) == bool(seen)
        assert both(queries, keys) == bool(rows and columns)
        first, behind = since(queries, keys), upto(keys, queries)
        assert first == min((i for i, _ in seen), default=len(rows))
        assert behind == max((j + 1 for _, j in seen), default=0)
        assert beyond(keys, queries) == len(columns) - behind
        block = [(i, j) for i in range(first, len(rows)) for j in range(behind)]
        kind = (
            "all" if seen == block else "triangle" if seen == [(i, j) for i, j in block if j <= i - first] else "none"
        )
        assert triangle(queries, keys) == (kind == "triangle"), (queries, keys)
        assert irregular(queries, keys) == (kind == "none"), (queries, keys)
        kinds.add(kind)
    assert kinds == {"all", "triangle", "none"}
