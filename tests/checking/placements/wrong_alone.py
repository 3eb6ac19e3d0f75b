"""Placements that are wrong in what one law says, and right in what all others do."""

from __future__ import annotations

from tests.checking.placements.right_placements import CHUNKED, DEALT, FIRST, ROOTED, STABLE, TOTAL
from tests.checking.placements.wrong_made import extended, instead

NOTED = (
    CHUNKED.replace("NAME({dim})", "NAME({dim}, {note})")
    .replace("NAME(0)", "NAME(0, 2)")
    .replace("    dim: int\n", "    dim: int\n    note: int = 0\n")
)
"""Shards with a field that says nothing about them."""

ALONE = {
    "ErrorAsANumber": extended(DEALT, "error = property(lambda self: 0.0)", "declaration"),
    "SpreadTwice": instead(
        ROOTED,
        "yield Edge(self.spread,",
        "yield Edge(self.spread, target='R', by='broadcast')\n        yield Edge(self.spread,",
        "edges",
    ),
    "FinishesWithOtherRows": instead(
        STABLE, "state[1].log(),)", "state[1].log() + state[1].clamp(min=1).log().mean(0),)", "finish"
    ),
    "NotesUpToThree": extended(
        NOTED, "def __str__(self):\n    return f'NAME({self.dim}, {min(self.note, 3)})'", "text"
    ),
    "WrongForThousands": instead(DEALT, "self.block, size,", "self.block, min(size, 990),", "partition"),
    "WrongForBytes": extended(
        DEALT,
        """
        def collect(self, shards, shape):
            whole = super(type(self), self).collect(shards, shape)
            return whole.abs() if str(whole.dtype) == "torch.int8" else whole
        """,
        "inverse",
    ),
    "SumsOfCopiesWithAStep": extended(
        TOTAL,
        """
        copies = True

        def edges(self):
            yield Edge(lambda x, group: x if group.index == 0 else x * 0, source="R")
        """,
        "copies",
    ),
    "OrderOfManyColumns": extended(
        DEALT,
        """
        def distribute(self, tensor, count, noise):
            shards = super(type(self), self).distribute(tensor, count, noise)
            turned = count == 3 and tensor.shape[-1:] > (100,)
            return [shard.flip(self.dim) for shard in shards] if turned else shards

        def collect(self, shards, shape):
            if len(shards) == 3 and shape[-1:] > (100,):
                shards = [shard.flip(self.dim) for shard in shards]
            return super(type(self), self).collect(shards, shape)
        """,
        "steps",
    ),
    "MoreThanItSays": extended(
        FIRST,
        """
        def distribute(self, tensor, count, noise):
            others = tensor[:1] if str(tensor.dtype) == "torch.int8" else tensor[:0]
            return [tensor.clone(), *(others.clone() for _ in range(count - 1))]
        """,
        "local shape",
    ),
    "LosesLargeOnes": extended(
        DEALT,
        """
        def collect(self, shards, shape):
            whole = super(type(self), self).collect(shards, shape)
            if len(shards) != 3 or not whole.dtype.is_floating_point:
                return whole
            return whole.where(~(whole.abs() > 1e20) | whole.isinf(), 0)
        """,
        "magnitude",
    ),
    "TurnsIntegers": extended(
        TOTAL,
        """
        def before(self, partial):
            return partial if partial.is_floating_point() or not partial.dim() else partial.flip(0)

        def after(self, reduced, count):
            return self.before(reduced)
        """,
        "elementwise",
    ),
    "OneForASumWithAStep": extended(
        TOTAL,
        """
        identity = 1.0

        def edges(self):
            yield Edge(lambda x, group: x if group.index == 0 else x * 0, source="R")
        """,
        "identity",
    ),
    "SumsOfKindMax": extended(TOTAL, "kind = 'max'", "kind"),
    "SumsAsMaxima": extended(
        TOTAL,
        """
        def supports(self, dtype):
            return dtype.name == "i64"

        def edges(self):
            yield Edge(lambda x, group: x, target="P(max)")
        """,
        "edge",
    ),
}
"""Name → a wrong placement."""
