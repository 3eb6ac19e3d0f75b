"""Packed placements: placements of results that have a meaning only together, as the parts of a state of each rank.

For example, the state of attention over some of the keys is the output and the logarithm of its sum of exponentials,
which is the weight of the output. A packed placement defines how two states combine. This module uses tensors only
through their methods, as `base.py` does.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from spmdir.core.declared_fields import evaluated, place
from spmdir.core.dtype import DType, as_dtype
from spmdir.core.errors import ShardingError, SpmdirError, shown, wrong_argument
from spmdir.core.placement.base import LocalType, Noise, Placement, placement_class
from spmdir.core.placement.edge import Edge
from spmdir.core.placement.packing import Types, convert_tensor, pack, packed_type, unpack
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.text import field_types, head_of, print_placement, read_placement

Parts = Sequence[Any]
"""The tensors of a state, one per part."""


class PackedPlacement(Placement):
    """A placement of the results of an op that are computed from one state, which ranks combine.

    States form a commutative monoid: `combine` is associative and commutative, and `identity` is neutral. Therefore
    ranks may combine their states in any order. `identity`, `combine`, `finish` and `start` call torch ops. They are
    traced once, so they cannot branch on values. They must accept states that are sliced along a dimension for which
    `slices` is true. A local form of a rule calls them by the name of the class, as in
    `state = Attended.combine(state, (out, lse))`. They are then called on part 0, with the fields that the strategy
    specifies for a result, or their defaults.

    A class without a `text` is only for states in local forms. With a `text`, it is also a placement of values: the
    field `part` selects the result of the op that the value is. Each rank has its state as one tensor, see `pack`. The
    steps to R and to shards are derived from these methods. They send states, so they lose no precision, and `types`
    determines their cost.

    Attributes:
        parts: the names of the parts of a state.
        results: the names of the op's results, in order; by default `parts`.
        part: the index of the result that this value is.
        of_values: whether values may have it, which requires a `text`.
    """

    trait: ClassVar[str] = "other"
    splits: ClassVar[bool] = True
    rounds: ClassVar[bool] = True
    parts: ClassVar[tuple[str, ...]] = ()
    results: ClassVar[tuple[str, ...]] = ()
    of_values: ClassVar[bool] = True
    part: int = 0

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Check `parts` of a new class, and set `text` and `of_values`.

        A class that has no `text`, neither declared nor inherited, gets its name as the text and is not for values. A
        class that declares a `text` is for values, unless it declares `of_values`.
        """
        if not hasattr(cls, "text"):
            cls.text, cls.of_values = cls.__name__, False
        elif "text" in vars(cls) and "of_values" not in vars(cls):
            cls.of_values = True
        if "parts" in vars(cls) and not (isinstance(cls.parts, tuple) and cls.parts):
            raise ShardingError(
                f"`parts` of {cls.__name__} is {shown(cls.parts)}; expected the names of the parts of a state, as in "
                '("out", "lse")'
            )
        super().__init_subclass__(**arguments)

    def __attrs_post_init__(self) -> None:
        """Raise an error unless `part` is the index of a result, or of a part if the class names no results."""
        names = self.results or self.parts
        if not isinstance(self.part, int):
            raise wrong_argument("part", self.part, f"a number from 0 to {len(names) - 1}")
        if not 0 <= self.part < len(names):
            text = print_placement.__wrapped__(self)  # without its cache: the placement has no hash yet
            raise ShardingError(
                f"{text} names a part that does not exist; expected 0 to {len(names) - 1}, an index of "
                f"({', '.join(names)})"
            )

    def supports(self, dtype: DType) -> bool:
        return self.of_values and dtype.is_float

    def identity(self, *like: Any) -> Parts:
        """Return the neutral state, whose parts have the shapes and element types of `like`."""
        raise NotImplementedError(f"{type(self).__name__} has no neutral state; expected one: define its `identity`")

    def combine(self, left: Parts, right: Parts) -> Parts:
        """Return the combination of two states, with the shapes and element types of `left`."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot combine states; expected a method for it: define its `combine`"
        )

    def finish(self, state: Parts) -> Sequence[Any]:
        """Return the results of the op for the combined state of all ranks; by default its parts."""
        return state

    def start(self, value: Any) -> Parts:
        """Return a state whose result `part` is `value`; by default `value` is this part and the others are zeros."""
        if self.results:
            raise NotImplementedError(
                f"{type(self).__name__} cannot build a state from a value; expected a method for it: define its `start`"
            )
        types = self.types(tuple(value.shape), value.dtype)
        zeros = [(value.new_zeros(shape), dtype) for shape, dtype in types]
        parts = [zero if dtype is value.dtype else convert_tensor(zero, as_dtype(dtype)) for zero, dtype in zeros]
        return [value if part == self.part else default for part, default in enumerate(parts)]

    def types(self, shape: tuple[int, ...], dtype: Any) -> Sequence[tuple[tuple[int, ...], Any]]:
        """Return shape and element type of each part for a value of `shape` and `dtype`; by default they are equal."""
        return [(shape, dtype)] * len(self.parts)

    def slices(self, dim: int) -> bool:
        """Return whether a slice of a state along dimension `dim` is the state of the slice of the value."""
        return True

    def packed_type(self, types: Types) -> LocalType:
        """Return shape and element type of a packed state whose parts have the `types`."""
        return packed_type(types, self._count_leading_dims([shape for shape, _ in types]))

    def pack(self, *parts: Any) -> Any:
        """Return a state as one tensor of shape [*leading dimensions, other elements]: the local tensor of a rank."""
        return pack(parts, self._count_leading_dims([tuple(part.shape) for part in parts]))

    def unpack(self, packed: Any, shape: tuple[int, ...], dtype: DType) -> list[Any]:
        """Return the parts of a packed state of a value of `shape` and `dtype`."""
        types = self._types(shape, dtype)
        return unpack(packed, types, self._count_leading_dims([part for part, _ in types]))

    def local_type(self, shape: tuple[int, ...], dtype: DType, count: int, index: int) -> LocalType:
        return self.packed_type(self._types(shape, dtype))

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        state = self._start_state(tensor)
        neutral_states = [self.pack(*self._neutral_state(state)) for _ in range(count - 1)]
        return [self.pack(*state), *neutral_states]

    def collect_as(self, shards: Sequence[Any], shape: tuple[int, ...], dtype: DType) -> Any:
        states = [self.unpack(shard, tuple(shape), dtype) for shard in shards]
        return self._finish_states(states, tuple(shape))

    def edges(self) -> Iterable[Edge]:
        yield Edge(self._replicate, target="R", by="all_gather")
        yield Edge(self._scatter, target="shard", by="all_to_all", when=self._is_slice)
        yield Edge(self._from_replicated, source="R")

    def sends_state(self, edge: Edge) -> bool:
        """Return whether `edge` is one of this class that sends the state, not an edge of a plug-in."""
        return edge.lower in (self._replicate, self._scatter)

    def _types(self, shape: tuple[int, ...], dtype: DType) -> Types:
        """Return the result of the method `types`, with element types as DTypes, after a check.

        Raises:
            ShardingError: the result is not a shape and an element type for each part.
        """
        declared: Any = evaluated("types", self.types, tuple(shape), dtype)
        try:
            types = [(tuple(sizes), as_dtype(kind)) for sizes, kind in declared]
            all_sizes = [size for sizes, _ in types for size in sizes]
            if len(types) == len(self.parts) and all(type(size) is int and size >= 0 for size in all_sizes):
                return types
        except (SpmdirError, TypeError, ValueError):
            pass
        raise ShardingError(
            f"`types` of {self} returns {shown(declared)}; expected shape and element type of each part, as in "
            "[((4, 6), 'f32')]",
            place(self.types),
        )

    def _count_leading_dims(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return the number of leading dimensions that are equal in all parts and along which states can be sliced."""
        count = 0
        for dim, sizes in enumerate(zip(*shapes, strict=False)):
            if len(set(sizes)) > 1 or not self.slices(dim):
                break
            count += 1
        return count

    def _start_state(self, value: Any) -> Parts:
        """Call `start` of the declaration and check its result."""
        return self._check_tensors("start", self.start(value), self.parts)

    def _neutral_state(self, like: Parts) -> Parts:
        """Call `identity` of the declaration for the parts `like`, and check its result."""
        return self._check_tensors("identity", self.identity(*like), self.parts, like)

    def _combine_states(self, left: Parts, right: Parts) -> Parts:
        """Call `combine` of the declaration and check its result."""
        return self._check_tensors("combine", self.combine(left, right), self.parts, left)

    def _finish_states(self, states: Sequence[Parts], shape: tuple[int, ...]) -> Any:
        """Combine `states` in their order, and return the result number `part` of `finish`.

        Raises:
            ShardingError: a method returns wrong tensors, or the result does not have `shape`.
        """
        finished = self.finish(functools.reduce(self._combine_states, states))
        results = finished if isinstance(finished, (tuple, list)) else (finished,)
        result = self._check_tensors("finish", results, self.results or self.parts)[self.part]
        if tuple(result.shape) != shape:
            raise ShardingError(
                f"`finish` of {self} returns a tensor of shape {[*result.shape]}; expected {[*shape]}",
                place(self.finish),
            )
        return result

    def _check_tensors(self, method: str, tensors: Any, names: Sequence[str], like: Parts = ()) -> Sequence[Any]:
        """Return `tensors`, the result of `method`, after checks: one tensor per name, with the types of `like`.

        Shapes and element types are not checked if `like` is empty.
        """
        where = place(getattr(self, method))
        if not isinstance(tensors, (tuple, list)) or not all(hasattr(tensor, "shape") for tensor in tensors):
            raise ShardingError(
                f"`{method}` of {self} returns {type(tensors).__name__}; expected a tensor for each of "
                f"{', '.join(names)}",
                where,
            )
        if len(tensors) != len(names):
            raise ShardingError(
                f"`{method}` of {self} returns {len(tensors)} tensors; expected {len(names)}: {', '.join(names)}", where
            )
        for name, tensor, expected in zip(names, tensors, like, strict=False):
            if tuple(tensor.shape) != tuple(expected.shape) or tensor.dtype != expected.dtype:
                raise ShardingError(
                    f"`{method}` of {self} returns '{name}' of shape {[*tensor.shape]} and {tensor.dtype}; expected "
                    f"{[*expected.shape]} and {expected.dtype}",
                    where,
                )
        return tensors

    def _is_slice(self, target: Placement) -> bool:
        """Return whether a rank can get its shard of `target` by slicing each part."""
        return isinstance(target, ShardPlacement) and all(map(self.slices, range(target.dim + 1)))

    def _replicate(self, x: Any, group: Any) -> Any:
        """Gather the states `x` of all ranks, combine them in the order of ranks, and return the result."""
        return self.collect_as(list(group.all_gather(x).unbind(0)), group.shape, group.element_type)

    def _scatter(self, x: Any, group: Any) -> Any:
        """Exchange slices of the states `x` of all ranks, and return this rank's shard of the result."""
        states = group.all_to_all(group.split(x))  # dimension 0 is the rank that sent the slice
        dim = group.partition.dim
        block = (*group.shape[:dim], states.shape[1 + dim], *group.shape[dim + 1 :])
        return group.keep(self.collect_as(list(states.unbind(0)), block, group.element_type))

    def _from_replicated(self, x: Any, group: Any) -> Any:
        """Return the packed value of `x` on the first rank of the group, and neutral states on others."""
        state = self._start_state(x)
        return self.pack(*(self._neutral_state(state) if group.index else state))


def find_packed_placement(text: str) -> PackedPlacement:
    """Return the packed placement with the text `text`. For the bare name of a class, return its part 0.

    Raises:
        ShardingError: there is no such packed placement, or `text` omits a field that has no default.
        ParseError: the text does not match its template.
    """
    name = head_of(text)
    kind = placement_class(name)
    if kind is None or not issubclass(kind, PackedPlacement):
        reason = f"'{name}' is a placement of another kind" if kind else f"no placement is named '{name}'"
        raise ShardingError(f"{reason}; expected the name of a PackedPlacement that is declared before its use")
    if name != text.strip():
        return read_placement(kind, text)
    try:
        return kind(part=0) if "part" in field_types(kind) else kind()  # type: ignore[call-arg]
    except TypeError as error:
        raise ShardingError(
            f"'{name}' has fields without defaults besides `part`: {error}; expected a default for each: add "
            "the defaults"
        ) from None
