"""Edges: the steps that plug-in placements declare, with their lowering and cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from spmdir.core.arguments import AMOUNT, CALLABLE, TEXT, Kind, is_amount
from spmdir.core.declared_fields import check_fields, evaluated, place
from spmdir.core.dtype import as_dtype
from spmdir.core.errors import ShardingError, shown

Sent = float | tuple[float, ...]
"""Wire bytes that a rank sends: a number, or one for each collective of an edge."""

INITIAL_VALUES = ("zeros", "ones", "random")
"""The initial contents of a state. "random" draws normal numbers, the same on every run."""


@attrs.frozen(eq=False)
class EdgeState:
    """A tensor that ranks keep for an edge from one run of the program to the next.

    Attributes:
        shape: (local shape before the step, number of ranks) → shape on a rank; by default the local shape. It is
            called with the largest local shape. A rank with a smaller shard keeps the first elements of each
            dimension; for a `shared` state, as many as the largest shard among the ranks of the step has.
        dtype: the name of the element type; by default that of the tensor.
        initial: the initial content, one of INITIAL_VALUES.
        shared: whether the state is equal on all ranks of the step, as a function of reduced values is. Otherwise each
            rank has a separate state.
        feedback: whether it is the error of earlier runs, which later runs correct. `spmd check-placement` checks that
            such errors do not accumulate; it only checks that other states stay finite.
    """

    shape: Callable[[tuple[int, ...], int], tuple[int, ...]] | None = None
    dtype: str | None = None
    initial: str = "zeros"
    shared: bool = False
    feedback: bool = False

    def __attrs_post_init__(self) -> None:
        if self.initial not in INITIAL_VALUES:
            raise ShardingError(
                f"`initial` of an EdgeState is {shown(self.initial)}; expected one of {', '.join(INITIAL_VALUES)}"
            )
        if self.dtype is not None:
            as_dtype(self.dtype)

    def local_shape(self, shape: Sequence[int], count: int) -> tuple[int, ...]:
        """Return the shape of the state on a rank, for a tensor of local `shape`.

        Raises:
            ShardingError: the declared function fails, or does not return a shape.
        """
        if self.shape is None:
            return tuple(shape)
        state_shape = evaluated("shape", self.shape, tuple(shape), count)
        if not (isinstance(state_shape, tuple) and all(type(size) is int and size >= 0 for size in state_shape)):
            raise ShardingError(
                f"`shape` of an EdgeState returns {shown(state_shape)} for {list(shape)} on {count} ranks; expected "
                "a tuple of nonnegative sizes",
                place(self.shape),
            )
        return state_shape


@attrs.frozen(eq=False)
class Edge:
    """A step between two placements, declared by one of them.

    If shards differ in size, the functions are called with the largest local shape before the step.

    Attributes:
        lower: (local tensor, group) → local tensor after the step. It uses torch ops and the collectives of
            `spmdir.lowering.group.Group`. With states, it is (local tensor, group, {name: state}) → (local tensor after
            the step, {name: new state}).
        target: the text of the placement after the step, or the trait "shard" for any placement with this trait.
        source: the same for the placement before the step. Set either `target` or `source`; the other one is the
            declaring placement.
        when: for the end "shard": (placement) → whether the edge converts to or from this placement.
        by: the collectives in its cost, in order: one or several kinds of `spmdir.reshard.collectives`; None if nothing
            is sent.
        itemsize: the bytes of an element on the wire, if they differ from those of the tensor.
        bytes: (local shape, bytes of an element, number of ranks) → wire bytes that a rank sends: a number, or a tuple
            with a number for each collective in `by`. By default the collectives send the whole tensor.
        seconds: (topology, local shape, bytes of an element, number of ranks) → modelled time; by default the time of
            the collectives in `by`.
        state: {name: EdgeState}, the tensors that ranks keep for the edge between runs; or (local shape, number of
            ranks) → such a dictionary, empty for no states.
    """

    lower: Callable[..., Any]
    target: str | None = None
    source: str | None = None
    by: str | tuple[str, ...] | None = None
    itemsize: float | None = None
    bytes: Callable[[tuple[int, ...], float, int], Sent] | None = None
    seconds: Callable[[Any, tuple[int, ...], float, int], float] | None = None
    when: Callable[[Any], bool] | None = None
    state: Mapping[str, EdgeState] | Callable[[tuple[int, ...], int], Mapping[str, EdgeState]] = attrs.field(
        factory=dict
    )

    def __repr__(self) -> str:
        end = f"from {self.source}" if self.target is None else f"to {self.target}"
        return f"<Edge {end}: {' + '.join(self.collectives) or 'nothing sent'}>"

    def __attrs_post_init__(self) -> None:
        check_fields(self, _FIELDS)
        if self.bytes is not None and not self.collectives:
            raise ShardingError(
                "an edge declares `bytes` but no collective; expected the collectives that send them: name "
                "them in `by`",
                self.place,
            )
        if self.bytes is not None and self.itemsize is not None:
            raise ShardingError(
                "an edge declares both `bytes` and `itemsize`; expected at most one: omit the other", self.place
            )
        if not callable(self.state):
            self._check_states(self.state)

    def states(self, shape: Sequence[int], count: int) -> Mapping[str, EdgeState]:
        """Return the states of the edge, for a tensor whose largest local shape is `shape`.

        Raises:
            ShardingError: the declared function fails, or does not return states.
        """
        if not callable(self.state):
            return self.state
        states = evaluated("state", self.state, tuple(shape), count)
        self._check_states(states)
        return states

    def _check_states(self, declared: object) -> None:
        """Raise ShardingError unless the `declared` states of the edge are a dict from identifiers to EdgeStates."""
        # The name "" is invalid, so a value that is not a dict is reported below.
        states = declared if isinstance(declared, Mapping) else {"": declared}
        for name, state in states.items():
            if not isinstance(state, EdgeState) or not name.isidentifier():
                raise ShardingError(
                    f"`state` of an edge has {shown(name)}: {shown(state)}; expected a dictionary of EdgeStates, as in "
                    "{'error': EdgeState()}",
                    self.place,
                )

    @property
    def collectives(self) -> tuple[str, ...]:
        """Return the names of the collectives in the cost of the edge."""
        return (self.by,) if isinstance(self.by, str) else tuple(self.by or ())

    @property
    def place(self) -> Any:
        """Return the location of the function `lower`."""
        return place(self.lower)

    def sent(self, shape: Sequence[int], itemsize: float, count: int) -> tuple[float, ...]:
        """Return the wire bytes of each of `collectives`, from the declared `bytes`.

        Args:
            shape: the largest local shape before the step.
            itemsize: the bytes of an element.
            count: the number of ranks.

        Raises:
            ShardingError: the declared function fails, or does not return such numbers.
        """
        assert self.bytes is not None  # else the caller computes them from the collectives
        declared = evaluated("bytes", self.bytes, tuple(shape), itemsize, count)
        amounts = declared if isinstance(declared, tuple) else (declared,)
        if len(amounts) != len(self.collectives) or not all(is_amount(amount) for amount in amounts):
            raise ShardingError(
                f"`bytes` returns {shown(declared)} for {list(shape)} on {count} ranks; expected a nonnegative number "
                f"for each of {', '.join(self.collectives)}",
                place(self.bytes),
            )
        return amounts

    def time(self, topology: Any, shape: Sequence[int], itemsize: float, count: int) -> float:
        """Return the modelled time of the edge, from the declared `seconds`.

        Args:
            shape: the largest local shape before the step.
            itemsize: the bytes of an element.
            count: the number of ranks.

        Raises:
            ShardingError: the declared function fails, or does not return a time.
        """
        assert self.seconds is not None  # else the caller computes it from the collectives
        seconds = evaluated("seconds", self.seconds, topology, tuple(shape), itemsize, count)
        if not is_amount(seconds):
            raise ShardingError(
                f"`seconds` returns {shown(seconds)} for {list(shape)} on {count} ranks; expected a nonnegative number",
                place(self.seconds),
            )
        return seconds


def _is_name_or_names(value: object) -> bool:
    """Return whether a value is None, a text, or a tuple of texts."""
    names = value if isinstance(value, tuple) else (value,)
    return value is None or all(isinstance(name, str) for name in names)


_FIELDS = {
    "lower": CALLABLE,
    "target": TEXT.optional,
    "source": TEXT.optional,
    "by": Kind(_is_name_or_names, "the name of a collective, or a tuple of names"),
    "itemsize": AMOUNT.optional,
    "bytes": CALLABLE.optional,
    "seconds": CALLABLE.optional,
    "when": CALLABLE.optional,
}
"""Field of an edge → its kind."""
