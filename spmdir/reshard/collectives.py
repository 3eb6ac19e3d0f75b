"""The table of collectives, those of plug-ins included.

    for spec in collectives(): ...       # all, in a fixed order
    spec = collective("all_gather")      # one by name
    [clause.keyword for clause in spec.clauses]     # ["on", "dim"]: what a term of a rewrite has to say
    spec.before, spec.after              # ("shard", "replicated"): the traits of its axes, for those that name axes
    spec.orders_axes                     # False for all_reduce and partition: any order of the axes is the same

A new collective is a `CollectiveSpec` in `SHIPPED` below, or at module level of a plug-in. Both are entered into the
table by `register_collectives`. See docs/first-collective.md.
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


def _joins(sizes: Sizes) -> int:
    """Return the kernels that concatenate what an exchange brings: one a partial value, if it arrives in parts."""
    return sizes.combined if sizes.group > sizes.combined else 0


def _received(sizes: Sizes) -> float:
    """Return the bytes copied where an exchange arrives: each addition reads two partial values and writes one."""
    return sizes.target * (_joins(sizes) + 1.5 * (sizes.combined - 1))


def _kernels(sizes: Sizes) -> int:
    """Return the kernels of an exchange: one that packs, those that concatenate, and additions."""
    return 1 + _joins(sizes) + sizes.combined - 1


_bounded = functools.partial(Traffic, keeps_bounds=True)

_EXCHANGE = CollectiveSpec(
    name="exchange",
    summary="A generalised all-to-all: every rank gets what it lacks from ranks that hold it, and reduces it if needed",
    moves="elements",
    check=check_exchange,
    axes=exchanged_axes,
    traffic=_bounded(wire=lambda s: s.moved, copied=_received, kernels=_kernels, crossing=direct, passes=1),
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
        traffic=_bounded(copied=lambda s: s.target if s.dim else 0.0, kernels=lambda s: bool(s.dim)),
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
        summary="The shards along the innermost axes of a dimension are concatenated on every rank",
        clauses=(ON, DIM),
        before="shard",
        after="replicated",
        # A ring passes n − 1 shards on.
        traffic=_bounded(
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
        # A chunk goes to every other rank, at most all that a rank holds.
        traffic=_bounded(
            wire=lambda s: min((s.group - 1) * s.chunk, max(s.source, s.target)),
            copied=lambda s: s.chunk * (bool(s.to_dim) + bool(s.dim)),
            packed=lambda s: s.chunk * bool(s.to_dim),
            kernels=lambda s: bool(s.to_dim) + bool(s.dim),
            crossing=direct,
            passes=1,
        ),
        may_be_async=True,
        may_be_bucketed=True,
        is_planned=True,
        lower="spmdir.lowering.collectives:all_to_all_message",
    ),
    CollectiveSpec(
        name="all_reduce",
        summary="The partial values along the axes are reduced; every rank gets the result",
        clauses=(ON, OP),
        before="partial",
        after="replicated",
        # A ring reduce-scatter and a ring all-gather, one after the other.
        traffic=_bounded(wire=lambda s: 2 * (s.group - 1) * s.source / s.group, crossing=ring, passes=2),
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
        traffic=_bounded(
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
        summary="The value of the first rank of each group is given to all",
        clauses=(ON,),
        before="replicated",
        after="replicated",
        traffic=Traffic(wire=lambda s: s.source, crossing=anywhere),
        may_be_async=True,
        lower="spmdir.lowering.collectives:broadcast_message",
    ),
    CollectiveSpec(
        name="permute",
        summary="Shards move between ranks as they are",
        moves="shards",
        check=check_permute,
        axes=permuted_axes,
        traffic=_bounded(wire=lambda s: s.source, crossing=anywhere),
        may_be_async=True,
        is_planned=True,
        lower="spmdir.lowering.collectives:permute_message",
    ),
    _EXCHANGE,
    CollectiveSpec(
        name="two_round_exchange",
        summary="An exchange in two rounds: ranks are sent partial values, reduce them and send the sums on",
        moves="elements",
        check=check_exchange,
        axes=two_round_axes,
        traffic=_bounded(
            wire=lambda s: s.moved,
            copied=lambda s: _received(s) + s.moved,
            kernels=lambda s: 2 + _kernels(s),
            crossing=direct,
            passes=1,
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
        summary="An exchange that sends nothing: every rank has what its new shard is made of; local",
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
        summary="A step that a placement declares, from it or to it; its edge says how",
        moves="edge",
        check=check_convert,
        axes=converted_axes,
        is_planned=True,
        lower="spmdir.lowering.collectives:convert_message",
    ),
)
"""The collectives that come with spmdir."""

PLANNED = tuple(spec for spec in SHIPPED if spec.is_planned)
"""Those that the planner may choose."""

_SPECS: dict[str, tuple[CollectiveSpec, str]] = {}
"""Name → spec and the module that declares it."""


def collectives() -> tuple[CollectiveSpec, ...]:
    """Return all collectives, those of plug-ins last."""
    return tuple(spec for spec, _ in _SPECS.values())


def collective(name: str) -> CollectiveSpec:
    """Return the collective `name`.

    Raises:
        ShardingError: there is none.
    """
    if name not in _SPECS:
        raise ShardingError(
            f"unknown collective '{name}'; expected one of {', '.join(_SPECS)}{did_you_mean(name, _SPECS)}"
        )
    return _SPECS[name][0]


def between(before: str, after: str, collectives: Iterable[CollectiveSpec] = PLANNED) -> tuple[CollectiveSpec, ...]:
    """Return those of `collectives` that take axes from one trait to another."""
    return tuple(spec for spec in collectives if spec.traits == (before, after))


def keep_bounds(collectives: Iterable[CollectiveSpec]) -> bool:
    """Return whether `QuickBound` is a valid lower bound for all of `collectives`; edges are exempt."""
    return all(spec.moves == "edge" or spec.traffic.keeps_bounds for spec in collectives)


def planned(added: Iterable[CollectiveSpec]) -> tuple[CollectiveSpec, ...]:
    """Return the collectives that the planner may choose: those of spmdir, and those of `added` that say so.

    Of a plug-in whose file was run again, these are the specs that are in the table now.
    """
    return (*PLANNED, *(collective(spec.name) for spec in added if spec.is_planned))


def register_collectives(values: Iterable[object], origin: str, taken: Collection[str] = ()) -> None:
    """Add the specs among the values of a module to the table. A file that is run again replaces its own.

    Args:
        origin: the name of the module.
        taken: the names of all ops of the `spmd` dialect.

    Raises:
        ShardingError: a spec has the name of another one or of an op, or names no local collective in `if_local`.
    """
    known = {name: spec for name, (spec, _) in _SPECS.items()}
    declared = dict.fromkeys(value for value in values if isinstance(value, CollectiveSpec))
    specs = [spec for spec in declared if spec not in known.values()]  # others are imported, or loaded once more
    named = {spec.name: spec for spec in specs}
    for spec in specs:
        _check_name(spec, named[spec.name], origin, taken)
        local = named.get(spec.if_local or "") or known.get(spec.if_local or "")
        if spec.if_local is not None and (local is None or not local.is_local):
            raise ShardingError(
                f"`if_local` of {spec!r} is '{spec.if_local}'; expected the name of a collective that sends nothing",
                spec.place,
            )
    _SPECS.update((spec.name, (spec, origin)) for spec in specs)


def _check_name(spec: CollectiveSpec, last: CollectiveSpec, origin: str, taken: Collection[str]) -> None:
    """Raise ShardingError if another collective or op has the name of a spec.

    Args:
        last: the last one of its name in its module.
    """
    known = _SPECS.get(spec.name)
    if last is not spec:
        raise ShardingError(f"collective '{spec.name}' is declared twice by {origin}; rename one of them", last.place)
    if known is not None and known[1] != origin:
        raise ShardingError(
            f"collective '{spec.name}' is declared by {known[1]} and by {origin}; rename one of them", spec.place
        )
    if known is None and spec.name in taken:
        raise ShardingError(
            f"collective '{spec.name}' has the name of another op, spmd.{spec.name}; rename it", spec.place
        )


register_collectives(SHIPPED, __name__)
