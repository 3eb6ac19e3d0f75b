"""Placements that are right, and wrong ones made from them: each breaks one law."""

from __future__ import annotations

import textwrap

import attrs

HEAD = """\
from __future__ import annotations

import math
from typing import ClassVar

import attrs

from spmdir.core.errors import ShardingError
from spmdir.core.placement.base import Edge, PartialPlacement, Placement, ShardPlacement

"""
DEALT = """\
@attrs.frozen
class NAME(ShardPlacement):
    text: ClassVar[str] = "NAME({dim}, {block})"
    examples: ClassVar[tuple[str, ...]] = ("NAME(0, 2)", "NAME(0, 3)")
    dim: int
    block: int = attrs.field(validator=attrs.validators.ge(1))

    def ranges(self, size, count, index):
        starts = range(index * self.block, size, count * self.block)
        return tuple((start, min(start + self.block, size)) for start in starts)
"""
TOTAL = '''\
@attrs.frozen
class NAME(PartialPlacement):
    """A partial sum."""

    text: ClassVar[str] = "NAME"

    def distribute(self, tensor, count, noise):
        partials = [noise(tensor) for _ in range(count - 1)]
        return [*partials, tensor - sum(partials)]
'''
TURNED = '''\
@attrs.frozen
class NAME(ShardPlacement):
    """Shards in the reverse order of ranks, gathered in a step of its own, which knows of one axis alone."""

    text: ClassVar[str] = "NAME({dim})"
    dim: int

    def ranges(self, size, count, index):
        step = -(-size // count)
        start = min((count - 1 - index) * step, size)
        return ((start, min(start + step, size)),)

    def edges(self):
        yield Edge(self.whole, target="R", by="all_gather")

    def whole(self, x, group):
        import torch

        size = group.shape[self.dim]
        shape = list(x.shape)
        shape[self.dim] = -(-size // group.size) - shape[self.dim]
        every = group.all_gather(torch.cat([x, x.new_zeros(shape)], self.dim))
        return torch.cat([every[rank] for rank in reversed(range(group.size))], self.dim).narrow(self.dim, 0, size)
'''
FIRST = '''\
@attrs.frozen
class NAME(Placement):
    """The first rank has the tensor, the others have nothing."""

    text: ClassVar[str] = "NAME"

    def check(self, shape, count):
        if not shape:
            raise ShardingError(f"{self} is for tensors of one dimension or more; found one of none")

    def local_type(self, shape, dtype, count, index):
        return (shape if index == 0 else (0, *shape[1:])), dtype

    def distribute(self, tensor, count, noise):
        return [tensor.clone(), *(tensor[:0].clone() for _ in range(count - 1))]

    def collect(self, shards, shape):
        return shards[0]
'''

EDGES = """
    def edges(self):
        yield Edge(self.spread, target="R", by="broadcast")
        yield Edge(lambda x, group: x if group.index == 0 else x[:0], source="R")

    def spread(self, x, group):
        return group.broadcast(x if group.index == 0 else x.new_empty(group.shape), 0)
"""


SINGLE = "\n".join(line for line in DEALT.splitlines() if "examples" not in line)
SILENT = TOTAL.partition("\n    def distribute")[0]
HOLDS_I64 = "def supports(self, dtype):\n    return dtype.name == 'i64'"


@attrs.frozen
class WrongPlacement:
    """A class made from a right one.

    Attributes:
        law: the law that it breaks.
        text: its source, without HEAD.
    """

    law: str
    text: str


def _instead(right: str, old: str, new: str, law: str) -> WrongPlacement:
    assert old in right
    return WrongPlacement(law, right.replace(old, new, 1))


def _with(right: str, more: str, law: str) -> WrongPlacement:
    return WrongPlacement(law, right + "\n" + textwrap.indent(textwrap.dedent(more).strip("\n"), "    ") + "\n")


def _field(right: str, line: str, law: str) -> WrongPlacement:
    return _instead(right, '"\n', f'"\n    {line}\n', law) if right is DEALT else _with(right, line, law)


def _edge(arguments: str) -> WrongPlacement:
    return _with(FIRST, f"def edges(self):\n    yield Edge(lambda x, group: x, {arguments})", "edges")


