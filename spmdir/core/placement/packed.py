"""Several results of one op that only mean something together, as the parts of a state that ranks combine.

The output of attention over some of the keys is one: it counts as much as its logarithm of a sum of exponentials says.
A packed placement says how two states become one. Tensors are used by their methods alone, as in `base.py`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from spmdir.core.declared_fields import evaluated, place
from spmdir.core.dtype import DType, as_dtype
from spmdir.core.errors import ShardingError, SpmdirError, shown, wrong_argument
from spmdir.core.placement.base import LocalType, Noise, Placement, ShardPlacement, placement_class
from spmdir.core.placement.edge import Edge
from spmdir.core.placement.packing import Types, convert_tensor, pack, packed_type, unpack
from spmdir.core.placement.text import field_types, head_of, print_placement, read_placement

Parts = Sequence[Any]
"""The tensors of a state, one a part."""


class PackedPlacement(Placement):
    """A placement of the results of an op that are parts of one state, or follow from it, which ranks combine.

    States form a commutative monoid: `combine` is associative and commutative, and `identity` is neutral, so that
    ranks may combine theirs in any order. `identity`, `combine`, `finish` and `start` are torch ops, which are traced
    once, so they cannot branch on values; they take states with fewer positions along any dimension that `slices`. A
    local form of a rule calls them by the name of the class, as in `state = Attended.combine(state, (out, lse))`: of
    part 0, with the fields that the strategy gives to a result, or with defaults where it gives none.

    A class without a `text` is of states in local forms alone. One with a text is a placement of values too: a value
    with this placement is one of the op's results, the one that the field `part` says. Every rank holds its state of
    all of them, as one tensor: see `pack`. The steps to R and to shards, which follow from the above, send states, so
    no precision is lost; what they cost follows from `types`.

    Attributes:
        parts: what the parts of a state are called.
        results: what the op's results are called, in their order; by default they are the parts.
        part: the number of the result that this value is.
        of_values: whether values may have it: it has a `text`.
    """

    trait: ClassVar[str] = "other"
    splits: ClassVar[bool] = True
    rounds: ClassVar[bool] = True
    parts: ClassVar[tuple[str, ...]] = ()
    results: ClassVar[tuple[str, ...]] = ()
    of_values: ClassVar[bool] = True
    part: int = 0

    def __init_subclass__(cls, **arguments: Any) -> None:
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
        names = self.results or self.parts
        if not isinstance(self.part, int):
            raise wrong_argument("part", self.part, f"a number from 0 to {len(names) - 1}")
        if not 0 <= self.part < len(names):
            # It has no hash yet, by which texts are remembered.
            text = print_placement.__wrapped__(self)
            raise ShardingError(f"{text} is no part of ({', '.join(names)}); expected 0 to {len(names) - 1}")

    def supports(self, dtype: DType) -> bool:
        return self.of_values and dtype.is_float

    def identity(self, *like: Any) -> Parts:
        """Return the state that leaves any other as it is, its parts of the shapes and element types of `like`."""
        raise NotImplementedError(f"{type(self).__name__} does not say what is neutral; give it an `identity`")

    def combine(self, left: Parts, right: Parts) -> Parts:
        """Return the state of two states, of the shapes and element types of `left`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how states combine; give it a `combine`")

    def finish(self, state: Parts) -> Sequence[Any]:
        """Return the results of the op, of the state of all ranks: by default its parts as they are."""
        return state

    def start(self, value: Any) -> Parts:
        """Return a state whose result `part` is `value`: by default one that has it as this part, beside zeros."""
        if self.results:
            raise NotImplementedError(
                f"{type(self).__name__} does not say which state finishes as a value; give it a `start`"
            )
        types = self.types(tuple(value.shape), value.dtype)
        zeros = [(value.new_zeros(shape), dtype) for shape, dtype in types]
        parts = [zero if dtype is value.dtype else convert_tensor(zero, as_dtype(dtype)) for zero, dtype in zeros]
        return [value if part == self.part else default for part, default in enumerate(parts)]

    def types(self, shape: tuple[int, ...], dtype: Any) -> Sequence[tuple[tuple[int, ...], Any]]:
        """Return shape and element type of each part, of those of this value: by default they are all the same."""
        return [(shape, dtype)] * len(self.parts)

    def slices(self, dim: int) -> bool:
        """Return whether states go apart along dimension `dim`: there is one for each position of it."""
        return True

    def packed_type(self, types: Types) -> LocalType:
        """Return shape and element type of a packed state whose parts have the shapes and element types `types`."""
        return packed_type(types, self._leading([shape for shape, _ in types]))

    def pack(self, *parts: Any) -> Any:
        """Return a state as the one tensor that a rank holds: [*leading dimensions, all that is left]."""
        return pack(parts, self._leading([tuple(part.shape) for part in parts]))

    def unpack(self, packed: Any, shape: tuple[int, ...], dtype: DType) -> list[Any]:
        """Return the parts of a packed state of a value of `shape` and `dtype`."""
        types = self._types(shape, dtype)
        return unpack(packed, types, self._leading([part for part, _ in types]))

    def local_type(self, shape: tuple[int, ...], dtype: DType, count: int, index: int) -> LocalType:
        return self.packed_type(self._types(shape, dtype))

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        state = self._started(tensor)
        neutral_states = [self.pack(*self._neutral(state)) for _ in range(count - 1)]
        return [self.pack(*state), *neutral_states]

    def collect_as(self, shards: Sequence[Any], shape: tuple[int, ...], dtype: DType) -> Any:
        states = [self.unpack(shard, tuple(shape), dtype) for shard in shards]
        return self._finished(states, tuple(shape))

    def edges(self) -> Iterable[Edge]:
        yield Edge(self._replicate, target="R", by="all_gather")
        yield Edge(self._scatter, target="shard", by="all_to_all", when=self._is_slice)
        yield Edge(self._begin, source="R")

    def sends_state(self, edge: Edge) -> bool:
        """Return whether `edge` is one that sends this state whatever part it is for: none that a plug-in declares."""
        return edge.lower in (self._replicate, self._scatter)

    def _types(self, shape: tuple[int, ...], dtype: DType) -> Types:
        declared: Any = evaluated("types", self.types, tuple(shape), dtype)
        try:
            types = [(tuple(sizes), as_dtype(kind)) for sizes, kind in declared]
            if len(types) == len(self.parts) and all(type(n) is int and n >= 0 for sizes, _ in types for n in sizes):
                return types
        except (SpmdirError, TypeError, ValueError):
            pass
        raise ShardingError(
            f"`types` of {self} gives {shown(declared)}; expected shape and element type of each part, as in "
            "[((4, 6), 'f32')]",
            place(self.types),
        )

    def _leading(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return how many of the first dimensions the parts have in common, along which states go apart."""
        sizes = zip(*shapes, strict=False)
        common = itertools.takewhile(lambda of: len(set(of[1])) == 1 and self.slices(of[0]), enumerate(sizes))
        return len(list(common))

    def _started(self, value: Any) -> Parts:
        return self._require("start", self.start(value), self.parts)

    def _neutral(self, like: Parts) -> Parts:
        return self._require("identity", self.identity(*like), self.parts, like)

    def _combined(self, left: Parts, right: Parts) -> Parts:
        return self._require("combine", self.combine(left, right), self.parts, left)

    def _finished(self, states: Sequence[Parts], shape: tuple[int, ...]) -> Any:
        """Return this result, of `shape`, of the combined `states`."""
        finished = self.finish(functools.reduce(self._combined, states))
        results = finished if isinstance(finished, (tuple, list)) else (finished,)
        result = self._require("finish", results, self.results or self.parts)[self.part]
        if tuple(result.shape) != shape:
            raise ShardingError(
                f"`finish` of {self} gives a tensor of shape {[*result.shape]}; expected {[*shape]}", place(self.finish)
            )
        return result

    def _require(self, method: str, tensors: Any, names: Sequence[str], like: Parts = ()) -> Sequence[Any]:
        """Return `found`, what `method` gives: a tensor for each of `names`, of the shapes and types of `like`."""
        where = place(getattr(self, method))
        if not isinstance(tensors, (tuple, list)) or not all(hasattr(tensor, "shape") for tensor in tensors):
            raise ShardingError(
                f"`{method}` of {self} gives {type(tensors).__name__}; expected a tensor for each of "
                f"{', '.join(names)}",
                where,
            )
        if len(tensors) != len(names):
            raise ShardingError(
                f"`{method}` of {self} gives {len(tensors)} tensors; expected {len(names)}: {', '.join(names)}", where
            )
        for name, tensor, expected in zip(names, tensors, like, strict=False):
            if tuple(tensor.shape) != tuple(expected.shape) or tensor.dtype != expected.dtype:
                raise ShardingError(
                    f"`{method}` of {self} gives '{name}' of shape {[*tensor.shape]} and {tensor.dtype}; expected "
                    f"{[*expected.shape]} and {expected.dtype}",
                    where,
                )
        return tensors

    def _is_slice(self, target: Placement) -> bool:
        return isinstance(target, ShardPlacement) and all(map(self.slices, range(target.dim + 1)))

    def _replicate(self, x: Any, group: Any) -> Any:
        """Return the result of the states `x` of all ranks, combined in the order of ranks."""
        return self.collect_as(list(group.all_gather(x).unbind(0)), group.shape, group.element_type)

    def _scatter(self, x: Any, group: Any) -> Any:
        """Return this rank's shard of the result of the states `x` of all ranks."""
        states = group.all_to_all(group.split(x))
        dim = group.partition.dim
        block = (*group.shape[:dim], states.shape[1 + dim], *group.shape[dim + 1 :])
        return group.keep(self.collect_as(list(states.unbind(0)), block, group.element_type))

    def _begin(self, x: Any, group: Any) -> Any:
        state = self._started(x)
        return self.pack(*(self._neutral(state) if group.index else state))


def joint_placement(text: str) -> PackedPlacement:
    """Return the packed placement of `text`, or part 0 of that whose texts begin with it, to call its methods.

    Raises:
        ShardingError: there is none, or it has further fields, without defaults, that `text` does not give.
        ParseError: the text does not fit its template.
    """
    name = head_of(text)
    kind = placement_class(name)
    if kind is None or not issubclass(kind, PackedPlacement):
        reason = f"'{name}' is a placement of another kind" if kind else f"no placement is named '{name}'"
        raise ShardingError(f"{reason}; expected the name of a PackedPlacement, whose class is declared before")
    if name != text.strip():
        return read_placement(kind, text)
    try:
        return kind(part=0) if "part" in field_types(kind) else kind()  # type: ignore[call-arg]
    except TypeError as error:
        raise ShardingError(f"'{name}' is called with part 0 alone: {error}; give its other fields defaults") from None
