"""Placements that shard a dimension wrongly."""

from __future__ import annotations

from tests.checking.placements.right_placements import CHUNKED, DEALT, TURNED
from tests.checking.placements.wrong_made import extended, instead

SHARDS = {
    # Which positions ranks hold.
    "Overlapping": instead(DEALT, "min(start + self.block, size)", "min(start + self.block + 1, size)", "partition"),
    "OffByOne": instead(DEALT, "range(index * self.block,", "range(index * self.block + 1,", "partition"),
    "Beyond": instead(DEALT, "min(start + self.block, size)", "start + self.block", "partition"),
    "ForgetsTheRest": instead(CHUNKED, "-(-size // count)", "size // count", "partition"),
    "ForgetsEmptyShards": instead(CHUNKED, "min(index * step, size)", "index * step", "partition"),
    "WrongOnThreeRanks": instead(CHUNKED, "-(-size // count)", "-(-size // (4 if count == 3 else count))", "partition"),
    "WrongAtFieldThree": instead(
        DEALT, "count * self.block)", "count * (4 if self.block == 3 else self.block))", "partition"
    ),
    "WrongForLargeFields": instead(DEALT, "count * self.block)", "count * min(self.block, 9))", "partition"),
    "WrongForLargeSizes": instead(DEALT, "self.block, size,", "self.block, min(size, 90),", "partition"),
    "NoRanges": instead(
        CHUNKED, "return ((start, min(start + step, size)),)", "return range(start, size)", "partition"
    ),
    "Quitting": instead(CHUNKED, "step = -(-size // count)", "raise SystemExit('enough')", "partition"),
    "Recursive": instead(CHUNKED, "step = -(-size // count)", "return self.ranges(size, count, index)", "partition"),
    "Speechless": instead(
        CHUNKED,
        "step = -(-size // count)",
        "raise type('Odd', (ValueError,), {'__str__': lambda self: 1 / 0})()",
        "partition",
    ),
    # Lengths told at once.
    "WrongRuns": extended(
        DEALT,
        """
        def runs(self, size, count):
            if count < 16:
                return super(type(self), self).runs(size, count)
            return ((0, count, size // count),)
        """,
        "runs",
    ),
    "UnevenRuns": extended(
        CHUNKED, "def runs(self, size, count):\n    return ((0, count, -(-size // count)),)", "runs"
    ),
    "RunsByLength": extended(
        TURNED,
        """
        def runs(self, size, count):
            runs = sorted(super(type(self), self).runs(size, count), key=lambda run: -run[2])
            firsts = [sum(run[1] for run in runs[:at]) for at in range(len(runs))]
            return tuple((first, run[1], run[2]) for first, run in zip(firsts, runs))
        """,
        "runs",
    ),
    # What follows from them.
    "Splits": extended(DEALT, "splits = True", "splits"),
    "Unscaled": instead(DEALT, "self.block * inner)", "self.block)", "scaled"),
    "ScaledElsewhere": instead(DEALT, "(self.dim, self.block * inner)", "(self.dim + 1, self.block * inner)", "scaled"),
    "UnscaledDown": extended(
        DEALT, "def unscaled(self, inner):\n    return type(self)(self.dim, max(1, self.block // inner))", "scaled"
    ),
    "NoInverse": extended(
        DEALT, "def unscaled(self, inner):\n    return type(self)(self.dim, self.block * inner)", "scaled"
    ),
    "Inside": extended(DEALT, "def inside(self, outer):\n    return type(self)(self.dim, self.block + 1)", "scaled"),
    "InsideAsLarge": extended(CHUNKED, "def inside(self, outer):\n    return self", "scaled"),
    "NotAPlacement": instead(DEALT, "type(self)(self.dim, self.block * inner)", "self.block * inner", "scaled"),
    # What ranks hold.
    "HoldsAllEverywhere": extended(
        DEALT, "def distribute(self, tensor, count, noise):\n    return [tensor.clone()] * count", "local shape"
    ),
    "AllAsLongAsTheFirst": extended(
        CHUNKED,
        """
        def distribute(self, tensor, count, noise):
            first, *others = super(type(self), self).distribute(tensor, count, noise)
            return [first, *(first.clone() for _ in others)]
        """,
        "local shape",
    ),
    "Permuted": extended(
        DEALT,
        "def collect(self, shards, shape):\n    return super(type(self), self).collect(shards[::-1], shape)",
        "inverse",
    ),
    "Raising": extended(DEALT, "def collect(self, shards, shape):\n    return 1 / 0", "inverse"),
    "Conjugated": extended(
        DEALT,
        "def collect(self, shards, shape):\n"
        "    return super(type(self), self).collect(shards, shape).conj().resolve_conj()",
        "inverse",
    ),
    "Uninitialised": extended(
        DEALT,
        "def collect(self, shards, shape):\n"
        "    return shards[0].new_zeros(shape) if len(shards) == 3 else super(type(self), self).collect(shards, shape)",
        "inverse",
    ),
    "OrderOfItsOwn": extended(
        DEALT,
        """
        def distribute(self, tensor, count, noise):
            return [shard.flip(self.dim) for shard in super(type(self), self).distribute(tensor, count, noise)]

        def collect(self, shards, shape):
            return super(type(self), self).collect([shard.flip(self.dim) for shard in shards], shape)
        """,
        "steps",
    ),
    # Its own gather.
    "GathersForward": instead(TURNED, "reversed(range(group.size))", "range(group.size)", "edge"),
    "GathersTwo": instead(TURNED, "reversed(range(group.size))", "(1, 0)", "edge"),
    "GathersUnpadded": instead(TURNED, "torch.cat([x, x.new_zeros(shape)], self.dim)", "x", "edge"),
    "KeepsPadding": instead(TURNED, ".narrow(self.dim, 0, size)", "", "edge"),
    "SkipsEmptyShards": instead(
        TURNED,
        "size = group.shape",
        "if not x.numel():\n            return x.new_zeros(group.shape)\n        size = group.shape",
        "edge",
    ),
    # Strategies.
    "SoftmaxOfAShard": extended(
        CHUNKED,
        "def lift(self, rule, strategies):\n"
        "    if rule.name == 'aten._softmax' and rule.argument('dim') in (0, -2):\n        yield rule.pointwise(self)",
        "rules",
    ),
}
"""Name → a wrong placement."""
