"""The table of collectives, including those of plug-ins.

    for spec in collectives(): ...       # all, in a fixed order
    spec = collective("all_gather")      # one by name
    [clause.keyword for clause in spec.clauses]     # ["on", "dim"]: the clauses that a term of a rewrite needs
    spec.before, spec.after              # ("shard", "replicated"): the traits of its axes before and after
    spec.orders_axes                     # False for all_reduce and partition: the order of the axes does not matter

To add a collective, write a `CollectiveSpec` in `SHIPPED` below, or at module level of a plug-in.
`register_collectives` checks both and adds them to the table. See docs/first-collective.md.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable

import attrs

from spmdir.core.errors import ShardingError, did_you_mean
from spmdir.reshard.clause import DIM, FROM, ON, OP, TO
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.exchange import exchange_loads
from spmdir.reshard.moved_axes import converted_axes, exchanged_axes, permuted_axes, two_round_axes
from spmdir.reshard.multi_axis_steps import check_convert, check_exchange, check_permute, check_rearrange
from spmdir.reshard.traffic import COPY, Sizes, Traffic, anywhere, direct, ring
from spmdir.reshard.two_round_exchange import two_round_loads


def _concatenations(sizes: Sizes) -> int:
    """Return the number of concatenations in an exchange: one for each partial value, if it arrives in parts.

    In a group of 4 ranks with 4 partial values, each arrives whole from its rank. With 2 partial values, each arrives
    in parts from 2 ranks.
    """
    return sizes.combined if sizes.group > sizes.combined else 0


def _received_copies(sizes: Sizes) -> float:
    """Return the bytes that an exchange copies on arrival.

    A copy reads and writes each byte. An addition reads two partial values and writes one, so it counts as 1.5 copies.
    """
    return sizes.target * (_concatenations(sizes) + 1.5 * (sizes.combined - 1))


def _exchange_kernels(sizes: Sizes) -> int:
    """Return the number of kernels of an exchange: one to pack, the concatenations, and the additions."""
    return 1 + _concatenations(sizes) + sizes.combined - 1


_bounded_traffic = functools.partial(Traffic, keeps_bounds=True)
"""Traffic of a collective that sends at least the bytes, in at least the hops, that `QuickBound` assumes."""

_EXCHANGE = CollectiveSpec(
    name="exchange",
    summary="A generalised all-to-all: each rank receives the elements that it lacks, and reduces partial values",
    moves="elements",
    check=check_exchange,
    axes=exchanged_axes,
    traffic=_bounded_traffic(
        wire=lambda s: s.moved,
        copied=_received_copies,
        kernels=_exchange_kernels,
        crossing=direct,
        passes=1,
        sends_at_once=True,
    ),
    buffers=("sent", "received", "joined", "result"),
    loads=exchange_loads,
    may_be_async=True,
    may_be_bucketed=True,
    if_local="rearrange",
    is_planned=True,
    lower="spmdir.lowering.exchange:exchange_message",
)

SHIPPED: tuple[CollectiveSpec, ...] = (
    CollectiveSpec(
        name="slice",
        summary="Each rank keeps its chunk of a replicated value; local",
        clauses=(ON, DIM),
        before="replicated",
        after="shard",
        traffic=_bounded_traffic(copied=lambda s: s.target if s.dim else 0.0, kernels=lambda s: bool(s.dim)),
        is_planned=True,
        lower="spmdir.lowering.collectives:slice_message",
    ),
    CollectiveSpec(
        name="partition",
        summary="A replicated value becomes a partial one; local",
        clauses=(ON, OP),
        before="replicated",
        after="partial",
        traffic=COPY,
        is_planned=True,
        lower="spmdir.lowering.collectives:partition_message",
    ),
    CollectiveSpec(
        name="all_gather",
        summary="Each rank receives the shards along the innermost axes of a dimension, and concatenates them",
        clauses=(ON, DIM),
        before="shard",
        after="replicated",
        # On a ring, each rank sends n − 1 shards.
        traffic=_bounded_traffic(
            wire=lambda s: (s.group - 1) * s.source,
            copied=lambda s: s.source if s.dim else 0.0,
            kernels=lambda s: bool(s.dim),
            crossing=ring,
            passes=1,
        ),
        may_be_async=True,
        may_be_bucketed=True,
        is_planned=True,
        lower="spmdir.lowering.collectives:all_gather_message",
    ),
    CollectiveSpec(
        name="all_to_all",
        summary="The axes leave one dimension and shard another",
        clauses=(ON, FROM, TO),
        before="shard",
        after="shard",
        # A rank sends one chunk to each peer, at most its whole shard.
        traffic=_bounded_traffic(
            wire=lambda s: min((s.group - 1) * s.chunk, max(s.source, s.target)),
            copied=lambda s: s.chunk * (bool(s.to_dim) + bool(s.dim)),
            packed=lambda s: s.chunk * bool(s.to_dim),
            kernels=lambda s: bool(s.to_dim) + bool(s.dim),
            crossing=direct,
            passes=1,
            sends_at_once=True,
        ),
        may_be_async=True,
        may_be_bucketed=True,
        is_planned=True,
        lower="spmdir.lowering.collectives:all_to_all_message",
    ),
    CollectiveSpec(
        name="all_reduce",
        summary="The partial values along the axes are reduced; each rank receives the result",
        clauses=(ON, OP),
        before="partial",
        after="replicated",
        # A ring reduce-scatter and a ring all-gather, one after the other.
        traffic=_bounded_traffic(
            wire=lambda s: 2 * (s.group - 1) * s.source / s.group, crossing=ring, passes=2, may_use_tree=True
        ),
        may_be_async=True,
        may_be_bucketed=True,
        is_planned=True,
        lower="spmdir.lowering.collectives:all_reduce_message",
    ),
    CollectiveSpec(
        name="reduce_scatter",
        summary="The partial values along the axes are reduced and each rank keeps its chunk",
        clauses=(ON, DIM, OP),
        before="partial",
        after="shard",
        traffic=_bounded_traffic(
            wire=lambda s: (s.group - 1) * s.target,
            copied=lambda s: s.target if s.dim else 0.0,
            packed=lambda s: s.target if s.dim else 0.0,
            kernels=lambda s: bool(s.dim),
            crossing=ring,
            passes=1,
        ),
        may_be_async=True,
        may_be_bucketed=True,
        is_planned=True,
        lower="spmdir.lowering.collectives:reduce_scatter_message",
    ),
    CollectiveSpec(
        name="broadcast",
        summary="All ranks of a group receive the value of its first rank",
        clauses=(ON,),
        before="replicated",
        after="replicated",
        traffic=Traffic(wire=lambda s: s.source, crossing=anywhere),
        may_be_async=True,
        lower="spmdir.lowering.collectives:broadcast_message",
    ),
    CollectiveSpec(
        name="permute",
        summary="Ranks exchange whole shards",
        moves="shards",
        check=check_permute,
        axes=permuted_axes,
        traffic=_bounded_traffic(wire=lambda s: s.source, crossing=anywhere),
        may_be_async=True,
        is_planned=True,
        lower="spmdir.lowering.collectives:permute_message",
    ),
    _EXCHANGE,
    CollectiveSpec(
        name="two_round_exchange",
        summary="An exchange in two rounds: ranks reduce received partial values, and send the sums to their owners",
        moves="elements",
        check=check_exchange,
        axes=two_round_axes,
        traffic=_bounded_traffic(
            wire=lambda s: s.moved,
            copied=lambda s: _received_copies(s) + s.moved,
            kernels=lambda s: 2 + _exchange_kernels(s),
            crossing=direct,
            passes=1,
            sends_at_once=True,
            rounds=2,
        ),
        buffers=("sent", "received", "sent", "received", "result"),
        loads=two_round_loads,
        may_be_async=True,
        is_planned=True,
        lower="spmdir.lowering.exchange:two_round_exchange_message",
    ),
    attrs.evolve(
        _EXCHANGE,
        name="rearrange",
        summary="An exchange that sends nothing, because each rank has all elements of its new shard; local",
        check=check_rearrange,
        traffic=COPY,
        buffers=("result",),
        loads=None,
        may_be_async=False,
        may_be_bucketed=False,
        is_planned=False,
        if_local=None,
    ),
    CollectiveSpec(
        name="convert",
        summary="A step that a placement declares as an edge from it or to it",
        moves="edge",
        check=check_convert,
        axes=converted_axes,
        is_planned=True,
        lower="spmdir.lowering.collectives:convert_message",
    ),
)
"""The collectives that come with spmdir."""

PLANNED = tuple(spec for spec in SHIPPED if spec.is_planned)
"""The shipped collectives that the planner may choose."""

_SPECS: dict[str, tuple[CollectiveSpec, str]] = {}
"""Name → spec and the module that declares it."""


def collectives() -> tuple[CollectiveSpec, ...]:
    """Return all collectives; those of plug-ins come last."""
    return tuple(spec for spec, _ in _SPECS.values())


def collective(name: str) -> CollectiveSpec:
    """Return the collective `name`.

    Raises:
        ShardingError: no collective has this name.
    """
    if name not in _SPECS:
        raise ShardingError(
            f"unknown collective '{name}'; expected one of {', '.join(_SPECS)}{did_you_mean(name, _SPECS)}"
        )
    return _SPECS[name][0]


def collectives_between(
    before: str, after: str, collectives: Iterable[CollectiveSpec] = PLANNED
) -> tuple[CollectiveSpec, ...]:
    """Return the collectives among `collectives` that take axes from trait `before` to trait `after`."""
    return tuple(spec for spec in collectives if spec.traits == (before, after))


def keep_bounds(collectives: Iterable[CollectiveSpec]) -> bool:
    """Return whether `QuickBound` is a valid lower bound for all of `collectives`; edges are exempt."""
    return all(spec.moves == "edge" or spec.traffic.keeps_bounds for spec in collectives)


def planned_collectives(added: Iterable[CollectiveSpec]) -> tuple[CollectiveSpec, ...]:
    """Return the collectives that the planner may choose: PLANNED, and those of `added` with `is_planned`.

    If the file of a plug-in was run again, the newer specs in the table are returned.
    """
    return (*PLANNED, *(collective(spec.name) for spec in added if spec.is_planned))


def register_collectives(values: Iterable[object], origin: str, op_names: Collection[str] = ()) -> None:
    """Add the specs among the values of a module to the table. A file that is run again replaces its earlier specs.

    Args:
        origin: the name of the module.
        op_names: the names of all ops of the `spmd` dialect.

    Raises:
        ShardingError: the name of a spec is taken, or its `if_local` names no local collective.
    """
    registered = {name: spec for name, (spec, _) in _SPECS.items()}
    specs_in_module = dict.fromkeys(value for value in values if isinstance(value, CollectiveSpec))
    # A spec that is registered already was imported by the module, or loaded before.
    new_specs = [spec for spec in specs_in_module if spec not in registered.values()]
    latest_by_name = {spec.name: spec for spec in new_specs}
    for spec in new_specs:
        _check_name(spec, latest_by_name[spec.name], origin, op_names)
        if spec.if_local is None:
            continue
        replacement = latest_by_name.get(spec.if_local) or registered.get(spec.if_local)
        if replacement is None or not replacement.is_local:
            raise ShardingError(
                f"`if_local` of {spec!r} is '{spec.if_local}'; expected the name of a collective that sends nothing",
                spec.place,
            )
    _SPECS.update((spec.name, (spec, origin)) for spec in new_specs)


def _check_name(spec: CollectiveSpec, latest: CollectiveSpec, origin: str, op_names: Collection[str]) -> None:
    """Raise ShardingError if another collective or op has the name of a spec.

    Args:
        latest: the last spec of this name in the module.
        origin: the name of the module.
        op_names: the names of all ops of the `spmd` dialect.
    """
    previous = _SPECS.get(spec.name)  # the registered spec, and its module
    if latest is not spec:
        raise ShardingError(
            f"collective '{spec.name}' is declared twice by {origin}; expected a different name for each: "
            "rename one of them",
            latest.place,
        )
    if previous is not None and previous[1] != origin:
        raise ShardingError(
            f"collective '{spec.name}' is declared by {previous[1]} and by {origin}; expected a different "
            "name for each: rename one of them",
            spec.place,
        )
    if previous is None and spec.name in op_names:
        raise ShardingError(
            f"the op spmd.{spec.name} already has the name of collective '{spec.name}'; expected an unused "
            "name: rename the collective",
            spec.place,
        )


register_collectives(SHIPPED, __name__)
