"""What one collective declares: its clauses, the placements that it takes axes between, and its cost.

From a `CollectiveSpec` follow the legal transitions (`steps.transition`), the moves of the planner (`moves.moves`), the
price of an axis (`axis_price`), the verifier, parser and printer of its `spmd` op (`spmdir.dialects.collectives`), and
what a rewrite may say of it. `collectives.py` is the table of specs.
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
from spmdir.reshard.parts import Loads
from spmdir.reshard.traffic import Traffic

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
        place: the line that made it.
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
        """Return the function that `lower` is or names.

        Raises:
            ShardingError: it names none.
        """
        if callable(self.lower):
            return self.lower
        module, _, function = self.lower.partition(":")
        try:
            emitter = getattr(import_module(module), function)
        except (Exception, SystemExit) as error:  # the module is a plug-in's, and its code is executed
            reason = (
                str(error) if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: {error}"
            )
            raise ShardingError(
                f"collective '{self.name}' is lowered by {self.lower!r}, which cannot be imported: {reason}; "
                "expected a function, or 'module:function'"
            ) from error
        return _LOWER.guarded("lower", repr(self), emitter)

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
        assert self.axes is not None  # which `_RULES` requires
        axes = self.axes(source, target, mesh)
        try:
            for axis in axes:
                mesh.require(axis)
        except ShardingError as error:
            raise PluginError(f"`axes` of {self!r} gives {list(axes)}: {error.message}", self.place) from None
        return axes

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


_TRAITS = ("replicated", "shard", "partial")


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _are_loads(value: object) -> bool:
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(loads, Mapping) for loads in value)
        and all(
            isinstance(ranks, tuple) and [*map(type, (*ranks, numel))] == [int, int, int] and min(*ranks, numel) >= 0
            for loads in value
            for ranks, numel in loads.items()
        )
    )


class _Lower(Function):
    """The kind of `lower`: a function, or the text that says where it is."""

    def guarded(self, field: str, owner: str, value: Any) -> Any:
        return value if isinstance(value, str) else super().guarded(field, owner, value)

    @property
    def expected(self) -> str:
        return f"{super().expected}, or 'module:function'"


_LOWER = _Lower("site", "operand")
_FIELDS = {
    "name": IDENTIFIER,
    "summary": Kind(lambda value: TEXT.holds(value) and len(value.splitlines()) <= 1, "one sentence, on one line"),
    "lower": _LOWER,
    "clauses": Tuple(instance(Clause, expected="a Clause"), "a tuple of clauses, as in (ON, DIM)"),
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
    "traffic": instance(Traffic, expected="a Traffic: its cost"),
    "buffers": Tuple(
        Kind(lambda value: isinstance(value, str) and value in BUFFERS, ""),
        f"names of {', '.join(BUFFERS)}",
    ),
    "loads": Function(
        "source",
        "target",
        "mesh",
        "shape",
        returns=Kind(_are_loads, "a list with a dict for each round, of (sender, receiver) → elements"),
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
"""Field → its kind."""


def _needed(spec: CollectiveSpec) -> tuple[Clause, ...]:
    """Return the clauses that a collective between the traits of `spec` needs."""
    if not spec.names_axes:
        return ()
    if spec.traits == ("shard", "shard"):
        return (ON, FROM, TO)
    return (ON, *([DIM] if "shard" in spec.traits else []), *([OP] if "partial" in spec.traits else []))


def _lacks_clauses(spec: CollectiveSpec) -> bool:
    return not {clause.argument for clause in _needed(spec)} <= {clause.argument for clause in spec.clauses}


def _repeats_clauses(spec: CollectiveSpec) -> bool:
    keywords, arguments = {clause.keyword for clause in spec.clauses}, {clause.argument for clause in spec.clauses}
    return min(len(keywords), len(arguments)) < len(spec.clauses)


def _repeats_next(buffers: tuple[str, ...]) -> bool:
    return any(one == following for one, following in itertools.pairwise(buffers))


def _constants(clauses: tuple[Clause, ...]) -> str:
    """Return the names of the constants of `clauses`, for messages."""
    return ", ".join(clause.keyword.upper() for clause in clauses) or "none"


_RULES: tuple[tuple[Callable[[CollectiveSpec], bool], Callable[[CollectiveSpec], str]], ...] = (
    (
        lambda spec: spec.name.endswith(START),
        lambda spec: (
            f"a collective is named '{spec.name}', as the op that starts '{spec.name.removesuffix(START)}' "
            "is; rename it"
        ),
    ),
    (
        lambda spec: spec.names_axes and not (spec.before in _TRAITS and spec.after in _TRAITS),
        lambda spec: (
            f"collective '{spec.name}' goes from {spec.before!r} to {spec.after!r}; expected two of "
            f"{', '.join(_TRAITS)}, or another `moves` than 'axes', with `check` and `axes`"
        ),
    ),
    (
        _repeats_clauses,
        lambda spec: (
            f"collective '{spec.name}' has the clauses {_constants(spec.clauses)}; expected another keyword "
            "and another argument for each"
        ),
    ),
    (
        _lacks_clauses,
        lambda spec: (
            f"collective '{spec.name}' from {spec.before} to {spec.after} has the clauses "
            f"{_constants(spec.clauses)}; it needs {_constants(_needed(spec))}"
        ),
    ),
    (
        lambda spec: not spec.names_axes and any(clause.argument == "axes" for clause in spec.clauses),
        lambda spec: (
            f"collective '{spec.name}' moves {spec.moves}, and has the clause ON; leave that out, since its "
            "function `axes` gives the mesh axes"
        ),
    ),
    (
        lambda spec: spec.names_axes and spec.axes is not None,
        lambda spec: (
            f"collective '{spec.name}' moves the axes that its text names, and has a function `axes`; leave "
            "that out, or give `moves` as 'shards', 'elements' or 'edge'"
        ),
    ),
    (
        lambda spec: spec.names_axes and spec.check is not None,
        lambda spec: (
            f"collective '{spec.name}' moves the axes that its text names, and has a function `check`; leave "
            "that out: `before` and `after` say what is legal"
        ),
    ),
    (
        lambda spec: not spec.names_axes and (spec.check is None or spec.axes is None),
        lambda spec: f"collective '{spec.name}' moves {spec.moves}; expected both `check` and `axes`",
    ),
    (
        lambda spec: spec.moves == "elements" and spec.loads is None and not spec.is_local,
        lambda spec: f"collective '{spec.name}' moves elements, and has no `loads`; expected what ranks send",
    ),
    (
        lambda spec: spec.moves in ("edge", "shards") and spec.loads is not None,
        lambda spec: f"collective '{spec.name}' moves {spec.moves}; only 'elements' and 'axes' have `loads`",
    ),
    (
        lambda spec: spec.moves == "edge" and attrs.evolve(spec.traffic, name="") != Traffic(),
        lambda spec: f"collective '{spec.name}' moves along an edge, which has the cost; leave `traffic` out",
    ),
    (
        lambda spec: bool(spec.buffers) and (spec.buffers[-1] in PACKED or _repeats_next(spec.buffers)),
        lambda spec: (
            f"collective '{spec.name}' allocates {', '.join(spec.buffers)}; expected another buffer after each, "
            "the result last"
        ),
    ),
)
"""(Whether a spec is wrong, the message then)."""
