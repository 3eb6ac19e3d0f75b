"""Laws of packed placements: states combine in any order, and `finish` treats each position independently."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import attrs
import torch

from spmdir.checking.placements.comparison import difference
from spmdir.checking.placements.law import Example, Law, if_applicable
from spmdir.checking.placements.layouts import layouts
from spmdir.checking.placements.op_samples import samples_of
from spmdir.checking.placements.tensor_examples import supported_types
from spmdir.checking.rules.soundness import distribute, form_of, meta, prepare, strategies_of
from spmdir.core.dtype import F32, F64, DType, as_dtype
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.packed import PackedPlacement, find_packed_placement
from spmdir.core.placement.packing import Types
from spmdir.dialects.ring_ops import CombineOp
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.placement_texts import texts_of
from spmdir.torch_interop.dtypes import TORCH_DTYPES

ROUNDINGS = 64
"""The allowed difference between two orders of combining, in roundings of the largest element."""

SCALES = (1.0, 300.0, 1e-3)
"""The factors of the elements of states."""


@attrs.frozen(kw_only=True)
class StatesOfOp(Example):
    """States of the types that the local form of an op computes.

    Attributes:
        types: the shape and element type of each part.
    """

    types: Types


def _is_combined(placement: Placement) -> bool:
    """Return whether a placement is part 0 of a packed one. The laws of states are checked for this part only."""
    return isinstance(placement, PackedPlacement) and placement.part == 0


def _states(placement: Placement) -> Iterator[Example]:
    """Yield examples of the states of a packed placement; none for other placements.

    If values may have the placement, its states are those of two nonempty tensors and of empty ones. Otherwise they
    have the types of the states in the local forms of ops with strategies of the placement.
    """
    if not isinstance(placement, PackedPlacement) or not _is_combined(placement):
        return
    if not placement.of_values:
        ops_and_types = dict.fromkeys(
            (op, types) for op in texts_of(type(placement)) for types in _types_of_states(placement, op)
        )
        for (op, types), scale in itertools.product(ops_and_types, SCALES):
            yield StatesOfOp(3, values="positive", scale=scale, note=f"states of {op} times {scale:g}", types=types)
        return
    shapes = dict.fromkeys(example.shape or () for example in layouts(placement))
    # Matrices first, and shapes of about 24 elements.
    nonempty = sorted(filter(math.prod, shapes), key=lambda shape: (len(shape) != 2, abs(math.prod(shape) - 24)))
    dtypes = [dtype for dtype in (F64, F32) if placement.supports(dtype)] or supported_types(placement)[:1]
    for shape, dtype, scale in itertools.product(nonempty[:2], dtypes, SCALES):
        yield Example(3, shape, dtype, "positive", scale)
    yield from (Example(3, shape, dtypes[0], "positive") for shape in shapes if not math.prod(shape))


def _types_of_states(placement: PackedPlacement, op: str) -> Iterator[tuple[tuple[tuple[int, ...], DType], ...]]:
    """Yield the types of the parts of each state that the local forms of `op` combine on 2 ranks."""
    for sample in samples_of(frozenset([op])):
        case, mesh = prepare(sample, default()), Mesh({"x": 2})
        for strategy in strategies_of(case.rule, 2, (placement,)):
            local_operands = [
                distribute(operand, [(2, operand_placement)])[0]
                for operand, operand_placement in zip(case.operands, strategy.operands, strict=True)
            ]
            form = form_of(case.rule, [("x", strategy)], mesh, tuple(map(meta, local_operands)))
            calls = [expanded.call for expanded in form.ops] if form else []
            for call in calls:
                if call.name == CombineOp.name and find_packed_placement(str(call.argument["by"])) == placement:
                    yield tuple((part.shape, part.dtype) for part in call.results if part)


def _draw_states(placement: PackedPlacement, example: Example) -> list[list[torch.Tensor]]:
    """Return a random state for each rank. Elements are positive, because many parts are counts or sums of squares.

    If values may have the placement, the first state is `start` of a value with positive and negative elements.
    """
    generator = torch.Generator().manual_seed(example.seed)
    states = []
    if isinstance(example, StatesOfOp):
        types = example.types
    else:
        assert example.shape is not None and example.dtype is not None
        types = [(tuple(shape), as_dtype(kind)) for shape, kind in placement.types(example.shape, example.dtype)]
        value = torch.randn(example.shape, generator=generator, dtype=torch.float64) * example.scale
        states.append(list(placement.start(value.to(TORCH_DTYPES[example.dtype]))))
    while len(states) < example.ranks:
        parts = [torch.rand(shape, generator=generator, dtype=torch.float64) + 0.125 for shape, _ in types]
        kinds = [TORCH_DTYPES[kind] for _, kind in types]
        states.append([(part * example.scale).to(kind) for part, kind in zip(parts, kinds, strict=True)])
    return states


def _find_combine_fault(placement: Placement, example: Example) -> str | None:
    """Return a fault of `combine` or `identity`, such as that the order matters; None if there is none."""
    assert isinstance(placement, PackedPlacement)

    def combine(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Combine copies of two states."""
        return placement.combine(_copy(left), _copy(right))

    a, b, c = _draw_states(placement, example)
    combined = combine(a, b)
    if len(combined) != len(a):
        return f"`combine` returns {len(combined)} parts; expected {len(a)}: {', '.join(placement.parts)}"
    identity = placement.identity(*_copy(a))
    if len(identity) != len(a):
        return f"`identity` returns {len(identity)} parts; expected {len(a)}: {', '.join(placement.parts)}"
    for expression, actual, expected in (
        ("combine(a, identity)", combine(a, identity), a),
        ("combine(identity, a)", combine(identity, a), a),
        ("combine(identity, identity)", combine(identity, identity), identity),
        ("combine(b, a)", combine(b, a), combined),
        ("combine(a, combine(b, c))", combine(a, combine(b, c)), combine(combined, c)),
    ):
        if fault := _difference(placement, actual, expected):
            return f"in {expression} of states, {fault}"
    return None


