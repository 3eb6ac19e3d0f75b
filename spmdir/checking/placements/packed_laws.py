"""Laws of packed placements: states combine in any order, and are finished position by position."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import attrs
import torch

from spmdir.checking.placements.comparison import difference
from spmdir.checking.placements.examples import held_types
from spmdir.checking.placements.law import Example, Law, if_concerned
from spmdir.checking.placements.layouts import layouts
from spmdir.checking.placements.samples_of_ops import samples_of
from spmdir.checking.rules.soundness import distribute, form_of, meta, prepare, strategies_of
from spmdir.core.dtype import F32, F64, DType, as_dtype
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.packed import PackedPlacement, joint_placement
from spmdir.core.placement.packing import Types
from spmdir.dialects.ring_ops import CombineOp
from spmdir.rules.rule_set import default
from spmdir.rules.strategies.placement_texts import texts_of
from spmdir.torch_interop.dtypes import TORCH_DTYPES

ROUNDINGS = 64
"""The allowed difference between two orders of combining, in roundings of the largest element."""


SCALES = (1.0, 300.0, 1e-3)


@attrs.frozen(kw_only=True)
class States(Example):
    """An example of states as the local form of an op computes them.

    Attributes:
        types: the shape and element type of each part.
    """

    types: Types


def _is_combined(placement: Placement) -> bool:
    return isinstance(placement, PackedPlacement) and placement.part == 0


def _states(placement: Placement) -> Iterator[Example]:
    if not isinstance(placement, PackedPlacement) or not _is_combined(placement):
        return
    if not placement.of_values:
        ops_and_types = dict.fromkeys(
            (op, types) for op in texts_of(type(placement)) for types in _types_of_states(placement, op)
        )
        for (op, types), scale in itertools.product(ops_and_types, SCALES):
            yield States(3, values="positive", scale=scale, about=f"states of {op} times {scale:g}", types=types)
        return
    shapes = dict.fromkeys(example.shape or () for example in layouts(placement))
    full = sorted(filter(math.prod, shapes), key=lambda shape: (len(shape) != 2, abs(math.prod(shape) - 24)))
    dtypes = [dtype for dtype in (F64, F32) if placement.supports(dtype)] or held_types(placement)[:1]
    for shape, dtype, scale in itertools.product(full[:2], dtypes, SCALES):
        yield Example(3, shape, dtype, "positive", scale)
    yield from (Example(3, shape, dtypes[0], "positive") for shape in shapes if not math.prod(shape))


def _types_of_states(placement: PackedPlacement, op: str) -> Iterator[tuple[tuple[tuple[int, ...], DType], ...]]:
    """Yield the types of the parts of states that the local forms of `op` combine on 2 ranks."""
    for sample in samples_of(frozenset([op])):
        case, mesh = prepare(sample, default()), Mesh({"x": 2})
        for strategy in strategies_of(case.rule, 2, (placement,)):
            local = [
                distribute(tensor, [(2, placement_of_operand)])[0]
                for tensor, placement_of_operand in zip(case.operands, strategy.operands, strict=True)
            ]
            form = form_of(case.rule, [("x", strategy)], mesh, tuple(map(meta, local)))
            for call in (expanded.call for expanded in form.ops) if form else ():
                if call.name == CombineOp.name and joint_placement(str(call.argument["by"])) == placement:
                    yield tuple((part.shape, part.dtype) for part in call.results if part)


def _drawn(placement: PackedPlacement, example: Example) -> list[list[torch.Tensor]]:
    """Return a state for each rank. Numbers are positive, because many parts are counts or sums of squares.

    If values may have the placement, the first state is that of a value with both signs.
    """
    generator = torch.Generator().manual_seed(example.seed)
    states = []
    if isinstance(example, States):
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


def _combined(placement: Placement, example: Example) -> str | None:
    assert isinstance(placement, PackedPlacement)
    a, b, c = _drawn(placement, example)
    once = placement.combine(_copied(a), _copied(b))
    if len(once) != len(a):
        return f"`combine` gives {len(once)} parts; expected {len(a)}: {', '.join(placement.parts)}"
    nothing = placement.identity(*_copied(a))
    if len(nothing) != len(a):
        return f"`identity` gives {len(nothing)} parts; expected {len(a)}: {', '.join(placement.parts)}"
    left = placement.combine(_copied(once), _copied(c))
    grouped = placement.combine(_copied(a), placement.combine(_copied(b), _copied(c)))
    for name, actual, expected in (
        ("combined with the identity", placement.combine(_copied(a), _copied(nothing)), a),
        ("that the identity is combined with", placement.combine(_copied(nothing), _copied(a)), a),
        ("of no rank but identities", placement.combine(_copied(nothing), _copied(nothing)), nothing),
        ("(b, a) in place of (a, b)", placement.combine(_copied(b), _copied(a)), once),
        ("(a, (b, c)) in place of ((a, b), c)", grouped, left),
    ):  # fmt: skip
        if fault := _difference(placement, actual, expected):
            return f"of the state {name}, {fault}"
    return None


def _finished(placement: Placement, example: Example) -> str | None:
    """Check that `finish` of the first rows of a state returns the first rows of its results."""
    assert isinstance(placement, PackedPlacement)
    a, b, _ = _drawn(placement, example)
    whole = _results(placement.finish(placement.combine(_copied(a), _copied(b))))
    expected = len(placement.results or placement.parts)
    if len(whole) != expected:
        return f"`finish` gives {len(whole)} results; expected {expected}"
    if all(part.dim() and len(part) for part in a) and placement.slices(0):
        half = len(a[0]) // 2
        rows = [[part[:half].clone() for part in state] for state in (a, b)]
        part = _results(placement.finish(placement.combine(*rows)))
        if fault := _difference(placement, part, [result[:half] for result in whole], placement.results):
            return f"of the first rows, {fault}, as of all rows"
    nothing = placement.combine(_copied(a), _copied(placement.identity(*a)))
    if fault := _difference(
        placement, _results(placement.finish(nothing)), _results(placement.finish(_copied(a))), placement.results
    ):
        return f"beside the identity, {fault}"
    return None


def _results(finished: Sequence[torch.Tensor] | torch.Tensor) -> Sequence[torch.Tensor]:
    return finished if isinstance(finished, (tuple, list)) else [finished]  # type: ignore[list-item]


def _difference(
    placement: PackedPlacement,
    actual: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    names: Sequence[str] = (),
) -> str | None:
    """Return the first part that differs by more than rounding, with its difference; None if none does."""
    for name, actual_part, expected_part in zip(names or placement.parts, actual, expected, strict=True):
        if fault := difference(actual_part, expected_part, _rounding(expected_part)):
            return f"'{name}' {fault}"
    return None


def _rounding(tensor: torch.Tensor) -> float:
    finite = tensor[tensor.isfinite()] if tensor.is_floating_point() else tensor[:0]
    largest = max(1.0, float(finite.abs().max()) if finite.numel() else 0.0)
    return ROUNDINGS * largest * torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0


def _copied(state: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a copy of a state, because methods of placements may change their operands."""
    return [part.clone() for part in state]


JOINT_LAWS = (
    Law(
        "combine",
        "states combine in any order and grouping, and the identity changes none",
        _states,
        _combined,
        ("combine", "identity"),
        subjects=if_concerned(_is_combined),
    ),
    Law(
        "finish",
        "each position of a state is finished by itself, and the identity changes no result",
        _states,
        _finished,
        ("finish", "slices"),
        subjects=if_concerned(_is_combined),
    ),
)
