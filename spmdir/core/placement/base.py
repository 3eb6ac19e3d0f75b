"""What a placement type declares; every stage of the compiler reads it from here.

A placement says how a tensor is laid out over the ranks of one mesh axis. Its class is one `attrs.frozen` value with a
text, a trait, reference semantics (`distribute`, `collect`) and what its trait asks for. Tensors are used by their
methods alone, so this module needs no tensor library.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from spmdir.core.arguments import instance
from spmdir.core.declared_fields import evaluated, place
from spmdir.core.dtype import DType, as_dtype
from spmdir.core.errors import ParseError, ShardingError, SpmdirError, shown, wrong_argument
from spmdir.core.intervals import Ranges, Run, joined, length, summed_runs
from spmdir.core.limits import ENUMERATED
from spmdir.core.placement.edge import Edge
from spmdir.core.placement.error import EXACT, ErrorBound
from spmdir.core.placement.packing import convert_tensor
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.text import head_of, print_placement, read_placement

_TYPES: dict[str, type[Placement]] = {}
"""Name in texts → class. Classes add themselves when they are made, as Python's own subclass lists do."""

_OF_DTENSOR = {"Replicate": "R", "Shard": "S(dim)", "Partial": "P(op)"}
"""Name of a placement in DTensor → how a text spells it."""

_MEMOS: list[Any] = []
"""Memoised functions of texts, whose results hold while each name keeps its class."""

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
}
"""Name in texts → the module that declares it, imported when a text first names it."""

TRAITS = ("replicated", "shard", "partial", "other", "open")
"""What a placement can be like."""

Noise = Callable[[Any], Any]
"""tensor → random values of its shape, type and device, of the size of its values."""


LocalType = tuple[tuple[int, ...], DType]
"""Shape and element type of what a rank holds."""


