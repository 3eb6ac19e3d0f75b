"""Placements that are wrong where few tests look: on many ranks, large sizes, integers, blocks of elements, keywords of
an op, or in another process."""

from __future__ import annotations

from tests.checking.placements.right_placements import BRIEF, CHUNKED, FEEDBACK, LARGEST, STABLE, TOTAL, TURNED
from tests.checking.placements.right_unusual import BLOCKS, HEADS, PACKED
from tests.checking.placements.wrong_made import WrongPlacement, extended, instead

THROUGH_FLOATS = TURNED.replace('by="all_gather"', 'by="all_gather", itemsize=4').replace(
    "every = group.all_gather(torch.cat([x, x.new_zeros(shape)], self.dim))",
    "every = group.all_gather(torch.cat([x, x.new_zeros(shape)], self.dim).float()).to(x.dtype)",
)
"""A gather in f32, of whatever element type."""

HALF = '''\
@attrs.frozen
class NAME(ShardPlacement):
    """Shards on the first half of the ranks; the others hold nothing, and send nothing."""

    text: ClassVar[str] = "NAME({dim})"
    examples: ClassVar[tuple[str, ...]] = ("NAME(0)",)
    dim: int

    def ranges(self, size, count, index):
        step = -(-size // max(1, count // 2))
        return ((index * step, min(index * step + step, size)),) if index * step < size else ()

    def edges(self):
        yield Edge(self.whole, target="R", by="all_gather")

    def whole(self, x, group):
        if x.numel() == 0:
            return x.new_zeros(group.shape)
        size = group.shape[self.dim]
        shape = list(x.shape)
        shape[self.dim] = -(-size // max(1, group.size // 2))
        padded = x.new_zeros(shape)
        padded.narrow(self.dim, 0, x.shape[self.dim]).copy_(x)
        every = group.all_gather(padded)
        return every.movedim(0, self.dim).flatten(self.dim, self.dim + 1).narrow(self.dim, 0, size)
'''

ATTENTION = '''
    rules: ClassVar[str] = """
    aten.scaled_dot_product_attention: ({}) -> (S({}))
        when dropout_p == 0 and given(attn_mask) == false and rank(query) == 4
        local
        return aten.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal{})
    """
'''


def _attention(operands: str, result: int, keywords: str) -> WrongPlacement:
    return WrongPlacement("text strategies", CHUNKED + ATTENTION.format(operands, result, keywords))


UNUSUAL = {
    "ClampsDifferences": instead(
        STABLE, "(right[0] - finite).exp()", "(right[0] - finite).clamp(min=-5).exp()", "combine"
    ),
    "ShortensLongOnes": instead(
        CHUNKED, "min(start + step, size)", "min(start + step, size - (size > 4096 and size % count > 0))", "partition"
    ),
    "StopsAfterFourRanks": extended(
        TOTAL,
        """
        def edges(self):
            yield Edge(lambda x, group: x, source="P(sum)")
            yield Edge(lambda x, group: group.all_gather(x)[:4].sum(0), target="R", by="all_gather")
        """,
        "edge",
    ),
    "ScalesForFree": instead(PACKED, "(shape[1] + 4)\n\n    def gather", "shape[1] * 0.9\n\n    def gather", "cost"),
    "BriefAndExact": instead(BRIEF, "    error = ErrorBound(2**-8)\n", "", "edge"),
    "PackedTooWell": instead(PACKED, "1.001 / 127", "0.35 / 127", "edge"),
    "LeastIsSmall": instead(LARGEST, "identity = -math.inf\n    copies = True", "identity = -1e4", "precision"),
    "HashesTexts": instead(
        CHUNKED,
        "return ((start, min(start + step, size)),)",
        "return tuple((row, row + 1) for row in range(size) if hash(f'row {row}') % count == index)",
        "processes",
    ),
    "DealtByTheEnvironment": instead(
        CHUNKED,
        "return ((start, min(start + step, size)),)",
        "first = int(__import__('os').environ.get('RANK', 0))\n"
        "        return tuple((row, row + 1) for row in range((index + first) % count, size, count))",
        "processes",
    ),
    "SilentWithoutElements": WrongPlacement("edge", HALF),
    "ForgetsTheScale": _attention("S(0), S(0), S(0)", 0, ""),
    "DecayingState": instead(FEEDBACK, 'x + state["error"]', 'x + 0.9 * state["error"]', "state"),
    "ThroughFloats": WrongPlacement("edge", THROUGH_FLOATS),
    "MasksFromTheFirstRow": _attention("S(2), R, R", 2, ", scale, enable_gqa"),
    "IntegersThroughFloats": extended(
        THROUGH_FLOATS, "def supports(self, dtype):\n    return dtype.name in ('i64', 'i32')", "precision"
    ),
    "ThreeTimesTheHead": instead(HEADS, "x[:, at : at + 1]", "x[:, at : at + 1] * 3", "edge"),
    "CollectsOtherHeads": instead(HEADS, "shards[:: len(shards) // self.heads]", "shards[-self.heads :]", "inverse"),
    "FiveTimesTheBlocks": instead(BLOCKS, "flatten(0, 1)[:rows])", "flatten(0, 1)[:rows]) * 5", "edge"),
}
"""Name → a wrong placement."""
