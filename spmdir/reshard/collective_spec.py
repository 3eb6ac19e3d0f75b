"""The declaration of one collective: its clauses, its traits before and after, its cost and its buffers.

Many things are derived from a `CollectiveSpec`: the legal transitions (`steps.transition`), the steps of the planner
(`plan_edges.find_moves`), the price of an axis (`axis_price`), the verifier, parser and printer of the `spmd` op
(`spmdir.dialects.collectives`), and its syntax in rewrites. `collectives.py` is the table of specs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal, get_args

import attrs

from spmdir.core.arguments import FLAG, TEXT, Kind, instance
from spmdir.core.declared_fields import Function, Functions, Tuple, caller_place, check_fields
from spmdir.core.errors import Location, PluginError, ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.reshard.clause import DIM, FROM, IDENTIFIER, ON, OP, START, TO, Clause
from spmdir.reshard.exchange_parts import Loads
from spmdir.reshard.traffic import Traffic

BUFFERS = ("sent", "packed", "received", "joined", "unpacked", "result")
"""The names of buffers of collectives.

`packed` is the operand in the order in which chunks are sent, and `unpacked` is the result in its own order. Chunks of
a leading dimension are contiguous and need neither. `sent` is a send buffer, and `received` a receive buffer. `joined`
are partial values, each concatenated from the chunks of several ranks.
"""

PACKED = ("packed", "sent")
"""The buffers that a member needs before it is copied into the message of a bucket."""

ALLOCATED: dict[tuple[str | None, str | None], tuple[str, ...]] = {
    ("replicated", "shard"): ("packed", "received"),
    ("shard", "replicated"): ("received", "unpacked"),
    ("partial", "shard"): ("packed", "received"),
    ("shard", "shard"): ("packed", "received", "unpacked"),
}
"""Traits before and after → the buffers of a collective between them. Others allocate only their result."""


Moves = Literal["axes", "edge", "shards", "elements"]
"""The unit of data that a collective moves; see `CollectiveSpec`."""


@attrs.frozen(eq=False, kw_only=True)
class CollectiveSpec:
    """One collective of the `spmd` dialect, of `spmdir` or of a plug-in.

    A collective that moves "axes" names them in its text (`on [tp]`), and takes them from the trait `before` to the
    trait `after`. The others name no axes, because the sharding of the result defines the transition. They have `check`
    and `axes` instead of the traits.

    Attributes:
        name: the op's name without `spmd.`.
        summary: its effect, in one sentence.
        clauses: the clauses of its text, in order.
        moves: "axes" that its text names; along an "edge" that a placement declares; the "elements" that ranks lack, as
            in `exchange`; or whole "shards", as in `permute`.
        before, after: the trait of its axes before and after: "replicated", "shard" or "partial". Axes join a dimension
            innermost. Axes that leave a dimension must be its innermost axes, in nesting order.
        check: (spec, source, target, mesh, global shape) → None. It raises ShardingError unless the step is legal.
        axes: (source, target, mesh) → the axes of its group.
        traffic: its cost. An "edge" declares its cost itself, so `traffic` must be left out.
        buffers: the names of its allocations, from BUFFERS, in order. Each is computed from the previous one, and the
            last is the result. By default, the buffers of its traits in `ALLOCATED`.
        loads: (source, target, mesh, global shape) → for each round, the number of elements that each rank sends to
            each other rank. Required for collectives that move "elements".
        may_be_async: whether there is an op `NAME_start`, which starts it for a later `spmd.wait`.
        may_be_bucketed: whether one message may contain several tensors.
        is_planned: whether the planner may choose it. A collective that names axes is tried wherever its traits fit;
            the others wherever `check` allows them.
        if_local: the name of the local collective that replaces it if no rank sends anything.
        lower: its emitter, (site, operand) → `spmdir.lowering.site.Message`; or the import path of the emitter, such as
            `"mine.emitters:scatter"`, which is imported only when a program is lowered. Required.
        executed: for torch ops that the simulator does not know: the qualified name of an op that `lower` calls, such
            as `mine.swap.default` → a function from the calls of the ranks of a group to the result of each rank. See
            `spmdir.simulator.collective_steps`.
        place: the source line of the declaration.
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
    traffic: Traffic = attrs.field(factory=Traffic)
    buffers: tuple[str, ...] = ()
    loads: Callable[[Sharding, Sharding, Mesh, tuple[int, ...]], list[Loads]] | None = None
    may_be_async: bool = False
    may_be_bucketed: bool = False
    is_planned: bool = False
    if_local: str | None = None
    executed: Mapping[str, Callable[[Any], Any]] = attrs.field(factory=dict)
    place: Location | None = attrs.field(default=None, init=False)

    def __repr__(self) -> str:
        return f"CollectiveSpec '{self.name}'"

    def __attrs_post_init__(self) -> None:
        """Record the place of the declaration, check all fields, and set the defaults that depend on other fields."""
        object.__setattr__(self, "place", caller_place())
        check_fields(self, _FIELDS)
        for is_wrong, message in _RULES:
            if is_wrong(self):
                raise ShardingError(message(self), self.place)
        if not self.buffers:
            object.__setattr__(self, "buffers", self._allocated)
        if not self.traffic.name:
            object.__setattr__(self, "traffic", attrs.evolve(self.traffic, name=self.name))

    @property
    def emitter(self) -> Callable[[Any, Any], Any]:
        """Return the emitter, imported if `lower` is an import path.

        Raises:
            ShardingError: the import fails.
        """
        if callable(self.lower):
            return self.lower
        module, _, function = self.lower.partition(":")
        try:
            emitter = getattr(import_module(module), function)
        except (Exception, SystemExit) as error:  # the import runs code of a plug-in
            reason = (
                str(error) if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: {error}"
            )
            raise ShardingError(
                f"cannot import the emitter {self.lower!r} of collective '{self.name}': {reason}; "
                "expected a function, or 'module:function'"
            ) from error
        return _LOWER.guarded("lower", repr(self), emitter)

    @property
    def _allocated(self) -> tuple[str, ...]:
        """Return the default of `buffers`."""
        if self.is_slice:
            return ("unpacked",)  # along a leading dimension, the result is a view
        return ALLOCATED.get(self.traits, ("result",))

    @property
    def names_axes(self) -> bool:
        """Return whether its text names mesh axes."""
        return self.moves == "axes"

    def group_axes(self, source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
        """Return the axes of the group of a collective whose text names none.

        Raises:
            PluginError: its function `axes` returns an unknown axis.
        """
        assert self.axes is not None  # `_RULES` requires it
        axes = self.axes(source, target, mesh)
        try:
            for axis in axes:
                mesh.require(axis)
        except ShardingError as error:
            raise PluginError(
                f"`axes` of {self!r} gives {list(axes)}: {error.message}: correct the function", self.place
            ) from None
        return axes

    @property
    def traits(self) -> tuple[str | None, str | None]:
        """Return the traits of its axes before and after."""
        return self.before, self.after

    @property
    def is_slice(self) -> bool:
        """Return whether its result is a part of the local tensor. If that part is contiguous, the result is a view."""
        return self.is_local and self.traits == ("replicated", "shard")

    @property
    def arrives_in_parts(self) -> bool:
        """Return whether each member of a bucket is unpacked separately after the transfer (all_to_all, exchange)."""
        is_packed = not set(PACKED).isdisjoint(self.buffers)
        is_unpacked = not {"unpacked", "joined"}.isdisjoint(self.buffers)
        return is_packed and is_unpacked

    @property
    def is_copied_apart(self) -> bool:
        """Return whether the results of a bucket are copies. If not, they are views of the received buffer."""
        return self.arrives_in_parts or "unpacked" in self.buffers

    @property
    def orders_axes(self) -> bool:
        """Return whether the order of its axes matters, because they leave or join a dimension in nesting order."""
        return "shard" in self.traits

    @property
    def is_local(self) -> bool:
        """Return whether it is local: it never sends anything."""
        return self.moves != "edge" and self.traffic.crossing is None


_TRAITS = ("replicated", "shard", "partial")


def _is_text_or_none(value: object) -> bool:
    """Return whether `value` is a string or None."""
    return value is None or isinstance(value, str)


def _are_loads(value: object) -> bool:
    """Return whether `value` is a list with a dict for each round: (sender, receiver) → elements, as `{(0, 1): 8}`."""
    if not isinstance(value, (list, tuple)) or not value:
        return False
    for loads in value:
        if not isinstance(loads, Mapping):
            return False
        for ranks, numel in loads.items():
            if not isinstance(ranks, tuple) or [*map(type, (*ranks, numel))] != [int, int, int]:
                return False
            if min(*ranks, numel) < 0:
                return False
    return True


class _Lower(Function):
    """Valid values of `lower`: a function, or its import path."""

    def guarded(self, field: str, owner: str, value: Any) -> Any:
        """Return an import path as it is, and a function with checks of its calls."""
        return value if isinstance(value, str) else super().guarded(field, owner, value)

    @property
    def expected(self) -> str:
        """Return a description of valid values, for error messages."""
        return f"{super().expected}, or 'module:function'"


_LOWER = _Lower("site", "operand")
_FIELDS = {
    "name": IDENTIFIER,
    "summary": Kind(lambda value: TEXT.holds(value) and len(value.splitlines()) <= 1, "one sentence, on one line"),
    "lower": _LOWER,
    "clauses": Tuple(instance(Clause, expected="a Clause"), "a tuple of clauses, such as (ON, DIM)"),
    "moves": Kind(lambda value: value in get_args(Moves), f"one of {', '.join(get_args(Moves))}"),
    "before": Kind(_is_text_or_none, f"one of {', '.join(_TRAITS)}"),
    "after": Kind(_is_text_or_none, f"one of {', '.join(_TRAITS)}"),
    "check": Function("spec", "source", "target", "mesh", "shape", optional=True),
    "axes": Function(
        "source",
        "target",
        "mesh",
        returns=Kind(
            lambda value: isinstance(value, tuple) and all(isinstance(axis, str) for axis in value),
            "a tuple of names of mesh axes",
        ),
        optional=True,
    ),
    "traffic": instance(Traffic, expected="its cost, as a Traffic"),
    "buffers": Tuple(
        Kind(lambda value: isinstance(value, str) and value in BUFFERS, ""),
        f"names of {', '.join(BUFFERS)}",
    ),
    "loads": Function(
        "source",
        "target",
        "mesh",
        "shape",
        returns=Kind(_are_loads, "a list with a dict (sender, receiver) → elements for each round"),
        optional=True,
    ),
    "may_be_async": FLAG,
    "may_be_bucketed": FLAG,
    "is_planned": FLAG,
    "if_local": Kind(_is_text_or_none, "the name of a collective"),
    "executed": Functions(
        Kind(lambda value: isinstance(value, str) and [*map(str.isidentifier, value.split("."))] == [True] * 3, ""),
        Function("calls", returns=instance(list, tuple, expected="a list with a tensor for each call")),
        "a dict from the names of torch ops, as in {'mine.swap.default': function}",
    ),
}
"""Field → valid values."""


def _required_clauses(spec: CollectiveSpec) -> tuple[Clause, ...]:
    """Return the clauses that the traits of `spec` require; none if its text names no axes."""
    if not spec.names_axes:
        return ()
    if spec.traits == ("shard", "shard"):
        return (ON, FROM, TO)
    return (ON, *([DIM] if "shard" in spec.traits else []), *([OP] if "partial" in spec.traits else []))


def _lacks_clauses(spec: CollectiveSpec) -> bool:
    """Return whether `spec` lacks a clause that its traits require."""
    return not {clause.argument for clause in _required_clauses(spec)} <= {clause.argument for clause in spec.clauses}


def _repeats_clauses(spec: CollectiveSpec) -> bool:
    """Return whether two clauses have one keyword or one argument."""
    keywords, arguments = {clause.keyword for clause in spec.clauses}, {clause.argument for clause in spec.clauses}
    return len(keywords) < len(spec.clauses) or len(arguments) < len(spec.clauses)


def _repeats_next(buffers: tuple[str, ...]) -> bool:
    """Return whether two neighbouring buffers have one name."""
    return any(buffer == following for buffer, following in itertools.pairwise(buffers))


def _clause_constants(clauses: tuple[Clause, ...]) -> str:
    """Return the names of the constants for `clauses`, for error messages."""
    return ", ".join(clause.keyword.upper() for clause in clauses) or "none"


_RULES: tuple[tuple[Callable[[CollectiveSpec], bool], Callable[[CollectiveSpec], str]], ...] = (
    (
        lambda spec: spec.name.endswith(START),
        lambda spec: (
            f"collective '{spec.name}' has the name of the op that starts '{spec.name.removesuffix(START)}'; rename it"
        ),
    ),
    (
        lambda spec: spec.names_axes and not (spec.before in _TRAITS and spec.after in _TRAITS),
        lambda spec: (
            f"collective '{spec.name}' has the traits {spec.before!r} and {spec.after!r}; expected `before` and "
            f"`after` from {', '.join(_TRAITS)}, or another `moves` than 'axes', with `check` and `axes`"
        ),
    ),
    (
        _repeats_clauses,
        lambda spec: (
            f"collective '{spec.name}' has the clauses {_clause_constants(spec.clauses)}; expected "
            "different keywords and arguments"
        ),
    ),
    (
        _lacks_clauses,
        lambda spec: (
            f"collective '{spec.name}' from {spec.before} to {spec.after} has the clauses "
            f"{_clause_constants(spec.clauses)}; expected {_clause_constants(_required_clauses(spec))} among them"
        ),
    ),
    (
        lambda spec: not spec.names_axes and any(clause.argument == "axes" for clause in spec.clauses),
        lambda spec: (
            f"collective '{spec.name}' moves {spec.moves}, and has the clause ON; leave the clause out, because "
            "its function `axes` returns the mesh axes"
        ),
    ),
    (
        lambda spec: spec.names_axes and spec.axes is not None,
        lambda spec: (
            f"collective '{spec.name}' moves 'axes', and has a function `axes`; leave the function out, or set "
            "`moves` to 'shards', 'elements' or 'edge'"
        ),
    ),
    (
        lambda spec: spec.names_axes and spec.check is not None,
        lambda spec: (
            f"collective '{spec.name}' moves 'axes', and has a function `check`; leave the function out, "
            "because `before` and `after` define the legal steps"
        ),
    ),
    (
        lambda spec: not spec.names_axes and (spec.check is None or spec.axes is None),
        lambda spec: f"collective '{spec.name}' moves {spec.moves}; expected both `check` and `axes`",
    ),
    (
        lambda spec: spec.moves == "elements" and spec.loads is None and not spec.is_local,
        lambda spec: (
            f"collective '{spec.name}' moves elements, and has no `loads`; expected the elements that ranks send"
        ),
    ),
    (
        lambda spec: spec.moves in ("edge", "shards") and spec.loads is not None,
        lambda spec: f"collective '{spec.name}' moves {spec.moves}; only 'elements' and 'axes' have `loads`",
    ),
    (
        lambda spec: spec.moves == "edge" and attrs.evolve(spec.traffic, name="") != Traffic(),
        lambda spec: f"collective '{spec.name}' moves along an edge, which declares its cost; leave `traffic` out",
    ),
    (
        lambda spec: bool(spec.buffers) and (spec.buffers[-1] in PACKED or _repeats_next(spec.buffers)),
        lambda spec: (
            f"collective '{spec.name}' allocates {', '.join(spec.buffers)}; expected different "
            "neighbouring buffers, and the result last"
        ),
    ),
)
"""Conditions of invalid specs, each with its error message."""