class Placement:
    """How a tensor is laid out over the ranks of one mesh axis.

    Attributes:
        text: the template of its text, naming every field: `Cyclic({dim}, {block})`.
        trait: "replicated" (every rank has the value), "shard" (each rank has a shard of `dim`), "partial" (the
            value is the reduction of the ranks' partial values), "other" (what its own edges say) or "open" (left to
            the compiler).
        dim: the sharded tensor dimension, for the trait "shard".
        op: the reduction of the partial values, for the trait "partial".
        error: how far what its steps make may be off; see `spmdir.core.placement.error`.
        splits: whether an axis with this placement is the same as its sub-axes with it, nested in order.
        rounds: whether the value is computed from what ranks hold, so that it is right but for rounding.
        rules: strategies of ops in which it occurs, as text: `aten.chunk: (Cyclic(dim, 2)) -> (S(dim)…)`.
        offered: whether propagation considers it, where no annotation does, for the ops that `rules` name it for. It
            must be exact.
        sample_shapes: shapes that `spmd check-placement` tries beside its own, for what `check` takes few of.
        unchecked: name of a law, or of an op of its strategies → why `spmd check-placement` cannot check it.
    """

    text: ClassVar[str]
    trait: ClassVar[str] = "other"
    error: ClassVar[ErrorBound] = EXACT
    splits: ClassVar[bool] = False
    rounds: ClassVar[bool] = False
    rules: ClassVar[str] = ""
    offered: ClassVar[bool] = False
    sample_shapes: ClassVar[Sequence[tuple[int, ...]]] = ()
    unchecked: ClassVar[Mapping[str, str]] = {}
    dim: int | None = None
    op: str | None = None

    @property
    def kind(self) -> str | None:
        """Return a key of the placements that this one commutes with; None if it commutes with all, as shards do."""
        return derived_kind(self) if self.trait == "other" else None

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _check_class_variables(cls)
        if "local_shape" in vars(cls):
            raise ShardingError(
                f"{cls.__name__} declares `local_shape`, which is not asked; expected `local_type(shape, dtype, count, "
                "index)`, which gives the shape and the element type of what a rank holds"
            )
        if "text" in vars(cls):
            _check_error(cls)
            _check_offered(cls)
            _register(cls)

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        """Return the local tensor of each of `count` ranks; `noise(t)` returns random values shaped like `t`.

        Raises:
            UnsupportedError: the placement cannot represent the values.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what ranks hold; give it a `distribute`")

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        """Return the tensor of global `shape` of the ranks' local tensors `shards`: the inverse of `distribute`."""
        raise NotImplementedError(f"{type(self).__name__} does not say what ranks hold; give it a `collect`")

    def collect_as(self, shards: Sequence[Any], shape: tuple[int, ...], dtype: DType) -> Any:
        """Return `collect(shards, shape)` in the element type `dtype` of the tensor, which ranks may not hold."""
        tensor = self.collect(shards, shape)
        return convert_tensor(tensor, dtype) if self.has_own_type else tensor

    def local_type(self, shape: tuple[int, ...], dtype: DType, count: int, index: int) -> LocalType:
        """Return the shape and the element type of what rank `index` of `count` holds of a tensor of `shape`, `dtype`.

        Both may differ from the tensor's: a rank may hold more or fewer dimensions, or other elements. An axis whose
        placement says so comes after those that shard: it is given what these leave to the rank.
        """
        return shape, dtype

    def local_types(self, shape: tuple[int, ...], dtype: DType, count: int) -> frozenset[LocalType]:
        """Return what `local_type` gives on `count` ranks, each once.

        Raises:
            ShardingError: there are more than ENUMERATED ranks, and the placement must be asked about each.
        """
        if not self.has_own_type:
            return frozenset([(shape, dtype)])
        return frozenset(own_type(self, shape, dtype, count, index) for index in enumerated(self, count))

    @property
    def has_own_type(self) -> bool:
        """Return whether what ranks hold is not told by the trait: `local_type` says it."""
        return type(self).local_type is not Placement.local_type

    def keeps(self, dim: int | None) -> bool:
        """Return whether ranks hold the elements of the tensor along dimension `dim` as they are, in order.

        Steps of other axes then work along it on what ranks hold. With None: whether a rank holds one element for each
        of the tensor, perhaps among others, at the same place on all ranks, so that elementwise reductions over other
        axes do.
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
        """Return dimension → the positions of it that rank `index` of `count` holds, in local order from its start on.

        What follows them on the rank is padding. None where what ranks hold are not elements of the tensor of `shape`.
        """
        return {} if self.trait == "replicated" else None

    def edges(self) -> Iterable[Edge]:
        """Return the declared steps. A step to a placement or trait replaces the one that the trait implies."""
        return ()

    def lift(self, rule: Any, strategies: Sequence[Any]) -> Iterable[Any]:
        """Return the strategies of an op in which this placement occurs, besides those that its trait implies.

        Args:
            rule: the `spmdir.rules.OpRule` of the op.
            strategies: those of the rule without plug-in placements, each a `spmdir.rules.Strategy`.
        """
        return ()

    def __str__(self) -> str:
        return print_placement(self)


def _check_class_variables(kind: type[Placement]) -> None:
    """Raise ShardingError if a class declares as a field what placements have for the whole class."""
    annotations = inspect.get_annotations(Placement)
    for name, annotation in inspect.get_annotations(kind).items():
        if name in annotations and "ClassVar" in str(annotations[name]) and "ClassVar" not in str(annotation):
            raise ShardingError(
                f"{kind.__name__} declares `{name}` as a field; it is the same for all placements of the class: write "
                f"`{name}: ClassVar[…] = …`"
            )


class ShardPlacement(Placement):
    """A placement that shards dimension `dim`, its first field: every position is on exactly one rank.

    All else follows from `ranges`: local shapes, distribution, slices, gathers, exchanges, and the strategies of rules.
    """

    trait: ClassVar[str] = "shard"
    has_own_type: ClassVar[bool] = False  # type: ignore[assignment]
    dim: int

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "local_type" in vars(cls):
            raise ShardingError(
                f"{cls.__name__} shards a dimension and declares `local_type`; what its ranks hold follows from "
                "`ranges`. Where they hold something else, as padding or another element type, derive it from "
                "Placement and declare `edges`, as spmdir.placements.padded does"
            )

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.dim, int):
            raise wrong_argument("dim", self.dim, "a number from 0 on")
        if self.dim < 0:
            # It has no hash yet, by which texts are remembered.
            text = print_placement.__wrapped__(self)
            raise ShardingError(f"{text} shards no dimension; expected one counted from 0")

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        """Return the (start, end) ranges of positions of `size` on rank `index` of `count`, in its local order."""
        raise NotImplementedError(f"{type(self).__name__} does not say what ranks hold; give it `ranges`")

    def runs(self, size: int, count: int) -> tuple[Run, ...]:
        """Return the runs of neighbouring ranks whose shards of `size` have one length, in the order of ranks.

        Computed rank by rank unless a class overrides it, as large meshes need. `spmd check-placement` compares it
        with `ranges`.

        Raises:
            ShardingError: there are more than ENUMERATED ranks, and the placement must be asked about each.
        """
        lengths = (length(self.ranges(size, count, index)) for index in enumerated(self, count))
        return summed_runs([(1, [(index, 1, local_length) for index, local_length in enumerate(lengths)])], count)

    def stretches(self, size: int, count: int) -> int:
        """Return an upper bound of the number of ranges of `size` on all ranks together."""
        return count

    def scaled(self, inner: int) -> Placement | None:
        """Return this placement after every position has become `inner` positions; None if there is none."""
        return self if inner == 1 else None

    def unscaled(self, inner: int) -> Placement | None:
        """Return the inverse of `scaled`."""
        return self if inner == 1 else None

    def inside(self, outer: int) -> Placement | None:
        """Return the placement of each of `outer` equal blocks of the dimension, the same in every block; None if there
        is none."""
        return self if outer == 1 else None

    def local_type(self, shape: tuple[int, ...], dtype: DType, count: int, index: int) -> LocalType:
        local_size = shard_length(self, shape[self.dim], count, index)
        return (*shape[: self.dim], local_size, *shape[self.dim + 1 :]), dtype

    def local_types(self, shape: tuple[int, ...], dtype: DType, count: int) -> frozenset[LocalType]:
        lengths = shard_lengths(((self, count),), shape[self.dim])
        return frozenset(((*shape[: self.dim], local_size, *shape[self.dim + 1 :]), dtype) for local_size in lengths)

    def held_ranges(self, shape: tuple[int, ...], count: int, index: int) -> Mapping[int, Ranges]:
        return {self.dim: self.ranges(shape[self.dim], count, index)}

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        size = tensor.shape[self.dim]
        return [take(tensor, self.dim, self.ranges(size, count, index)).clone() for index in range(count)]

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        tensor = shards[0].new_empty(shape)
        for index, shard in enumerate(shards):
            offset = 0
            for start, end in self.ranges(shape[self.dim], len(shards), index):
                tensor.narrow(self.dim, start, end - start).copy_(shard.narrow(self.dim, offset, end - start))
                offset += end - start
        return tensor


def own_type(placement: Placement, shape: tuple[int, ...], dtype: DType, count: int, index: int) -> LocalType:
    """Return what `local_type` of a placement says, with the element type as a value.

    Raises:
        ShardingError: it says something else than sizes and an element type.
    """
    if not placement.has_own_type:
        return placement.local_type(shape, dtype, count, index)
    said: Any = evaluated("local_type", placement.local_type, shape, dtype, count, index)
    try:
        sizes, kind = said
        sizes, kind = tuple(sizes), as_dtype(kind)
        if all(type(size) is int and size >= 0 for size in sizes):
            return sizes, kind
    except (SpmdirError, TypeError, ValueError):
        pass
    raise ShardingError(
        f"`local_type` of {placement} gives {shown(said)}; expected the sizes and the element type of what a rank "
        "holds, as in ((4, 6), 'bf16')",
        place(placement.local_type),
    )


def take(tensor: Any, dim: int, ranges: Ranges) -> Any:
    """Return the positions `ranges` of dimension `dim`, in their order; a view if they are one range."""
    if len(ranges) == 1:
        return tensor.narrow(dim, ranges[0][0], ranges[0][1] - ranges[0][0])
    shape = list(tensor.shape)
    shape[dim] = length(ranges)
    result, offset = tensor.new_empty(shape), 0
    for start, end in ranges:
        result.narrow(dim, offset, end - start).copy_(tensor.narrow(dim, start, end - start))
        offset += end - start
    return result


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and [*map(type, value)] == [int, int]


@lru_cache(maxsize=65536)
def check_partition(placement: ShardPlacement, size: int, count: int) -> None:
    """Raise ShardingError unless every one of `size` positions is on exactly one of `count` ranks.

    A placement that gives its `runs` at once is not asked rank by rank here; `spmd check-placement` does that.
    """
    if type(placement).runs is not ShardPlacement.runs:
        return
    local = [placement.ranges(size, count, index) for index in enumerated(placement, count)]
    for ranges in local:
        if not isinstance(ranges, tuple) or not all(map(_is_pair, ranges)):
            raise ShardingError(
                f"`ranges` of {placement} gives {shown(ranges)}; expected a tuple of (start, end) pairs of integers",
                place(placement.ranges),
            )
    pairs = sorted(pair for ranges in local for pair in ranges if pair[0] != pair[1])
    edges = [0, *(end for _, end in pairs)]
    is_gapless = all(previous_end == start < end for previous_end, (start, end) in zip(edges, pairs, strict=False))
    if not is_gapless or edges[-1] != size:
        raise ShardingError(
            f"{placement} over {count} ranks is not a partition of {size} positions; expected each of them in one "
            "range of one rank"
        )


@lru_cache(maxsize=65536)
def shard_lengths(placements: tuple[tuple[Any, int], ...], size: int) -> frozenset[int]:
    """Return the lengths of the shards of `size` elements, sharded by each (shard placement, ranks) in turn."""
    extents = frozenset([size])
    for placement, count in placements:
        extents = frozenset(
            local_length for extent in extents for _, _, local_length in runs_of(placement, extent, count)
        )
    return extents


@lru_cache(maxsize=65536)
def is_contiguous(placement: ShardPlacement, size: int, count: int) -> bool:
    """Return whether the shard of each of `count` ranks is one range of `size` positions; False if they are too many
    to be asked."""
    if count > ENUMERATED.most:
        return False
    return all(len(joined(placement.ranges(size, count, index))) <= 1 for index in range(count))


def enumerated(placement: Placement, count: int) -> range:
    """Return the indices of `count` ranks, for a placement that is evaluated rank by rank.

    Raises:
        ShardingError: they are more than ENUMERATED.
    """
    if count > ENUMERATED.most:
        raise ShardingError(
            f"{placement} is evaluated rank by rank, and the axis has {count} ranks; expected at most "
            f"{ENUMERATED.most}, or a placement whose class gives its `runs` at once"
        )
    return range(count)


_RUNS = instance(tuple, expected="a tuple of (first rank, ranks, length)")


@lru_cache(maxsize=65536)
def runs_of(placement: ShardPlacement, size: int, count: int) -> tuple[Run, ...]:
    """Return `placement.runs(size, count)`."""
    return evaluated("runs", placement.runs, size, count, owner=str(placement), returns=_RUNS)


def shard_length(placement: ShardPlacement, size: int, count: int, index: int) -> int:
    """Return the length of the shard of `size` elements on rank `index` of `count`."""
    if type(placement).runs is ShardPlacement.runs:
        return length(placement.ranges(size, count, index))
    return next(
        local_length
        for first_rank, ranks, local_length in runs_of(placement, size, count)
        if index < first_rank + ranks
    )


class PartialPlacement(Placement):
    """A placement whose value is the reduction of what the ranks hold: `after(reduce of before(what each holds))`.

    Attributes:
        reduce: the reduction that process groups do, a key of `spmdir.core.placement.reductions.REDUCTIONS`.
        identity: the neutral element of the reduction, by default that of a sum; None if there is none.
        copies: whether the value on every rank is a partial value too, as for a maximum.
        kind: placements of one kind commute, so several axes may have them at once and are reduced together. That of
            a partial placement from or to which a declared step takes what ranks hold as it is, else the text.
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
        """Return whether a replicated value becomes this without communication."""
        return self.copies or self.identity is not None

    def before(self, partial: Any) -> Any:
        """Return what the reduction takes of a rank's partial value."""
        return partial

    def after(self, reduced: Any, count: int) -> Any:
        """Return the value, of the result `reduced` of the reduction over `count` ranks."""
        return reduced

    def passes(self, clause: str, reductions: tuple[str, ...]) -> bool:
        """Return whether an op passes it by a clause of its rule.

        Args:
            clause: the clause's name: "moves" (elements are moved, not changed), "carries" (they are that or
                converted), "linear", "multilinear" or "commutes" (with the `reductions` that it lists).
        """
        return clause == "moves"

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        kind = type(self)
        if kind.before is PartialPlacement.before and kind.after is PartialPlacement.after:
            return parse_placement(f"P({self.reduce})").distribute(tensor, count, noise)
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
    """Return the placement that `text` spells: `R`, `S(0)`, `P`, `P(sum)`, `?`, or one of a plug-in.

    Args:
        text: of one placement.

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
    """Return the class of the placement that `text`, or its name alone, spells.

    Raises:
        ParseError: there is none of that name.
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
    """Return the class whose texts begin with `name`, which a plug-in has declared or spmdir ships; None if none do."""
    if name not in _TYPES and name in SHIPPED:
        import_module(SHIPPED[name])
    return _TYPES.get(name)


