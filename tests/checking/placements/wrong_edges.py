"""Placements with steps that are wrong, and placements that are neither sharded nor partial."""

from __future__ import annotations

from tests.checking.placements.right_placements import BRIEF, BYTES, FIRST, ROOTED
from tests.checking.placements.wrong_made import extended, instead

PLUS_ONE = ROOTED.replace("group.shape), 0)", "group.shape), 0) + 1")

STEPS = {
    # What ranks hold.
    "OneRowTooMany": instead(FIRST, "(0, *shape[1:])", "(1, *shape[1:])", "local shape"),
    "OtherLocalType": instead(FIRST, "), dtype\n", "), F32\n", "local shape"),
    "WrongRank": instead(FIRST, "(0, *shape[1:])", "(0, *shape)", "local shape"),
    "Short": instead(FIRST, "range(count - 1)", "range(count - 2)", "local shape"),
    "HigherRank": instead(
        FIRST.replace("(0, *shape[1:])", "(0, *shape)"),
        "(shape if index == 0",
        "((1, *shape) if index == 0",
        "local shape",
    ),
    "Rounded": instead(FIRST, "[tensor.clone(),", "[(tensor * 1.0000001).to(tensor.dtype),", "inverse"),
    "UnsignedZero": instead(FIRST, "[tensor.clone(),", "[tensor.where(tensor != 0, tensor.new_zeros(())),", "inverse"),
    # What steps make.
    "OtherNumbers": instead(ROOTED, "group.shape), 0)", "group.shape), 0) + 1", "edge"),
    "OtherShape": instead(ROOTED, "else x[:0]", "else x", "edge"),
    "OtherType": instead(ROOTED, "Edge(lambda x, group: x if", "Edge(lambda x, group: x.double() + 0j if", "edge"),
    "Peeking": instead(ROOTED, "x if group.index == 0 else x.new", "x if x.sum() > 0 else x.new", "edge"),
    "Failing": instead(ROOTED, "group.broadcast", "group.no_such_method", "edge"),
    "Alone": instead(
        ROOTED, "return group", "if group.index: return x.new_zeros(group.shape)\n        return group", "edge"
    ),
    "OrderByRank": instead(
        BRIEF,
        "        return group.all_gather(x.bfloat16())",
        "        if group.index % 2:\n            group.all_reduce(x)\n        return group.all_gather(x.bfloat16())",
        "edge",
    ),
    "FromTheLastRank": instead(ROOTED, "group.shape), 0)", "group.shape), group.size - 1)", "edge"),
    "Random": instead(ROOTED, "Edge(lambda x, group: x if", "Edge(lambda x, group: x.bernoulli(0.5) if", "edge"),
    "OfIntegers": extended(PLUS_ONE, "def supports(self, dtype):\n    return dtype.name == 'i64'", "edge"),
    "OfCubes": instead(PLUS_ONE, "if not shape", "if len(shape) < 3", "edge"),
    "CopiesAsASum": instead(BRIEF, 'source="P(sum)"', 'source="R"', "edge"),
    "DividedByTwo": instead(
        BRIEF,
        'yield Edge(lambda x, group: x, source="P(sum)")',
        'yield Edge(lambda x, group: x / 2, source="R")',
        "edge",
    ),
    "FirstTwo": instead(BRIEF, "to(x.dtype).sum(0)\n", "to(x.dtype)[:2].sum(0)\n", "edge"),
    "ScatterKeepsPadding": instead(
        BRIEF,
        "group.keep(group.all_to_all(group.split(x).bfloat16()).to(x.dtype).sum(0))",
        "group.all_to_all(group.split(x).bfloat16()).to(x.dtype).sum(0)",
        "edge",
    ),
    "ScatterOfRows": instead(BRIEF, "group.split(x)", "x.reshape(group.size, -1, *x.shape[1:])", "edge"),
    "ScatterTurned": instead(BRIEF, "group.split(x)", "group.split(x).flip(0)", "edge"),
    # How far they are off.
    "ErrorTooSmall": instead(BRIEF, "ErrorBound(2**-8)", "ErrorBound(2**-12)", "edge"),
    "RoundsToIntegers": instead(BRIEF, "x.bfloat16()", "x.round().bfloat16()", "edge"),
    "OneRowForAll": instead(
        BRIEF,
        "group.all_gather(x.bfloat16()).to(x.dtype).sum(0)",
        "group.all_gather(x.mean(0, keepdim=True).bfloat16()).to(x.dtype).sum(0).expand(x.shape).clone()",
        "edge",
    ),
    "ErrorOfTheResult": instead(BRIEF, "ErrorBound(2**-8)", "ErrorBound(2**-5, of='result')", "precision"),
    "InfiniteForLargeOnes": instead(BRIEF, "x.bfloat16()", "x.half()", "precision"),
    "NanForZeros": instead(
        BYTES, "(x / torch.where(largest > 0, largest, 1.0))", "(x / largest).nan_to_num(7.0)", "precision"
    ),
    "TiledScale": instead(BYTES, "largest = x.abs().amax() / 127", "largest = x.abs().mean() / 40", "precision"),
    # What they cost.
    "Free": instead(ROOTED, ', by="broadcast"', "", "cost"),
    "Cheap": instead(ROOTED, ', by="broadcast"', ', by="broadcast", itemsize=0.5', "cost"),
    "BytesOfABit": instead(BYTES, "itemsize=1", "itemsize=0.125", "cost"),
    "BytesTooFew": instead(
        BRIEF,
        'by="all_gather", itemsize=2',
        'by="all_gather", bytes=lambda shape, size, count: math.prod(shape)',
        "cost",
    ),
    "BytesOfOneRank": instead(
        BRIEF,
        'by="all_gather", itemsize=2',
        'by="all_gather", bytes=lambda shape, size, count: 2 * math.prod(shape)',
        "cost",
    ),
    "NegativeBytes": instead(
        BRIEF, 'by="all_gather", itemsize=2', 'by="all_gather", bytes=lambda shape, size, count: -1', "edges"
    ),
    "SentTwice": instead(
        BRIEF,
        "return group.all_gather(x.bfloat16())",
        "group.all_gather(x)\n        return group.all_gather(x.bfloat16())",
        "cost",
    ),
}
"""Name → a wrong placement."""
