"""Placements that are right, from which the wrong ones are made; NAME stands for the name of each."""

from __future__ import annotations

from tests.checking.placements.right_unusual import BLOCKS, HEADS, PACKED

HEAD = """\
from __future__ import annotations

import math
from typing import ClassVar

import attrs

from spmdir.errors import UnsupportedError
from spmdir.placement import UNKNOWN, EdgeState, ErrorBound, PackedPlacement
from spmdir.core.dtype import F32
from spmdir.core.errors import ShardingError
from spmdir.core.placement.base import Edge, PartialPlacement, Placement
from spmdir.core.placement.shards import ShardPlacement

"""

DEALT = """\
@attrs.frozen
class NAME(ShardPlacement):
    text: ClassVar[str] = "NAME({dim}, {block})"
    examples: ClassVar[tuple[str, ...]] = ("NAME(0, 2)",)
    dim: int
    block: int = attrs.field(validator=attrs.validators.ge(1))

    def ranges(self, size, count, index):
        starts = range(index * self.block, size, count * self.block)
        return tuple((start, min(start + self.block, size)) for start in starts)

    def scaled(self, inner):
        return type(self)(self.dim, self.block * inner)
"""

CHUNKED = """\
@attrs.frozen
class NAME(ShardPlacement):
    text: ClassVar[str] = "NAME({dim})"
    examples: ClassVar[tuple[str, ...]] = ("NAME(0)",)
    dim: int

    def ranges(self, size, count, index):
        step = -(-size // count)
        start = min(index * step, size)
        return ((start, min(start + step, size)),)
"""

TURNED = '''\
@attrs.frozen
class NAME(ShardPlacement):
    """Shards in the reverse order of ranks, gathered in a step of its own, which knows of one axis alone."""

    text: ClassVar[str] = "NAME({dim})"
    examples: ClassVar[tuple[str, ...]] = ("NAME(0)",)
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

TOTAL = '''\
@attrs.frozen
class NAME(PartialPlacement):
    """A partial sum."""

    text: ClassVar[str] = "NAME"

    def distribute(self, tensor, count, noise):
        partials = [noise(tensor) for _ in range(count - 1)]
        return [*partials, tensor - sum(partials)]
'''

LARGEST = '''\
@attrs.frozen
class NAME(PartialPlacement):
    """A partial maximum."""

    text: ClassVar[str] = "NAME"
    reduce = "max"
    identity = -math.inf
    copies = True

    def supports(self, dtype):
        return dtype.kind == "float"
'''

LOGSUM = '''\
@attrs.frozen
class NAME(PartialPlacement):
    """The logarithm of a sum of exponentials."""

    text: ClassVar[str] = "NAME"
    identity = -math.inf

    def before(self, partial):
        return partial.exp()

    def after(self, reduced, count):
        return reduced.log()

    def distribute(self, tensor, count, noise):
        if (tensor.abs() > 80).any():
            raise UnsupportedError(f"{self} is for values from -80 to 80")
        weights = [noise(tensor).exp() for _ in range(count)]
        return [tensor + (weight / sum(weights)).log() for weight in weights]

    def supports(self, dtype):
        return dtype.name in ("f64", "f32")

    def lift(self, rule, strategies):
        if rule.name == "aten.logsumexp":
            yield from rule.combining(self)
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

ROOTED = FIRST + EDGES

BRIEF = '''\
@attrs.frozen
class NAME(PartialPlacement):
    """A partial sum that is sent in half precision and added in full."""

    text: ClassVar[str] = "NAME"
    error = ErrorBound(2**-8)

    def supports(self, dtype):
        return dtype.name in ("f64", "f32")

    def edges(self):
        yield Edge(lambda x, group: x, source="P(sum)")
        yield Edge(self.gather, target="R", by="all_gather", itemsize=2)
        yield Edge(self.scatter, target="shard", by="all_to_all", itemsize=2)

    def gather(self, x, group):
        return group.all_gather(x.bfloat16()).to(x.dtype).sum(0)

    def scatter(self, x, group):
        return group.keep(group.all_to_all(group.split(x).bfloat16()).to(x.dtype).sum(0))
'''