def placement_classes() -> dict[str, type[Placement]]:
    """Return name in texts → class of all placements: those that spmdir ships, then those that plug-ins declared."""
    for module in SHIPPED.values():
        import_module(module)
    return {name: _TYPES[name] for name in dict.fromkeys([*SHIPPED, *_TYPES])}


def until_declared(memo: Memo) -> Memo:
    """Return `memo`, memoised by texts in which placements are named; it is cleared when a name gets another class."""
    _MEMOS.append(memo)
    return memo


def edge_between(source: Placement, target: Placement) -> Edge | None:
    """Return the edge that `source` declares to `target`, else the one that `target` declares from `source`."""
    leaving = (edge for edge in source.edges() if edge.target is not None and _fits(edge, edge.target, target))
    joining = (edge for edge in target.edges() if edge.source is not None and _fits(edge, edge.source, source))
    return next(leaving, None) or next(joining, None)


@lru_cache(maxsize=4096)
def derived_kind(placement: Placement) -> str:
    """Return the kind of the `P(op)` whose partial values are those of `placement`, by a step that changes nothing.

    The text of `placement` if it declares no such step.
    """
    ends = [edge.target or edge.source or "" for edge in placement.edges() if _changes_nothing(edge)]
    kinds = [parse_placement(end).kind for end in ends if head_of(end) == "P"]
    return next((kind for kind in kinds if kind is not None), str(placement))


