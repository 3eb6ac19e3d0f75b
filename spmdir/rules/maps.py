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
        apart: the parameters for which it sets dimensions apart, so that clauses know `~dim`, `~indices` and the like.
    """

    build: Callable[..., Dims]
    sized: bool = False
    apart: tuple[str, ...] = ()


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


def _flatten(layout: Layout, operand: str, *ends: str) -> Dims:
    """Without arguments all dimensions become one."""
    shape = layout.shape(operand) or (1,)
    start, end = (layout.dimension(name, len(shape)) for name in ends) if ends else (0, len(shape) - 1)
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


def _drawn_like(layout: Layout, operand: str) -> Dims:
    """Random numbers in the shape of `operand`, whole whatever divides that."""
    return tuple((layout.factor(f"n{i}", size, whole=True),) for i, size in enumerate(layout.shape(operand)))


def _reduced(layout: Layout, *arguments: str) -> Dims:
    """What a loss gives, by its `reduction` (0 none, 1 mean, 2 sum): all of `*`, or of an operand, or one number."""
    *operand, reduction = arguments
    if layout.argument(reduction) != 0:
        return ()
    return layout.dims(operand[0]) if operand else tuple((f,) for f in layout.refer("*"))


def _product(layout: Layout, left: str, right: str) -> Dims:
    """The dimensions of the product of matrices, or of a matrix and a vector."""
    return (*layout.dims(left)[:-1], *layout.dims(right)[1:][-1:])


def _outer(layout: Layout, left: str, right: str) -> Dims:
    return (*layout.dims(left), *layout.dims(right))


def _front(dropped: int) -> Callable[[Layout, str], Dims]:
    """All dimensions of a tensor but the last `dropped`."""

    def build(layout: Layout, operand: str) -> Dims:
        dims = layout.dims(operand)
        return dims[: len(dims) - dropped]

    return build


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
    dims = layout.dims(operand)
    rank = len(dims)
    if not rank:
        return ()
    source_of = dict(zip(layout.dimensions(destination, rank), layout.dimensions(source, rank), strict=True))
    rest = iter(p for p in range(rank) if p not in source_of.values())
    return tuple(dims[source_of[p] if p in source_of else next(rest)] for p in range(rank))


def _rotated(layout: Layout, operand: str, times: str, argument: str) -> Dims:
    """Both dimensions are whole; they change places for an odd number of quarter turns."""
    dims = list(layout.dims(operand))
    turned = (0, 1) if layout.argument(argument) is None else layout.dimensions(argument, len(dims))
    if len(turned) != 2:
        layout.fail(f"argument '{argument}' is {list(turned)}; expected two dimensions")
    layout.whole.update(f for p in turned for f in dims[p])
    if layout.integers(times)[0] % 2:
        a, b = turned
        dims[a], dims[b] = dims[b], dims[a]
    return tuple(dims)


def _embedded(layout: Layout, operand: str, offset: str, first: str, second: str) -> Dims:
    """The last dimension gives way to two whole ones whose diagonal it is."""
    dims, shape = layout.dims(operand), layout.shape(operand)
    if not dims:
        layout.fail("a tensor without dimensions is no diagonal")
    at = [layout.dimension(name, len(dims) + 1) for name in (first, second)]
    layout.whole.update(dims[-1])
    out = list(dims[:-1])
    for position in sorted(at):
        size = shape[-1] + abs(layout.integers(offset)[0])
        out.insert(position, (layout.factor(f"w{position}", size, whole=True),))
    return tuple(out)


def _windows(layout: Layout, operand: str, dimension: str, length: str, step: str) -> Dims:
    """Windows over a dimension, whole unless they lie side by side and fill it; their elements come last."""
    dims, shape = list(layout.dims(operand)), layout.shape(operand)
    (size,), (stride,) = layout.integers(length), layout.integers(step)
    at = layout.dimension(dimension, len(dims))
    extent = shape[at] if dims else 1
    if not 0 <= size <= extent or stride < 1:
        layout.fail(f"no windows of {size} elements in steps of {stride} fit {extent} elements")
    tiles = bool(dims) and size == stride and size > 0 and extent % size == 0
    count = layout.factor(f"w{at}", (extent - size) // stride + 1, whole=not tiles)
    inner = layout.factor("e", size, whole=not tiles)
    if not dims:
        return ((inner,),)
    if tiles:
        old = list(dims)
        old[at] = (count, inner)
        layout.operand_dims[layout.binding.operands(operand)[0]] = tuple(old)
    else:
        layout.whole.update(dims[at])
    dims[at] = (count,)
    return (*dims, (inner,))


def _diagonal(layout: Layout, operand: str, offset: str, first: str, second: str) -> Dims:
    """Both dimensions are whole and give way to a last one."""
    dims, shape = layout.dims(operand), layout.shape(operand)
    at = [layout.dimension(name, len(dims)) for name in (first, second)]
    if at[0] == at[1]:
        layout.fail(f"there is no diagonal of one dimension, nor one without dimensions: {list(shape)}")
    layout.whole.update(f for p in at for f in dims[p])
    (shift,) = layout.integers(offset)
    length = max(0, min(shape[at[0]] + min(shift, 0), shape[at[1]] - max(shift, 0)))
    return (*(d for p, d in enumerate(dims) if p not in at), (layout.factor("w", length, whole=True),))


def _undiagonal(layout: Layout, operand: str, sizes: str, first: str, second: str) -> Dims:
    """The dimensions of the tensor, of shape `sizes`, whose diagonal `operand` is."""
    dims, shape = layout.dims(operand), layout.integers(sizes)
    at = sorted(layout.dimension(name, len(shape)) for name in (first, second))
    if len(dims) + 1 != len(shape) or at[0] == at[1]:
        layout.fail(f"a tensor of rank {len(dims)} is no diagonal of one of shape {list(shape)}")
    layout.whole.update(dims[-1])
    out = list(dims[:-1])
    for position in at:
        out.insert(position, (layout.factor(f"w{position}", shape[position], whole=True),))
    return tuple(out)


def _unwindowed(layout: Layout, operand: str, sizes: str, argument: str, length: str, step: str) -> Dims:
    """The dimensions of the tensor, of shape `sizes`, whose windows `operand` holds, as in `_windows`."""
    dims, shape = list(layout.dims(operand)), layout.integers(sizes)
    if len(dims) != len(shape) + 1 or not shape:
        layout.fail(f"a tensor of rank {len(dims)} holds no windows of one of shape {list(shape)}")
    at = layout.dimension(argument, len(shape))
    if layout.integers(length) == layout.integers(step) and math.prod(layout.shape(operand)) == math.prod(shape):
        return (*dims[:at], (*dims[at], *dims[-1]), *dims[at + 1 : -1])
    layout.whole.update((*dims[at], *dims[-1]))
    dims[at] = (layout.factor(f"w{at}", shape[at], whole=True),)
    return tuple(dims[:-1])


def _grid(layout: Layout, operands: str, *indexing: str) -> Dims:
    """Of a tensor, its one dimension; of the result, those of all tensors, the first two swapped for "xy"."""
    numbers = layout.binding.operands(operands)
    dims = [(layout.letter(f"g{k}", math.prod(layout.operands[i].shape), None),) for k, i in enumerate(numbers)]
    if layout.operand is not None:
        return (dims[numbers.index(layout.operand)],) if layout.operands[layout.operand].shape else ()
    if indexing and layout.argument(indexing[0]) == "xy":
        dims[:2] = dims[1::-1]
    return tuple(dims)


def _reshape_like(layout: Layout, operand: str, other: str) -> Dims:
    """The dimensions of `operand` in the shape of `other`, which lies alike."""
    dims = _reshape_to(layout, operand, layout.shape(other))
    layout.operand_dims[layout.binding.operands(other)[0]] = dims
    return dims


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


def _sliced(layout: Layout, operand: str, argument: str, start: str, end: str, step: str) -> Dims:
    """The dimension that is cut stands apart and gives way to another one, unless all of it stays."""
    dims, shape = list(layout.dims(operand)), layout.shape(operand)
    at = layout.dimension(argument, len(dims))
    step_size = layout.argument(step) or 1
    if not dims or not isinstance(step_size, int) or step_size < 1:
        layout.fail(f"rank {len(dims)} and step {step_size!r} give no slice; expected dimensions and a step from 1 on")
    begin, until, _ = slice(layout.argument(start), layout.argument(end)).indices(shape[at])
    _cut(layout, dims, argument, at, max(0, -(-(until - begin) // step_size)))
    return tuple(dims)


def _narrowed(layout: Layout, operand: str, argument: str, start: str, length: str) -> Dims:
    """As `_sliced`."""
    dims = list(layout.dims(operand))
    (size,) = layout.integers(length)
    _cut(layout, dims, argument, layout.dimension(argument, len(dims)), size)
    return tuple(dims)


def _cut(layout: Layout, dims: list[tuple[int, ...]], argument: str, at: int, size: int) -> None:
    """Put a whole dimension of `size` elements where one that stands apart was."""
    if size == math.prod(layout.sizes[f] or 0 for f in dims[at]):
        return
    if size:
        layout.set_apart(argument, at, dims[at])
    else:
        layout.whole.update(dims[at])
    dims[at] = (layout.factor(f"w{at}", size, whole=True),)


def _padded(layout: Layout, operand: str, argument: str) -> Dims:
    """Dimensions with padding stand apart and give way; `argument` lists pairs from the last dimension on."""
    dims, shape, pad = layout.dims(operand), layout.shape(operand), layout.integers(argument)
    if len(pad) % 2 or len(pad) > 2 * len(dims):
        layout.fail(f"argument '{argument}' is {list(pad)}; expected two numbers for each of the last dimensions")
    out = list(dims)
    for pair in reversed(range(len(pad) // 2)):
        low, high = pad[2 * pair : 2 * pair + 2]
        position = len(dims) - 1 - pair
        if low or high:
            if low < 0 or high < 0:
                layout.whole.update(dims[position])
            else:
                layout.set_apart(argument, position, dims[position])
            out[position] = (layout.factor(f"w{position}", shape[position] + low + high, whole=True),)
    return tuple(out)


def _tiled(layout: Layout, operand: str, argument: str) -> Dims:
    """As `_repeat`, where counts that are missing in front are 1."""
    repeats = layout.integers(argument)
    return _repeated(layout, operand, argument, (1,) * (len(layout.shape(operand)) - len(repeats)) + repeats)


def _repeat(layout: Layout, operand: str, argument: str) -> Dims:
    return _repeated(layout, operand, argument, layout.integers(argument))


def _repeated(layout: Layout, operand: str, argument: str, repeats: tuple[int, ...]) -> Dims:
    dims, shape = layout.dims(operand), layout.shape(operand)
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
        layout.set_apart(indices, position, dims[position])
    inserted = tuple((f,) for f in layout.refer("*i"))
    rest = [d for p, d in enumerate(dims) if p not in at]
    adjacent = at and at[-1] - at[0] == len(at) - 1
    front = at[0] if adjacent else 0
    return (*rest[:front], *inserted, *rest[front:])


def _concatenated(layout: Layout, operands: str, argument: str) -> Dims:
    """The dimensions of tensors joined along one that stands apart; torch lets vectors of no elements join any."""
    numbers = layout.binding.operands(operands)
    empty = [i for i in numbers if layout.operands[i].shape == (0,)]
    first = next((i for i in numbers if i not in empty), numbers[0])
    shape = layout.operands[first].shape
    at = layout.dimension(argument, len(shape))
    if not shape:
        layout.fail("tensors without dimensions cannot be concatenated; stack them")
    rest = [layout.refer(f"d{p}") or (layout.letter(f"d{p}", size, None),) for p, size in enumerate(shape) if p != at]
    if layout.operand is None:
        total = sum(layout.operands[i].shape[at] for i in numbers if i not in empty or first in empty)
        along = layout.factor(f"w{at}", total, whole=True)
    else:
        mine = layout.operands[layout.operand].shape
        if layout.operand in empty and first not in empty:
            return ((layout.factor("none", 0, whole=True),),)
        if len(mine) != len(shape) or any(s != t for p, (s, t) in enumerate(zip(mine, shape, strict=True)) if p != at):
            layout.fail(f"tensors of shapes {list(shape)} and {list(mine)} cannot be joined along dimension {at}")
        along = layout.factor(f"~{argument}", mine[at])
        layout.set_apart(argument, layout.operand, (along,))
    return (*rest[:at], (along,), *rest[at:])


def _take(layout: Layout, operand: str, argument: str) -> Dims:
    """The dimensions of `operand` with the one in `argument` replaced by that of an index `*i`."""
    dims = list(layout.dims(operand))
    if not dims:
        return ()
    dims[layout.dimension(argument, len(dims))] = layout.refer("*i")
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
    "drawn_like": DimensionMap(_drawn_like),
    "reduced": DimensionMap(_reduced),
    "unused": DimensionMap(_unused),
    "flatten": DimensionMap(_flatten),
    "unflatten": DimensionMap(_unflatten),
    "move": DimensionMap(_move),
    "diagonal": DimensionMap(_diagonal),
    "undiagonal": DimensionMap(_undiagonal),
    "grid": DimensionMap(_grid),
    "reshape_like": DimensionMap(_reshape_like),
    "unwindowed": DimensionMap(_unwindowed),
    "product": DimensionMap(_product),
    "outer": DimensionMap(_outer),
    "same": DimensionMap(_front(0)),
    "rows": DimensionMap(_front(1)),
    "batch": DimensionMap(_front(2)),
    "scores": DimensionMap(_scores),
    "leading": DimensionMap(_leading),
    "trailing": DimensionMap(_trailing),
    "permute": DimensionMap(_permute),
    "transpose": DimensionMap(_transpose),
    "reverse": DimensionMap(_t),
    "unsqueeze": DimensionMap(_unsqueeze),
    "squeeze": DimensionMap(_squeeze),
    "keep_equal": DimensionMap(_keep_equal),
    "sliced": DimensionMap(_sliced, apart=("dim",)),
    "narrowed": DimensionMap(_narrowed, apart=("dim",)),
    "padded": DimensionMap(_padded, apart=("pad",)),
    "repeat": DimensionMap(_repeat),
    "interleave": DimensionMap(_interleave),
    "index": DimensionMap(_index, apart=("indices",)),
    "take": DimensionMap(_take),
    "concatenated": DimensionMap(_concatenated, apart=("dim",)),
    "windows": DimensionMap(_windows),
    "rotated": DimensionMap(_rotated),
    "embedded": DimensionMap(_embedded),
    "tiled": DimensionMap(_tiled),
    "join": DimensionMap(_join),
    "subscripts": DimensionMap(_subscripts),
}
