"""The base classes of placements. The whole compiler takes its facts about placements from them.

A placement describes how the ranks along one mesh axis hold a tensor. Its class is an `attrs.frozen` class with a text,
a trait, reference semantics (`distribute`, `collect`) and the methods that its trait requires. This module calls only
methods of tensors, so it needs no tensor library.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from spmdir.core.declared_fields import evaluated, place
from spmdir.core.dtype import DType, as_dtype
from spmdir.core.errors import ParseError, ShardingError, SpmdirError, shown, wrong_argument
from spmdir.core.intervals import Ranges
from spmdir.core.limits import ENUMERATED
from spmdir.core.placement.edge import Edge
from spmdir.core.placement.error_bound import EXACT, ErrorBound
from spmdir.core.placement.packing import convert_tensor
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.text import head_of, print_placement, read_placement

_TYPES: dict[str, type[Placement]] = {}
"""Name in texts → class. A class registers itself when it is defined."""

_OF_DTENSOR = {"Replicate": "R", "Shard": "S(dim)", "Partial": "P(op)"}
"""Name of a placement in DTensor → its text in spmdir."""

_MEMOS: list[Any] = []
"""Memoised functions of placement texts; they are cleared when a name gets another class."""

Memo = TypeVar("Memo", bound=Callable[..., Any])

SHIPPED = {
    "R": "spmdir.core.placement.standard",
    "S": "spmdir.core.placement.standard",
    "P": "spmdir.core.placement.standard",
    "?": "spmdir.core.placement.standard",
    "Cyclic": "spmdir.placements.cyclic",
    "Strided": "spmdir.placements.strided",
    "Ragged": "spmdir.placements.ragged",
    "ZigZag": "spmdir.placements.zigzag",
    "Masked": "spmdir.placements.masked",
    "Norm": "spmdir.placements.norm",
    "Quantised": "spmdir.placements.quantised",
    "Padded": "spmdir.placements.padded",
    "Shadow": "spmdir.placements.shadow",
    "Drawn": "spmdir.placements.drawn",
    **dict.fromkeys(
        ("Home", "Grouped", "Slots", "Cleared", "LocalOrder", "LocalCounts", "Arrivals"),
        "spmdir.placements.routed_rows",
    ),
}
"""Name in texts → module of the class, which is imported on first use."""

TRAITS = ("replicated", "shard", "partial", "other", "open")
"""The traits of placements."""

Noise = Callable[[Any], Any]
"""tensor → random tensor of the same shape, type, device and magnitude."""

LocalType = tuple[tuple[int, ...], DType]
"""Shape and element type of a local tensor."""


class Placement:
    """How the ranks along one mesh axis hold a tensor.

    Attributes:
        text: the template of its text, with all fields: `Cyclic({dim}, {block})`.
        trait: "replicated" (every rank has the value), "shard" (each rank has a shard of `dim`), "partial" (the
            value is the reduction of the ranks' partial values), "other" (its edges define it) or "open" (the
            compiler decides).
        dim: the sharded tensor dimension, for the trait "shard".
        op: the reduction of the partial values, for the trait "partial".
        error: the largest error of its steps; see `spmdir.core.placement.error_bound`.
        splits: whether the placement on an axis equals the same placement on all sub-axes of the axis, in order.
        rounds: whether the value is computed from the local tensors, and is therefore equal only up to rounding.
        rules: the strategies of ops with this placement, as text: `aten.chunk: (Cyclic(dim, 2)) -> (S(dim)…)`.
        offered: whether propagation considers the placement without an annotation, for the ops in `rules`. It must
            be exact.
        is_searched: whether propagation considers the placement without an annotation if a strategy connects it to a
            considered placement. Otherwise only a later pass uses it.
        is_routed: whether the positions of a rank depend on data. No step is derived from and to the placement, and
            only ops that need no positions and no local sizes take it.
        varies: whether the number of a rank's elements is data. Times and memory multiply it by `Topology.imbalance`.
        nests_as_mesh: whether several axes with the placement must nest in the order of the mesh.
        has_void_rows: whether local tensors have padding rows of unspecified elements, so ops cannot combine rows.
        is_opaque: whether only strategies in text use the placement, because the elements of local tensors are not
            those of the tensor.
        sample_shapes: additional shapes for `spmd check-placement`, if `check` accepts few of its default shapes.
        unchecked: name of a law, or of an op of its strategies → why `spmd check-placement` cannot check it.
    """

    text: ClassVar[str]
    trait: ClassVar[str] = "other"
    error: ClassVar[ErrorBound] = EXACT
    splits: ClassVar[bool] = False
    rounds: ClassVar[bool] = False
    rules: ClassVar[str] = ""
    offered: ClassVar[bool] = False
    is_searched: ClassVar[bool] = True
    is_routed: ClassVar[bool] = False
    is_opaque: ClassVar[bool] = False
    has_void_rows: ClassVar[bool] = False
    varies: ClassVar[bool] = False
    nests_as_mesh: ClassVar[bool] = False
    sample_shapes: ClassVar[Sequence[tuple[int, ...]]] = ()
    unchecked: ClassVar[Mapping[str, str]] = {}
    dim: int | None = None
    op: str | None = None

    @property
    def kind(self) -> str | None:
        """Return the kind of reduction: equal for placements whose reductions commute; None without a reduction.

        For example, that of P(sum) is equal for all sums, so several axes may have P(sum) at once.
        """
        return derived_kind(self) if self.trait == "other" else None

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Check the declarations of a new placement class. If the class declares a `text`, register it for the parser.

        Raises:
            ShardingError: a declaration is invalid, or another class has the name in `text`.
        """
        super().__init_subclass__(**arguments)
        _check_class_variables(cls)
        if "local_shape" in vars(cls):
            raise ShardingError(
                f"{cls.__name__} declares `local_shape`, which is never called; expected `local_type(shape, dtype, "
                "count, index)`, which returns the shape and the element type of the local tensor of a rank"
            )
        if "text" in vars(cls):
            _check_error(cls)
            _check_offered(cls)
            _register(cls)

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        """Return the local tensors of `count` ranks; `noise(t)` returns random values with the shape of `t`.

        Raises:
            UnsupportedError: the placement cannot represent the values.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no `distribute`; expected a method that returns the local tensors: define it"
        )

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        """Return the tensor of global `shape` with the local tensors `shards`: the inverse of `distribute`."""
        raise NotImplementedError(
            f"{type(self).__name__} has no `collect`; expected a method that returns the global tensor: define it"
        )

    def collect_as(self, shards: Sequence[Any], shape: tuple[int, ...], dtype: DType) -> Any:
        """Return `collect(shards, shape)`, converted to the element type `dtype` of the tensor."""
        tensor = self.collect(shards, shape)
        return convert_tensor(tensor, dtype) if self.has_own_type else tensor

    def local_type(self, shape: tuple[int, ...], dtype: DType, count: int, index: int) -> LocalType:
        """Return the shape and element type of the local tensor of rank `index` of `count`.

        Both may differ from `shape` and `dtype` of the tensor, also in the number of dimensions. If other axes shard
        the tensor, they come first, and `shape` is the shape of a shard.
        """
        return shape, dtype

    def local_types(self, shape: tuple[int, ...], dtype: DType, count: int) -> frozenset[LocalType]:
        """Return the set of results of `local_type` on `count` ranks.

        Raises:
            ShardingError: there are more than ENUMERATED ranks, and the placement is evaluated rank by rank.
        """
        if not self.has_own_type:
            return frozenset([(shape, dtype)])
        return frozenset(own_type(self, shape, dtype, count, index) for index in enumerated(self, count))

    @property
    def has_own_type(self) -> bool:
        """Return whether the class overrides `local_type`, rather than following its trait."""
        return type(self).local_type is not Placement.local_type

    def keeps(self, dim: int | None) -> bool:
        """Return whether dimension `dim` of a local tensor has the elements of the tensor, unchanged and in order.

        Steps over other axes may then work on local tensors along `dim`. With None: whether each element of the tensor
        has one element of the local tensor, at the same position on all ranks. There may be further elements.
        Elementwise reductions over other axes then work on local tensors.
        """
        return not self.has_own_type

    def check(self, shape: tuple[int, ...], count: int) -> None:
        """Raise SpmdirError if a tensor of `shape` cannot have this placement over `count` ranks."""

    @property
    def is_demanding(self) -> bool:
        """Return whether only some shapes can have this placement."""
        return type(self).check is not Placement.check

    def supports(self, dtype: DType) -> bool:
        """Return whether tensors of element type `dtype` can have this placement."""
        return True

    def held_ranges(self, shape: tuple[int, ...], count: int, index: int) -> Mapping[int, Ranges] | None:
        """Return dimension → positions that rank `index` of `count` has, in local order; the rest is padding.

        Returns None if the local tensors do not consist of elements of the tensor of `shape`.
        """
        return {} if self.trait == "replicated" else None

    def edges(self) -> Iterable[Edge]:
        """Return the declared edges. An edge to a placement or trait replaces the step that the trait implies."""
        return ()

    def lift(self, rule: Any, strategies: Sequence[Any]) -> Iterable[Any]:
        """Return strategies of an op with this placement, in addition to those that its trait implies.

        Args:
            rule: the `spmdir.rules.OpRule` of the op.
            strategies: the strategies of the rule without plug-in placements, as `spmdir.rules.Strategy` objects.
        """
        return ()

    def __str__(self) -> str:
        return print_placement(self)


def _check_class_variables(kind: type[Placement]) -> None:
    """Raise ShardingError if a class declares a class variable of Placement as a field."""
    annotations = inspect.get_annotations(Placement)
    for name, annotation in inspect.get_annotations(kind).items():
        if name in annotations and "ClassVar" in str(annotations[name]) and "ClassVar" not in str(annotation):
            raise ShardingError(
                f"{kind.__name__} declares `{name}` as a field; expected a class attribute, since all "
                f"placements of a class have one `{name}`: write `{name}: ClassVar[…] = …`"
            )


def own_type(placement: Placement, shape: tuple[int, ...], dtype: DType, count: int, index: int) -> LocalType:
    """Call `local_type` of a placement, check its result, and return it with the element type as a DType.

    Raises:
        ShardingError: the result is not sizes and an element type.
    """
    if not placement.has_own_type:
        return placement.local_type(shape, dtype, count, index)
    declared_type: Any = evaluated("local_type", placement.local_type, shape, dtype, count, index)
    try:
        sizes, kind = declared_type
        sizes, kind = tuple(sizes), as_dtype(kind)
        if all(type(size) is int and size >= 0 for size in sizes):
            return sizes, kind
    except (SpmdirError, TypeError, ValueError):
        pass
    raise ShardingError(
        f"`local_type` of {placement} gives {shown(declared_type)}; expected the sizes and the element type of what a "
        "rank holds, as in ((4, 6), 'bf16')",
        place(placement.local_type),
    )


def enumerated(placement: Placement, count: int) -> range:
    """Return the indices of `count` ranks, for a placement that is evaluated rank by rank.

    Raises:
        ShardingError: they are more than ENUMERATED.
    """
    if count > ENUMERATED.most:
        raise ShardingError(
            f"{placement} is evaluated rank by rank, and the axis has {count} ranks; expected at most "
            f"{ENUMERATED.most}, or a placement whose class overrides `runs`"
        )
    return range(count)


class PartialPlacement(Placement):
    """A placement whose value is `after(reduction over ranks of before(partial value))`.

    Attributes:
        reduce: the reduction of the process group, a key of `spmdir.core.placement.reductions.REDUCTIONS`.
        identity: the neutral element of the reduction, by default that of a sum; None if there is none.
        copies: whether the value itself is a valid partial value on every rank, as for a maximum.
        kind: placements of one kind commute, so several axes may have them at once and are reduced together. If an
            edge to or from `P(op)` changes nothing, it is the kind of that placement; else it is the text.
    """

    trait: ClassVar[str] = "partial"
    splits: ClassVar[bool] = True
    rounds: ClassVar[bool] = True
    reduce: str = "sum"
    identity: float | None = -0.0
    copies: bool = False

    @property
    def op(self) -> str:  # type: ignore[override]
        return str(self)

    @property
    def kind(self) -> str:
        return derived_kind(self)

    @property
    def from_replicated(self) -> bool:
        """Return whether a replicated value can be converted to this placement without communication."""
        return self.copies or self.identity is not None

    def before(self, partial: Any) -> Any:
        """Return the operand of the reduction for the partial value of a rank."""
        return partial

    def after(self, reduced: Any, count: int) -> Any:
        """Return the value, computed from the result `reduced` of the reduction over `count` ranks."""
        return reduced

    def passes(self, clause: str, reductions: tuple[str, ...]) -> bool:
        """Return whether a clause of a rule lets partial values of this placement pass through the op.

        Args:
            clause: the name of the clause: "moves" (elements are moved, not changed), "carries" (elements are moved or
                converted), "linear", "multilinear" or "commutes" (with the `reductions` of the clause).
        """
        return clause == "moves"

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        """Return partial values that reduce to `tensor`.

        - Without `before` and `after`: those of `P(reduce)`, which are random.
        - Else, without an identity: a copy of the tensor on each rank.
        - Else the identity on each rank but the last one, and the tensor on the last one.
        """
        kind = type(self)
        is_plain_reduction = kind.before is PartialPlacement.before and kind.after is PartialPlacement.after
        if is_plain_reduction:
            return parse_placement(f"P({self.reduce})").distribute(tensor, count, noise)
        # With `before` or `after`, only copies, or the identity on all ranks but one, are known to reduce to the value.
        if self.identity is None:
            return [tensor.clone() for _ in range(count)]
        return [*(tensor.new_full(tensor.shape, self.identity) for _ in range(count - 1)), tensor.clone()]

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        reduced = self.before(shards[0])
        for partial in shards[1:]:
            reduced = REDUCTIONS[self.reduce].combine(reduced, self.before(partial))
        return self.after(reduced, len(shards))

    def supports(self, dtype: DType) -> bool:
        return not dtype.is_bool


def parse_placement(text: str) -> Placement:
    """Parse a placement: `R`, `S(0)`, `P`, `P(sum)`, `?`, or one of a plug-in.

    Args:
        text: the text of one placement.

    Raises:
        ParseError: the text is not a placement.
        ShardingError: a field has a value that it cannot have.

    Example:
        >>> spmdir.placement.parse_placement("S(1)") == spmdir.S(1)
        True
    """
    if not isinstance(text, str):
        raise wrong_argument("text", text, "a placement, as in 'S(0)'")
    return read_placement(placement_type(text), text)


def placement_type(text: str) -> type[Placement]:
    """Return the class of a placement, given its text or its name.

    Raises:
        ParseError: there is no placement of this name.
    """
    head = head_of(text)
    kind = placement_class(head)
    if kind is None:
        names = dict.fromkeys([*SHIPPED, *_TYPES])
        hint = f"; DTensor's {head} is written {_OF_DTENSOR[head]}" if head in _OF_DTENSOR else ""
        raise ParseError(
            f"unknown placement '{' '.join(text.split())}'; expected one of {', '.join(names)}, "
            f"or that of a plug-in (--load-plugin file.py){hint}"
        )
    return kind


def placement_class(name: str) -> type[Placement] | None:
    """Return the class of the placement `name`, of spmdir or of a plug-in; None if there is none."""
    if name not in _TYPES and name in SHIPPED:
        import_module(SHIPPED[name])
    return _TYPES.get(name)


def placement_classes() -> dict[str, type[Placement]]:
    """Return name → class of all placements: first those of spmdir, then those of plug-ins."""
    for module in SHIPPED.values():
        import_module(module)
    return {name: _TYPES[name] for name in dict.fromkeys([*SHIPPED, *_TYPES])}


def until_declared(memo: Memo) -> Memo:
    """Register a memoised function of placement texts, to be cleared when a name gets another class."""
    _MEMOS.append(memo)
    return memo


def edge_between(source: Placement, target: Placement) -> Edge | None:
    """Return the first edge from `source` to `target` that `source` declares, else the first that `target` declares.

    Returns None if there is no such edge.
    """
    of_source = (edge for edge in source.edges() if edge.target is not None and _fits(edge, edge.target, target))
    of_target = (edge for edge in target.edges() if edge.source is not None and _fits(edge, edge.source, source))
    return next(of_source, None) or next(of_target, None)


@lru_cache(maxsize=4096)
def derived_kind(placement: Placement) -> str:
    """Return the kind of the `P(op)` to or from which `placement` declares an edge that changes nothing.

    For example, `Masked` declares an edge to `P(sum)` that returns its operand: a masked value is a partial sum. So its
    kind is that of `P(sum)`. Without such an edge, the kind is the text of the placement, and it commutes only with
    itself.
    """
    for edge in placement.edges():
        end = edge.target or edge.source or ""
        if _changes_nothing(edge) and head_of(end) == "P":
            kind = parse_placement(end).kind
            if kind is not None:
                return kind
    return str(placement)


def _changes_nothing(edge: Edge) -> bool:
    """Return whether an edge sends nothing and returns its operand unchanged.

    It is called with an object that no op accepts, so an edge that computes something fails.
    """
    marker = object()
    try:
        return edge.by is None and edge.lower(marker, None) is marker
    except Exception:
        return False  # the lowering computes something


def _fits(edge: Edge, end: str, placement: Placement) -> bool:
    """Return whether `placement` is at this `end` of an edge: a trait that it has, or the text of an equal placement.

    For a trait, `edge.when` must also accept the placement.
    """
    if end not in TRAITS:
        return parse_placement(end) == placement
    return placement.trait == end and (edge.when is None or edge.when(placement))


def _check_error(kind: type[Placement]) -> None:
    """Raise ShardingError unless `error` of a placement class is an ErrorBound, or a property that returns one."""
    error = kind.error
    if not isinstance(error, (ErrorBound, property)):
        raise ShardingError(
            f"`error` of {kind.__module__}.{kind.__qualname__} is {shown(error)}; expected an ErrorBound, as in "
            f"`error = ErrorBound({error if isinstance(error, float) else 1 / 256})`: the largest error for each rank, "
            "relative to its largest absolute element"
        )


def _check_offered(kind: type[Placement]) -> None:
    """Raise ShardingError if a placement class is both `offered` and lossy: then the search could lose precision."""
    if kind.offered and isinstance(kind.error, ErrorBound) and kind.error:
        raise ShardingError(
            f"{kind.__module__}.{kind.__qualname__} is `offered` and lossy; expected an exact placement, since only "
            "the user decides where precision is lost"
        )


def _register(kind: type[Placement]) -> None:
    """Register a placement class under the name at the head of its text.

    A class that is defined again replaces the earlier one, and memoised functions of placement texts are cleared.

    Raises:
        ShardingError: the text is malformed, or another class has this name.
    """
    head = head_of(kind.text)
    if not re.fullmatch(r"(\w+|\?)(\(.*\))?", kind.text):
        raise ShardingError(
            f"the text of {kind.__module__}.{kind.__qualname__} is '{kind.text}'; expected a name, and fields in round "
            "brackets, as in 'Cyclic({dim}, {block})'"
        )
    existing, shipped = _TYPES.get(head), SHIPPED.get(head)
    if shipped not in (None, kind.__module__):
        raise ShardingError(
            f"placement '{head}' is declared by {shipped}, which comes with spmdir, and by "
            f"{kind.__module__}.{kind.__qualname__}; expected a different name for each: rename the second "
            "class"
        )
    # attrs creates a class twice if it has slots, and a file may be executed again.
    if existing is not None and (existing.__module__, existing.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ShardingError(
            f"placement '{head}' is declared by {existing.__module__}.{existing.__qualname__} and by "
            f"{kind.__module__}.{kind.__qualname__}; expected a different name for each: rename one of them"
        )
    _TYPES[head] = kind
    if existing is not None:
        for memo in _MEMOS:
            memo.cache_clear()