def _changes_nothing(edge: Edge) -> bool:
    """Return whether a step gives what a rank holds as it is: it is tried on something that no op takes."""
    marker = object()
    try:
        return edge.by is None and edge.lower(marker, None) is marker
    except Exception:
        return False  # it is code of a plug-in, and computes something


def _fits(edge: Edge, end: str, placement: Placement) -> bool:
    if end not in TRAITS:
        return parse_placement(end) == placement
    return placement.trait == end and (edge.when is None or edge.when(placement))


def _check_error(kind: type[Placement]) -> None:
    error = kind.error
    if not isinstance(error, (ErrorBound, property)):
        raise ShardingError(
            f"`error` of {kind.__module__}.{kind.__qualname__} is {shown(error)}; expected an ErrorBound, as in "
            f"`error = ErrorBound({error if isinstance(error, float) else 1 / 256})`: the largest error for each rank, "
            "as a part of the largest absolute element that it holds"
        )


def _check_offered(kind: type[Placement]) -> None:
    if kind.offered and isinstance(kind.error, ErrorBound) and kind.error:
        raise ShardingError(
            f"{kind.__module__}.{kind.__qualname__} is `offered` and lossy; expected an exact placement, since only "
            "the user decides where precision is lost"
        )


def _register(kind: type[Placement]) -> None:
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
            f"{kind.__module__}.{kind.__qualname__}; give this one another name"
        )
    # attrs makes a class anew when it gives it slots, and a file may be run again.
    if existing is not None and (existing.__module__, existing.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ShardingError(
            f"placement '{head}' is declared by {existing.__module__}.{existing.__qualname__} and by "
            f"{kind.__module__}.{kind.__qualname__}; give one of them another name"
        )
    _TYPES[head] = kind
    if existing is not None:
        for memo in _MEMOS:
            memo.cache_clear()