BYTES = '''\
@attrs.frozen
class NAME(PartialPlacement):
    """A partial sum that is gathered as integers of one byte, with a scale a rank."""

    text: ClassVar[str] = "NAME"
    error = ErrorBound(1.001 / 254)

    def supports(self, dtype):
        return dtype.name in ("f64", "f32")

    def edges(self):
        yield Edge(self.gather, target="R", by="all_gather", itemsize=1)

    def gather(self, x, group):
        import torch

        largest = x.abs().amax() / 127 if x.numel() else x.new_zeros(())
        scale = group.all_gather(torch.where(largest > 0, largest, 1.0)).reshape(-1, *(1,) * x.dim())
        small = (x / torch.where(largest > 0, largest, 1.0)).round().clamp(-127, 127).to(torch.int8)
        return (group.all_gather(small) * scale).sum(0).to(x.dtype)
'''

STABLE = '''\
@attrs.frozen
class NAME(PackedPlacement):
    """The logarithm of a sum of exponentials, as the largest exponent and the sum relative to it."""

    text: ClassVar[str] = "NAME"
    parts: ClassVar[tuple[str, ...]] = ("largest", "total")
    results: ClassVar[tuple[str, ...]] = ("logsumexp",)

    def identity(self, largest, total):
        return largest.new_full(largest.shape, -math.inf), total.new_zeros(total.shape)

    def combine(self, left, right):
        largest = left[0].maximum(right[0])
        finite = largest.where(largest > -math.inf, 0)
        return largest, left[1] * (left[0] - finite).exp() + right[1] * (right[0] - finite).exp()

    def finish(self, state):
        return (state[0] + state[1].log(),)

    def start(self, value):
        return value, value.new_ones(value.shape)

    def supports(self, dtype):
        return dtype.name in ("f64", "f32")
'''

MOMENTS = '''\
@attrs.frozen
class NAME(PackedPlacement):
    """The mean of some elements, the sum of the squares of the differences from it, and how many they are."""

    text: ClassVar[str] = "NAME({part})"
    examples: ClassVar[tuple[str, ...]] = ("NAME(0)",)
    parts: ClassVar[tuple[str, ...]] = ("mean", "squares", "count")
    part: int = 0

    def identity(self, mean, squares, count):
        return mean.new_zeros(mean.shape), squares.new_zeros(squares.shape), count.new_zeros(count.shape)

    def combine(self, left, right):
        count = left[2] + right[2]
        share = right[2] / count.where(count > 0, 1)
        apart = right[0] - left[0]
        return left[0] + apart * share, left[1] + right[1] + apart * apart * left[2] * share, count

    def start(self, value):
        parts = [value.new_zeros(value.shape) for _ in self.parts]
        parts[2] = parts[2] + 1
        parts[self.part] = value
        return parts

    def supports(self, dtype):
        return dtype.name in ("f64", "f32")
'''

FEEDBACK = '''\
@attrs.frozen
class NAME(PartialPlacement):
    """A partial sum of which each rank sends the largest quarter, and adds the others to those of the next run."""

    text: ClassVar[str] = "NAME"
    error = UNKNOWN

    def supports(self, dtype):
        return dtype.name in ("f64", "f32")

    def edges(self):
        yield Edge(lambda x, group: x, source="P(sum)")
        kept = {"error": EdgeState(feedback=True)}
        yield Edge(self.send, target="R", by=("all_gather",) * 2, bytes=self.sent, state=kept)

    def sent(self, shape, itemsize, count):
        rows = (count - 1) * -(-math.prod(shape) // 4)
        return rows * itemsize, rows * 8

    def send(self, x, group, state):
        wanted = (x + state["error"]).flatten()
        places = wanted.abs().topk(-(-wanted.numel() // 4)).indices
        values = wanted[places]
        left = wanted.index_put((places,), values.new_zeros(values.shape))
        places, values = group.all_gather(places).flatten(), group.all_gather(values).flatten()
        total = wanted.new_zeros(wanted.shape).index_add(0, places, values)
        return total.reshape(x.shape), {"error": left.reshape(x.shape)}
'''

RIGHT = {
    "RightDealt": DEALT,
    "RightChunked": CHUNKED,
    "RightTurned": TURNED,
    "RightTotal": TOTAL,
    "RightLargest": LARGEST,
    "RightLogSum": LOGSUM,
    "RightFirst": FIRST,
    "RightRooted": ROOTED,
    "RightBrief": BRIEF,
    "RightBytes": BYTES,
    "RightStable": STABLE,
    "RightFeedback": FEEDBACK,
    "RightPacked": PACKED,
    "RightBlocks": BLOCKS,
    "RightHeads": HEADS,
}
"""Name → the source of a class that holds every law."""