WRONG = {
    "Overlapping": _instead(DEALT, "min(start + self.block, size)", "min(start + self.block + 1, size)", "partition"),
    "Missing": _instead(DEALT, "range(index * self.block,", "range(index * self.block + 1,", "partition"),
    "Beyond": _instead(DEALT, "min(start + self.block, size)", "start + self.block", "partition"),
    "Runs": _with(
        DEALT,
        """
        def runs(self, size, count):
            if count < 16:
                return super(type(self), self).runs(size, count)
            return ((0, count, size // count),)
        """,
        "runs",
    ),
    "Scaled": _with(DEALT, "def scaled(self, inner):\n    return self", "scaled"),
    "Unscaled": _with(DEALT, "def unscaled(self, inner):\n    return self", "scaled"),
    "Inside": _with(DEALT, "def inside(self, outer):\n    return type(self)(self.dim, self.block + 1)", "scaled"),
    "Splits": _field(DEALT, "splits: ClassVar[bool] = True", "splits"),
    "Permuted": _with(
        DEALT,
        "def collect(self, shards, shape):\n    return super(type(self), self).collect(shards[::-1], shape)",
        "inverse",
    ),
    "WrongType": _instead(FIRST, "(0, *shape[1:])", "(1, *shape[1:])", "local shape"),
    "WrongRank": _instead(FIRST, "(0, *shape[1:])", "(0, *shape)", "local shape"),
    "Raising": _with(DEALT, "def collect(self, shards, shape):\n    return 1 / 0", "inverse"),
    "Mutable": _instead(DEALT, "@attrs.frozen\n", "@attrs.define(unsafe_hash=True)\n", "frozen"),
    "Unhashable": _instead(DEALT, "@attrs.frozen\n", "@attrs.frozen(eq=True, unsafe_hash=False)\n", "frozen"),
    "Unequal": _instead(DEALT, "@attrs.frozen\n", "@attrs.frozen(eq=False)\n", "frozen"),
    "Alike": _with(DEALT, "def __str__(self):\n    return f'Alike({self.dim}, 2)'", "text"),
    "Unreadable": _with(DEALT, "def __str__(self):\n    return f'Unreadable<{self.dim}>'", "text"),
    "HalfText": _instead(DEALT, ", {block})", ")", "examples"),
    "Traitor": _field(DEALT, "trait: ClassVar[str] = 'partial'", "declaration"),
    "NanError": _field(DEALT, "error = property(lambda self: math.nan)", "declaration"),
    "NoReduction": _field(TOTAL, "reduce = 'mean'", "declaration"),
    "NoIdentity": _field(TOTAL, "identity = 1.0", "identity"),
    "OtherReduction": _field(TOTAL, "reduce = 'max'", "inverse"),
    "NotAfter": _with(TOTAL, "def after(self, reduced, count):\n    return reduced * count", "inverse"),
    "OwnCollect": _with(
        TOTAL,
        """
        def after(self, reduced, count):
            return -reduced

        def collect(self, shards, shape):
            return sum(shards)
        """,
        "reduction",
    ),
    "WrongKind": _with(
        TOTAL,
        """
        kind = "sum"

        def before(self, partial):
            return partial.exp()

        def after(self, reduced, count):
            return reduced.log()

        def distribute(self, tensor, count, noise):
            return [tensor - math.log(count)] * count

        identity = -math.inf

        def supports(self, dtype):
            return dtype.name == "f64"
        """,
        "kind",
    ),
    "Narrowing": _with(
        TOTAL,
        """
        def before(self, partial):
            return partial.float()

        def after(self, reduced, count):
            return reduced.double()

        def supports(self, dtype):
            return dtype.name == "f64"
        """,
        "inverse",
    ),
    "Turning": _with(
        TOTAL,
        """
        def before(self, partial):
            return partial.flip(0) if partial.dim() else partial

        def after(self, reduced, count):
            return reduced.flip(0) if reduced.dim() else reduced
        """,
        "elementwise",
    ),
    "HoldsAll": _with(TOTAL, "def supports(self, dtype):\n    return True", "local shape"),
    "Rounded": _instead(FIRST, "[tensor.clone(),", "[(tensor * 1.0000001).to(tensor.dtype),", "inverse"),
    "UnsignedZero": _instead(FIRST, "[tensor.clone(),", "[tensor.where(tensor != 0, tensor.new_zeros(())),", "inverse"),
    "Short": _instead(FIRST, "range(count - 1)", "range(count - 2)", "local shape"),
    "BothEnds": _edge("target='R', source='R'"),
    "NoEnd": _edge("by='broadcast'"),
    "NoSuchEnd": _edge("target='Nowhere'"),
    "NoSuchCost": _edge("target='R', by='pigeon'"),
    "NegativeCost": _edge("target='R', by='broadcast', itemsize=-1"),
    "NanCost": _edge("target='R', by='broadcast', itemsize=math.nan"),
    "OtherNumbers": _instead(FIRST + EDGES, "group.shape), 0)", "group.shape), 0) + 1", "edge"),
    "OtherShape": _instead(FIRST + EDGES, "else x[:0]", "else x", "edge"),
    "OtherType": _instead(
        FIRST + EDGES, "Edge(lambda x, group: x if", "Edge(lambda x, group: x.double() + 0j if", "edge"
    ),
    "Peeking": _instead(FIRST + EDGES, "x if group.index == 0 else x.new", "x if x.sum() > 0 else x.new", "edge"),
    "Failing": _instead(FIRST + EDGES, "group.broadcast", "group.no_such_method", "edge"),
    "Alone": _instead(
        FIRST + EDGES, "return group", "if group.index: return x.new_zeros(group.shape)\n        return group", "edge"
    ),
    "Free": _instead(FIRST + EDGES, ', by="broadcast"', "", "cost"),
    "Cheap": _instead(FIRST + EDGES, ', by="broadcast"', ', by="broadcast", itemsize=0.5', "cost"),
    "Dimmed": _instead(
        FIRST, 'text: ClassVar[str] = "NAME"', 'text: ClassVar[str] = "NAME({dim})"\n    dim: int', "declaration"
    ),
    "HigherRank": _instead(
        FIRST.replace("(0, *shape[1:])", "(0, *shape)"),
        "(shape if index == 0",
        "((1, *shape) if index == 0",
        "local shape",
    ),
    "Crowded": _instead(SINGLE, "({dim}, {block})", "({dim}{block})", "text"),
    "OfIntegers": _with(FIRST + EDGES.replace("group.shape), 0)", "group.shape), 0) + 1"), HOLDS_I64, "edge"),
    "OfCubes": _instead(
        FIRST + EDGES.replace("group.shape), 0)", "group.shape), 0) + 1"), "if not shape", "if len(shape) < 3", "edge"
    ),
    "Silent": _with(SILENT, "def lift(self, rule, strategies):\n    yield rule.pointwise(self)", "rules"),
    "Unsound": _with(TOTAL, "def lift(self, rule, strategies):\n    yield rule.pointwise(self)", "rules"),
}
"""Name → the lie; NAME stands for the name."""


def source(text: str, name: str) -> str:
    """Return the file that declares the placement `name`."""
    return HEAD + text.replace("NAME", name)
