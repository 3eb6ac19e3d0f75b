"""What one collective declares: its clauses, the placements that it takes axes between, and its cost.

From a `CollectiveSpec` follow the legal transitions (`steps.transition`), the moves of the planner (`moves.moves`), the
price of an axis (`axis_price`), the verifier, parser and printer of its `spmd` op (`spmdir.dialects.collectives`), and
what a rewrite may say of it. `collectives.py` is the table of specs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal

import attrs

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.reshard.parts import Loads


@attrs.frozen
class Clause:
    """A keyword with a value in the text of a collective, as `dim 0`.

    Attributes:
        keyword: how the text calls it.
        argument: the name of the op's argument.
        kind: "axes" (a list of mesh axes), "dim" (a dimension of the tensor), "reduction" (a key of
            `spmdir.core.placement.reductions.REDUCTIONS` or the text of a partial placement), "number" (an int from 0
            on), "rank" (the number of a rank in its group), "name" (an identifier) or "flag" (the keyword alone).
    """

    keyword: str
    argument: str
    kind: str

    def holds(self, value: object) -> bool:
        """Return whether `value` is one of its kind."""
        return _KINDS[self.kind][0](value)

    @property
    def expected(self) -> str:
        """What a value of its kind is, for messages."""
        return _KINDS[self.kind][1]


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "axes": (
        lambda value: isinstance(value, tuple) and all(isinstance(axis, str) for axis in value),
        "the axes as a list of names, as in `on [dp, tp]`",
    ),
    "dim": (lambda value: type(value) is int, "a number for the dimension"),
    "reduction": (lambda value: isinstance(value, str), "the name of a reduction"),
    "number": (lambda value: type(value) is int and value >= 0, "a number from 0 on"),
    "rank": (lambda value: type(value) is int and value >= 0, "the number of a rank in its group"),
    "name": (lambda value: isinstance(value, str) and value.isidentifier(), "a name"),
    "flag": (lambda value: value is True, "the keyword alone"),
}
"""Kind of a clause → whether a value is of it, and how messages call these."""

STANDARD_ARGUMENTS = ("axes", "dim", "to_dim", "reduction")
"""The arguments for which steps and ops have a field of their own."""

START = "_start"
"""What the name of the op ends in that starts a collective."""

ON = Clause("on", "axes", "axes")
DIM = Clause("dim", "dim", "dim")
FROM = Clause("from", "dim", "dim")
TO = Clause("to", "to_dim", "dim")
OP = Clause("op", "reduction", "reduction")
STREAM = Clause("stream", "stream", "name")
"""What a start says of the communicator that it runs on."""


@attrs.frozen
class Sizes:
    """What a step handles on the busiest rank.

    Attributes:
        group: the number of ranks in a group.
        source: local bytes before.
        target: local bytes after.
        chunk: bytes that one rank sends to one other in a direct exchange; for all_to_all. For halo and halo_reduce,
            those of both halos; for rotate, all.
        dim, to_dim: as in Step.
        combined: how many partial values a rank that receives an exchange reduces to one; 1 for other steps.
        moved, crossing: for exchanges, bytes that the busiest rank sends or receives, in all and to or from other
            nodes; over all rounds. What crosses in other steps follows from what they send.
    """

    group: int
    source: float
    target: float
    chunk: float = 0
    dim: int | None = None
    to_dim: int | None = None
    combined: int = 1
    moved: float = 0
    crossing: float | None = None


@attrs.frozen
class Traffic:
    """The cost of a collective.

    Attributes:
        wire: bytes a rank sends.
        copied: bytes that are copied locally beside that: chunks along a dimension other than the first are packed or
            unpacked, and all but one of them while others are on the wire.
        packed: bytes of these that are copied before anything is sent, by one kernel.
        kernels: how many kernels pack, unpack and reduce these.
        crossing: (ranks, nodes) → the part of a rank's bytes that leaves its node; None where nothing is sent.
        passes: how often a rank has to do with each of the others, one hop apart: once round a ring, or with one
            message to each where ranks exchange directly; 0 where it sends to one or two of them only.
        rounds: how many collectives it takes, one after the other.
        keeps_bounds: whether it never sends less, or in fewer hops, than the ring model that `QuickBound` assumes. For
            others, bounds on seconds are 0.
        name: by which measured times are found; that of the collective unless given.
    """

    wire: Callable[[Sizes], float] = lambda sizes: 0.0
    copied: Callable[[Sizes], float] = lambda sizes: 0.0
    packed: Callable[[Sizes], float] = lambda sizes: 0.0
    kernels: Callable[[Sizes], int] = lambda sizes: 0
    crossing: Callable[[int, int], float] | None = None
    passes: int = 0
    rounds: int = 1
    keeps_bounds: bool = False
    name: str = ""

    def __repr__(self) -> str:
        return f"<Traffic: {self.name}>"


COPY = Traffic(copied=lambda sizes: sizes.target, kernels=lambda sizes: 1, keeps_bounds=True)
"""The cost of a local collective that writes its result."""


def ring(ranks: int, nodes: int) -> float:
    """Return what crosses nodes on a ring: ranks of a node are neighbours, so its cards share one way out."""
    return (nodes - 1) / (ranks - 1)


def direct(ranks: int, nodes: int) -> float:
    """Return what crosses nodes where each rank sends to each other one: the peers on other nodes."""
    return (ranks - ranks // nodes) / (ranks - 1)


def anywhere(ranks: int, nodes: int) -> float:
    """Return what crosses nodes where all that some rank holds may go to another node."""
    return float(nodes > 1)


BUFFERS = ("sent", "packed", "received", "joined", "unpacked", "result")
"""What a collective may allocate. `packed` and `unpacked` are copies into and out of the order in which chunks are
sent, which a leading dimension needs none of, `sent` is what leaves the rank, and `joined` are partial values put
together of what several ranks sent."""

PACKED = ("packed", "sent")
"""The buffers that a tensor is packed into before it is part of a message of several."""

ALLOCATED: dict[tuple[str | None, str | None], tuple[str, ...]] = {
    ("replicated", "shard"): ("packed", "received"),
    ("shard", "replicated"): ("received", "unpacked"),
    ("partial", "shard"): ("packed", "received"),
    ("shard", "shard"): ("packed", "received", "unpacked"),
}
"""The traits of its axes before and after → what a collective that sends allocates; others allocate their result."""


Moves = Literal["axes", "edge", "shards", "elements"]
"""What a collective moves, see `CollectiveSpec`."""


@attrs.frozen(eq=False, kw_only=True)
class CollectiveSpec:
    """One collective of the `spmd` dialect, of `spmdir` or of a plug-in.

    If it moves "axes", its text names them (`on [tp]`), and it takes them from the trait `before` to the trait `after`.
    Others name none, since the result's sharding says it all: they have `check` and `axes` in place of the traits.

    Attributes:
        name: the op's name without `spmd.`.
        summary: what it does, one sentence.
        clauses: what its text says, in order.
        moves: the "axes" that its text names, along an "edge" that a placement declares, "elements" that ranks lack, as
            `exchange` does, or whole "shards", as `permute` does.
        before, after: the trait of its axes before and after, "replicated", "shard" or "partial". Axes join a
            dimension innermost, those of a "shard" before have to be its innermost ones, in nesting order.
        check: (spec, source, target, mesh, global shape) → None, or raises ShardingError unless the step is legal.
        axes: (source, target, mesh) → the axes of its group.
        traffic: its cost; not given for "edge", whose cost is that of the edge.
        buffers: what it allocates one after the other, names of BUFFERS, each made of the one before, the last being
            the result. By default what collectives between its traits allocate, see `ALLOCATED`.
        loads: (source, target, mesh, global shape) → in each of its rounds, how many elements each rank sends each
            other one; for those that find that out rank by rank, such as all that send "elements".
        may_be_async: whether there is `NAME_start`, which starts it for a later `spmd.wait`.
        may_be_bucketed: whether it may take several tensors at once, with one message for all.
        is_planned: whether the planner may choose it: one that names axes wherever its traits fit, others for what they
            move, where `check` allows it.
        if_local: the name of the local collective that does it where nothing is sent.
        lower: its emitter, (site, operand) → `spmdir.lowering.site.Message`; or where that is found once something is
            lowered, as `"mine.emitters:scatter"`, so that nothing imports torch before. Required.
        executed: qualified name of a torch op that `lower` calls, as `mine.swap.default` → (calls of the ranks of a
            group) → what each rank gets, see `spmdir.simulator.collective_steps`; for ops that the simulator does not
            know.
    """

    name: str
    summary: str
    lower: Callable[[Any, Any], Any] | str
    clauses: tuple[Clause, ...] = ()
    moves: Moves = "axes"
    before: str | None = None
    after: str | None = None
    check: Callable[[CollectiveSpec, Sharding, Sharding, Mesh, tuple[int, ...]], object] | None = None
    axes: Callable[[Sharding, Sharding, Mesh], tuple[str, ...]] | None = None
    traffic: Traffic = Traffic()
    buffers: tuple[str, ...] = ()
    loads: Callable[[Sharding, Sharding, Mesh, tuple[int, ...]], list[Loads]] | None = None
    may_be_async: bool = False
    may_be_bucketed: bool = False
    is_planned: bool = False
    if_local: str | None = None
    executed: Mapping[str, Callable[[Any], Any]] = attrs.field(factory=dict)

    def __repr__(self) -> str:
        return f"<CollectiveSpec: {self.name}>"

    def __attrs_post_init__(self) -> None:
        if not self.buffers:
            object.__setattr__(self, "buffers", self._allocated)
        for name in self.buffers:
            if name not in BUFFERS:
                raise ShardingError(
                    f"collective '{self.name}' allocates '{name}'; expected names of {', '.join(BUFFERS)}"
                )
        if not isinstance(self.traffic, Traffic):
            raise ShardingError(f"collective '{self.name}' has no `traffic`; expected its cost")
        if not self.traffic.name:
            object.__setattr__(self, "traffic", attrs.evolve(self.traffic, name=self.name))

    @property
    def emitter(self) -> Callable[[Any, Any], Any]:
        """Return the function that `lower` is or names.

        Raises:
            ShardingError: it names none.
        """
        if callable(self.lower):
            return self.lower
        module, _, function = self.lower.partition(":")
        try:
            return getattr(import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise ShardingError(
                f"collective '{self.name}' is lowered by {self.lower!r}, which cannot be imported: {error}; "
                "expected a function, or 'module:function'"
            ) from None

    @property
    def _allocated(self) -> tuple[str, ...]:
        if self.is_slice:
            return ("unpacked",)  # of a leading dimension, a view
        return ALLOCATED.get(self.traits, ("result",))

    @property
    def names_axes(self) -> bool:
        """Whether its text names mesh axes."""
        return self.moves == "axes"

    def group_axes(self, source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
        """Return the axes of its group, of a collective whose text names none."""
        assert self.axes is not None  # which is checked where it is registered
        return self.axes(source, target, mesh)

    @property
    def traits(self) -> tuple[str | None, str | None]:
        """The traits of its axes before and after."""
        return self.before, self.after

    @property
    def is_slice(self) -> bool:
        """Whether its result is a part of what a rank has, and a view of it where that is contiguous."""
        return self.is_local and self.traits == ("replicated", "shard")

    @property
    def arrives_in_parts(self) -> bool:
        """Whether each member of a bucket is unpacked by itself after the message arrives (all_to_all, exchange)."""
        return not ({"unpacked", "joined"}.isdisjoint(self.buffers) or set(PACKED).isdisjoint(self.buffers))

    @property
    def is_copied_apart(self) -> bool:
        """Whether what arrives for several tensors is copied into one result each; else results are views of it."""
        return self.arrives_in_parts or "unpacked" in self.buffers

    @property
    def orders_axes(self) -> bool:
        """Whether the order of its axes matters: it is the nesting order of a dimension that they leave or join."""
        return "shard" in self.traits

    @property
    def is_local(self) -> bool:
        """Whether it never sends anything."""
        return self.moves != "edge" and self.traffic.crossing is None
