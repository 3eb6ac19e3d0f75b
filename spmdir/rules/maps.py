"""Dimension maps: how the view and index families place the factors of their operands in their results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from spmdir.rules.layout import Dims, Layout


@attrs.frozen
class DimensionMap:
    """A function named in a rule, as in `-> reshape(self, size)`.

    Attributes:
        build: (layout, names in the rule) → the dimensions.
        sized: its last name is a literal argument that holds the sizes of the result.
    """

    build: Callable[..., Dims]
    sized: bool = False


def _fresh(layout: Layout) -> str:
    return f"r{sum(name[0] == 'r' for name in layout.names)}"


def _sizes(layout: Layout, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of the result, which must be those `wanted`, -1 being any size; -1 stays if no result is given."""
    given = layout.result_shape()
    if given is None:
        return wanted
    if len(given) != len(wanted) or any(w not in (-1, g) for w, g in zip(wanted, given, strict=True)):
        layout.fail(f"the result has the shape {list(given)} where the arguments say {list(wanted)}")
    return given


def _target(layout: Layout, shape: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes `wanted` with one -1 worked out."""
    if wanted.count(-1) > 1 or any(size < -1 for size in wanted):
        layout.fail(f"{list(wanted)} is no shape; expected sizes, of which one may be -1")
    size = _sizes(layout, wanted)
    if -1 in size:
        rest = math.prod(s for s in size if s != -1)
        size = tuple(math.prod(shape) // max(rest, 1) if s == -1 else s for s in size)
    if math.prod(size) != math.prod(shape):
        layout.fail(f"{math.prod(shape)} elements cannot take the shape {list(size)}")
    return size


def _reshape(layout: Layout, operand: str, argument: str) -> Dims:
    return _reshape_to(layout, operand, layout.integers(argument))


def _flatten(layout: Layout, operand: str, first: str, last: str) -> Dims:
    shape = layout.shape(operand) or (1,)
    start, end = layout.dimension(first, len(shape)), layout.dimension(last, len(shape))
    return _reshape_to(layout, operand, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


def _unflatten(layout: Layout, operand: str, dim: str, argument: str) -> Dims:
    shape = layout.shape(operand)
    at, sizes = layout.dimension(dim, len(shape)), layout.integers(argument)
    dims = _reshape_to(layout, operand, (*shape[:at], *sizes, *shape[at + 1 :]))
    # The sizes of the parts are given apart from those of the result, so no rank can have its own.
    layout.whole.update(f for d in dims[at : at + len(sizes)] for f in d)
    return dims


def _reshape_to(layout: Layout, operand: str, wanted: tuple[int, ...]) -> Dims:
    """Common major factors of what is left of both shapes are shared; where there is none, both stay whole."""
    source = layout.shape(operand)
    target = _target(layout, source, wanted)
    dims: tuple[list[list[int]], ...] = ([[] for _ in source], [[] for _ in target])
    if 0 in source:
        for side, shape in zip(dims, (source, target), strict=True):
            for dim, size in enumerate(shape):
                side[dim].append(layout.factor(_fresh(layout), size, whole=True))
    else:
        _common_factors(layout, source, target, dims)
    layout.operand_dims[layout.binding.operands(operand)[0]] = tuple(map(tuple, dims[0]))
    return tuple(map(tuple, dims[1]))


def _common_factors(
    layout: Layout, source: tuple[int, ...], target: tuple[int, ...], dims: tuple[list[list[int]], ...]
) -> None:
    left = [list(source), list(target)]
    at = [0, 0]
    while True:
        for side in (0, 1):
            while at[side] < len(left[side]) and left[side][at[side]] == 1:
                at[side] += 1
        if at[0] == len(source) or at[1] == len(target):
            return
        common = math.gcd(left[0][at[0]], left[1][at[1]])
        if common == 1:
            _whole_block(layout, left, at, dims)
            return
        factor = layout.factor(_fresh(layout), common)
        for side in (0, 1):
            dims[side][at[side]].append(factor)
            left[side][at[side]] //= common


def _whole_block(layout: Layout, left: list[list[int]], at: list[int], dims: tuple[list[list[int]], ...]) -> None:
    """From here on no major factor is shared: take dimensions until both sides hold as many elements, then go on."""
    products = [1, 1]
    ends = list(at)
    while products[0] != products[1] or products[0] == 1:
        side = 0 if products[0] <= products[1] else 1
        products[side] *= left[side][ends[side]]
        ends[side] += 1
    for side in (0, 1):
        for dim in range(at[side], ends[side]):
            dims[side][dim].append(layout.factor(_fresh(layout), left[side][dim], whole=True))
            left[side][dim] = 1
    source, target = tuple(left[0]), tuple(left[1])
    _common_factors(layout, source, target, dims)


def _new(layout: Layout, argument: str) -> Dims:
    """A tensor made from nothing: every dimension is a factor of its own."""
    return tuple((layout.factor(f"n{i}", s),) for i, s in enumerate(_sizes(layout, layout.integers(argument))))


def _drawn(layout: Layout, argument: str) -> Dims:
    """A tensor of random numbers: no rank can draw a part of it."""
    dims = _new(layout, argument)
    layout.whole.update(f for d in dims for f in d)
    return dims


def _unused(layout: Layout) -> Dims:
    """What an op gives in place of a tensor that it has no use for: one that holds nothing. Whole if it does."""
    shape = layout.result_shape(len(layout.result_dims)) or (0,)
    return tuple((layout.factor("none", size, whole=True),) for size in shape)


def _product(layout: Layout, left: str, right: str) -> Dims:
    """The dimensions of a matrix product."""
    return (*layout.dims(left)[:-1], layout.dims(right)[-1])


def _scores(layout: Layout, query: str, key: str) -> Dims:
    """The dimensions of the attention scores: those of the query, over the positions of the key."""
    return (*layout.dims(query)[:-1], layout.dims(key)[-2])


def _trailing(layout: Layout, operand: str, argument: str) -> Dims:
    """The last dimensions of `operand`, as many as `argument` lists."""
    dims, count = layout.dims(operand), len(layout.integers(argument))
    return dims[max(0, len(dims) - count) :]


def _leading(layout: Layout, operand: str, argument: str) -> Dims:
    """The dimensions of `operand` with size 1 for those that `_trailing` gives."""
    dims, count = layout.dims(operand), len(layout.integers(argument))
    return (*dims[: max(0, len(dims) - count)], *((),) * count)


def _expand(layout: Layout, operand: str, argument: str) -> Dims:
    dims, shape = layout.dims(operand), layout.shape(operand)
    wanted = layout.integers(argument)
    lead = len(wanted) - len(shape)
    out = []
    for position, size in enumerate(wanted):
        old = position - lead
        if lead < 0 or size < -1 or (size == -1 if old < 0 else size not in (-1, shape[old]) and shape[old] != 1):
            layout.fail(f"the shape {list(shape)} cannot be expanded to {list(wanted)}")
        if old >= 0 and (size in (-1, shape[old])):
            out.append(dims[old])
        else:
            out.append((layout.factor(f"n{position}", size),))
    return tuple(out)


def _permute(layout: Layout, operand: str, argument: str) -> Dims:
    dims = layout.dims(operand)
    return tuple(dims[d] for d in layout.dimensions(argument, len(dims)))


def _transpose(layout: Layout, operand: str, first: str, second: str) -> Dims:
    dims = list(layout.dims(operand))
    if dims:
        a, b = layout.dimension(first, len(dims)), layout.dimension(second, len(dims))
        dims[a], dims[b] = dims[b], dims[a]
    return tuple(dims)


def _move(layout: Layout, operand: str, source: str, destination: str) -> Dims:
    dims = list(layout.dims(operand))
    rank = len(dims)
    if not rank:
        return ()
    moved = dims.pop(layout.dimension(source, rank))
    dims.insert(layout.dimension(destination, rank), moved)
    return tuple(dims)


def _diagonal(layout: Layout, operand: str, first: str, second: str) -> Dims:
    """Both dimensions are whole and give way to a last one."""
    dims = layout.dims(operand)
    gone = {layout.dimension(first, len(dims)), layout.dimension(second, len(dims))}
    layout.whole.update(f for p in gone for f in dims[p])
    result = layout.result_shape()
    if result is None:
        layout.fail("the length of the diagonal cannot be inferred")
    if len(gone) != 2 or not result:
        layout.fail(f"there is no diagonal of one dimension, nor one without dimensions: {list(result)}")
    return (*(d for p, d in enumerate(dims) if p not in gone), (layout.factor("w", result[-1], whole=True),))


def _t(layout: Layout, operand: str) -> Dims:
    return layout.dims(operand)[::-1]


def _unsqueeze(layout: Layout, operand: str, argument: str) -> Dims:
    dims = list(layout.dims(operand))
    dims.insert(layout.dimension(argument, len(dims) + 1), ())
    return tuple(dims)


def _squeeze(layout: Layout, operand: str, *argument: str) -> Dims:
    """Without an argument every dimension of size 1 goes."""
    dims, shape = layout.dims(operand), layout.shape(operand)
    chosen = layout.dimensions(argument[0], len(dims)) if argument and dims else range(len(dims))
    return tuple(d for p, d in enumerate(dims) if not (p in chosen and shape[p] == 1))


def _keep_equal(layout: Layout, operand: str) -> Dims:
    """Dimensions that keep their size stay; the others are whole before and after (slice, narrow)."""
    dims, shape = layout.dims(operand), layout.shape(operand)
    result = layout.result_shape()
    if result is None:
        layout.fail("the shape of the result cannot be inferred")
    layout.same_rank(dims, result)
    out = []
    for position, size in enumerate(result):
        if size == shape[position]:
            out.append(dims[position])
        else:
            layout.whole.update(dims[position])
            out.append((layout.factor(f"w{position}", size, whole=True),))
    return tuple(out)


def _padded(layout: Layout, operand: str, argument: str) -> Dims:
    """Dimensions with padding are whole before and after; `argument` lists pairs from the last dimension on."""
    dims, shape, pad = layout.dims(operand), layout.shape(operand), layout.integers(argument)
    if len(pad) % 2 or len(pad) > 2 * len(dims):
        layout.fail(f"argument '{argument}' is {list(pad)}; expected two numbers for each of the last dimensions")
    out = list(dims)
    for pair in range(len(pad) // 2):
        low, high = pad[2 * pair : 2 * pair + 2]
        position = len(dims) - 1 - pair
        if low or high:
            layout.whole.update(dims[position])
            out[position] = (layout.factor(f"w{position}", shape[position] + low + high, whole=True),)
    return tuple(out)


def _repeat(layout: Layout, operand: str, argument: str) -> Dims:
    dims, shape, repeats = layout.dims(operand), layout.shape(operand), layout.integers(argument)
    if len(repeats) < len(shape) or any(count < 0 for count in repeats):
        layout.fail(f"argument '{argument}' is {list(repeats)}; expected a count for each dimension of {list(shape)}")
    lead = len(repeats) - len(shape)
    out = []
    for position, count in enumerate(repeats):
        old = position - lead
        if old >= 0 and count == 1:
            out.append(dims[old])
        else:
            if old >= 0:
                layout.whole.update(dims[old])
            out.append((layout.factor(f"w{position}", count * (shape[old] if old >= 0 else 1), whole=True),))
    return tuple(out)


def _interleave(layout: Layout, operand: str, repeats: str, argument: str) -> Dims:
    """Each element of a dimension several times in a row; all dimensions as one if `argument` names none."""
    dims = layout.dims(operand)
    (count,) = layout.integers(repeats)
    if count < 0:
        layout.fail(f"argument '{repeats}' is {count}; expected how often each element comes")
    times = (layout.factor("w", count, whole=True),)
    if layout.argument(argument) is None:
        return (tuple(factor for dim in dims for factor in dim) + times,)
    at = layout.dimension(argument, len(dims))
    return tuple((*dim, *times) if position == at else dim for position, dim in enumerate(dims)) or (times,)


def _index(layout: Layout, operand: str, indices: str) -> Dims:
    """The dimensions of `operand[indices]`: indexed ones give way to those of the indices, in front if not adjacent."""
    slot = layout.binding.tensors[indices]
    assert isinstance(slot, tuple)
    if any(layout.operands[i].dtype == "i1" for i in slot if i is not None):
        layout.fail("a boolean index gives a shape that depends on the data; use where or masked_fill")
    at = [p for p, index in enumerate(slot) if index is not None]
    dims = layout.dims(operand)
    if len(slot) > len(dims):
        layout.fail(f"{len(slot)} indices given for a tensor of rank {len(dims)}")
    for position in at:
        layout.whole.update(dims[position])
    inserted = tuple((f,) for f in layout.refer("*i"))
    rest = [d for p, d in enumerate(dims) if p not in at]
    adjacent = at and at[-1] - at[0] == len(at) - 1
    front = at[0] if adjacent else 0
    return (*rest[:front], *inserted, *rest[front:])


def _take(layout: Layout, operand: str, argument: str) -> Dims:
    """The dimensions of `operand` with the one in `argument` replaced by factor i."""
    dims = list(layout.dims(operand))
    if not dims:
        return ()
    dims[layout.dimension(argument, len(dims))] = layout.refer("i")
    return tuple(dims)


def _join(layout: Layout, operands: str, argument: str) -> Dims:
    """The dimensions of tensors stacked along a new one."""
    dims = list(layout.operand_dims[layout.binding.operands(operands)[0]])
    count = len(layout.binding.operands(operands))
    dims.insert(layout.dimension(argument, len(dims) + 1), (layout.factor("w", count, whole=True),))
    return tuple(dims)


def _subscripts(layout: Layout, operands: str, argument: str) -> Dims:
    """The dimensions that an einsum equation gives the tensor in question; letters without a result are apart."""
    equation = layout.argument(argument)
    terms, _, result = equation.replace(" ", "").partition("->") if isinstance(equation, str) else ("", "", "")
    if (not result.isalpha() and result) or not terms.replace(",", "").isalpha() or not set(result) <= set(terms):
        layout.fail(f"equation '{equation}' is not of the form ab,bc->ac")
    found = layout.binding.operands(operands)
    if len(terms.split(",")) != len(found):
        layout.fail(f"equation '{equation}' has {len(terms.split(','))} terms for {len(found)} tensors")
    if layout.operand is None:
        return tuple(layout.refer(letter) for letter in result)
    sizes: dict[str, int] = {}
    for index, letters in zip(found, terms.split(","), strict=True):
        shape = layout.operands[index].shape
        if len(letters) != len(shape):
            layout.fail(f"'{letters}' of equation '{equation}' stands for a tensor of rank {len(shape)}")
        for letter, size in zip(letters, shape, strict=True):
            # Size 1 broadcasts against the other dimensions of its letter.
            sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
    letters = terms.split(",")[found.index(layout.operand)]
    return tuple((layout.letter(one, sizes[one], None if one in result else argument),) for one in letters)


MAPS: dict[str, DimensionMap] = {
    "reshape": DimensionMap(_reshape, sized=True),
    "new": DimensionMap(_new, sized=True),
    "expand": DimensionMap(_expand, sized=True),
    "drawn": DimensionMap(_drawn, sized=True),
    "unused": DimensionMap(_unused),
    "flatten": DimensionMap(_flatten),
    "unflatten": DimensionMap(_unflatten),
    "move": DimensionMap(_move),
    "diagonal": DimensionMap(_diagonal),
    "product": DimensionMap(_product),
    "scores": DimensionMap(_scores),
    "leading": DimensionMap(_leading),
    "trailing": DimensionMap(_trailing),
    "permute": DimensionMap(_permute),
    "transpose": DimensionMap(_transpose),
    "reverse": DimensionMap(_t),
    "unsqueeze": DimensionMap(_unsqueeze),
    "squeeze": DimensionMap(_squeeze),
    "keep_equal": DimensionMap(_keep_equal),
    "padded": DimensionMap(_padded),
    "repeat": DimensionMap(_repeat),
    "interleave": DimensionMap(_interleave),
    "index": DimensionMap(_index),
    "take": DimensionMap(_take),
    "join": DimensionMap(_join),
    "subscripts": DimensionMap(_subscripts),
}