def _find_finish_fault(placement: Placement, example: Example) -> str | None:
    """Return a fault of `finish`, or None. Three properties are checked:

    - It returns a tensor for each result of the placement, or for each part if the placement declares no results.
    - `finish` of the first rows of a state returns the first rows of its results, if the placement can be sliced.
    - Combining a state with the identity does not change its results.
    """
    assert isinstance(placement, PackedPlacement)

    def finish(state: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the results of a state as a list, also a single one."""
        results = placement.finish(state)
        return results if isinstance(results, (tuple, list)) else [results]  # type: ignore[list-item]

    a, b, _ = _draw_states(placement, example)
    results = finish(placement.combine(_copy(a), _copy(b)))
    expected_number = len(placement.results or placement.parts)
    if len(results) != expected_number:
        return f"`finish` returns {len(results)} results; expected {expected_number}"
    if all(part.dim() and len(part) for part in a) and placement.slices(0):
        half = len(a[0]) // 2
        first_rows = finish(placement.combine(*([part[:half].clone() for part in state] for state in (a, b))))
        if fault := _difference(placement, first_rows, [result[:half] for result in results], placement.results):
            return f"in `finish` of the first rows, {fault}, as in `finish` of all rows"
    with_identity = finish(placement.combine(_copy(a), _copy(placement.identity(*a))))
    if fault := _difference(placement, with_identity, finish(_copy(a)), placement.results):
        return f"in `finish` of a state combined with the identity, {fault}"
    return None


def _difference(
    placement: PackedPlacement,
    actual: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    names: Sequence[str] = (),
) -> str | None:
    """Return the name of the first part with a difference that exceeds rounding, and the difference, else None."""
    for name, actual_part, expected_part in zip(names or placement.parts, actual, expected, strict=True):
        if fault := difference(actual_part, expected_part, _rounding_limit(expected_part)):
            return f"'{name}' {fault}"
    return None


def _rounding_limit(tensor: torch.Tensor) -> float:
    """Return the error that rounding may cause in a tensor; 0 for integers."""
    finite = tensor[tensor.isfinite()] if tensor.is_floating_point() else tensor[:0]
    largest = max(1.0, float(finite.abs().max()) if finite.numel() else 0.0)
    return ROUNDINGS * largest * torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0


def _copy(state: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a copy of a state, because methods of placements may change their operands."""
    return [part.clone() for part in state]


PACKED_LAWS = (
    Law(
        "combine",
        "`combine` is associative and commutative, and the identity changes no state",
        _states,
        _find_combine_fault,
        ("combine", "identity"),
        subjects=if_applicable(_is_combined),
    ),
    Law(
        "finish",
        "`finish` treats each position independently, and the identity changes no result",
        _states,
        _find_finish_fault,
        ("finish", "slices"),
        subjects=if_applicable(_is_combined),
    ),
)
