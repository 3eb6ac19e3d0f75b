"""Placements whose value, text or list of edges is wrong."""

from __future__ import annotations

from tests.checking.placements.right_placements import DEALT, FIRST, TOTAL
from tests.checking.placements.wrong_made import WrongPlacement, extended, instead

SINGLE = "\n".join(line for line in DEALT.splitlines() if "examples" not in line)


def _edge(arguments: str) -> WrongPlacement:
    return extended(FIRST, f"def edges(self):\n    yield Edge(lambda x, group: x, {arguments})", "edges")


DECLARATIONS = {
    "Mutable": instead(DEALT, "@attrs.frozen\n", "@attrs.define(unsafe_hash=True)\n", "frozen"),
    "Unhashable": instead(DEALT, "@attrs.frozen\n", "@attrs.frozen(eq=True, unsafe_hash=False)\n", "frozen"),
    "Unequal": instead(DEALT, "@attrs.frozen\n", "@attrs.frozen(eq=False)\n", "frozen"),
    "Alike": extended(DEALT, "def __str__(self):\n    return f'Alike({self.dim}, 2)'", "text"),
    "Unreadable": extended(DEALT, "def __str__(self):\n    return f'Unreadable<{self.dim}>'", "text"),
    "Crowded": instead(SINGLE, "({dim}, {block})", "({dim}{block})", "text"),
    "HalfText": instead(DEALT, ", {block})", ")", "examples"),
    "Traitor": extended(DEALT, "trait = 'partial'", "declaration"),
    "NoReduction": extended(TOTAL, "reduce = 'mean'", "declaration"),
    "Dimmed": instead(
        FIRST, 'text: ClassVar[str] = "NAME"', 'text: ClassVar[str] = "NAME({dim})"\n    dim: int', "declaration"
    ),
    "NanError": extended(DEALT, "error = property(lambda self: math.nan)", "declaration"),
    "BothEnds": _edge("target='R', source='R'"),
    "NoEnd": _edge("by='broadcast'"),
    "NoSuchEnd": _edge("target='Nowhere'"),
    "NoSuchCost": _edge("target='R', by='pigeon'"),
    "NotAnEdge": extended(FIRST, "def edges(self):\n    yield (lambda x, group: x, 'R')", "edges"),
    "Twice": extended(
        FIRST,
        """
        def edges(self):
            yield Edge(lambda x, group: group.broadcast(x), target="R", by="broadcast")
            yield Edge(lambda x, group: group.all_gather(x)[0], target="R", by="all_gather")
        """,
        "edges",
    ),
}
