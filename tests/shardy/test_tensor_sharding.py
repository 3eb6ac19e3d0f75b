"""Shardings in Shardy's form and back."""

from __future__ import annotations

import pytest

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from spmdir.shardy.tensor_sharding import from_tensor_sharding, parse_tensor_sharding, to_tensor_sharding

MESH = Mesh({"dp": 2, "tp": 8})
SHAPE = (16, 32)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "[{}, {}]"),
        ("dp: S(0), tp: S(1)", '[{"dp"}, {"tp"}]'),
        ("dp: S(1), tp: S(1)", '[{}, {"dp", "tp"}]'),
        ("tp: S(0), dp: S(0)", '[{"tp", "dp"}, {}]'),
        ("tp(1)2: S(0), tp(4)2: S(1)", '[{"tp":(1)2}, {"tp":(4)2}]'),
        ("dp: S(0), tp: P(sum)", '[{"dp"}, {}], unreduced={"tp"}'),
        ("tp(1)2: P(sum), tp(2)4: S(0)", '[{"tp":(2)4}, {}], unreduced={"tp":(1)2}'),
        ("dp: S(0), tp: ?", '[{"dp", ?}, {?}]'),
        ("dp: ?, tp: ?", "[{?}, {?}]"),
        ("dp: ?", '[{?}, {?}], replicated={"tp"}'),
        ("tp(1)2: S(0), dp: ?", '[{"tp":(1)2, ?}, {?}], replicated={"tp":(2)4}'),
        ("tp(1)2: S(0), tp(2)4: ?", '[{"tp":(1)2, ?}, {?}], replicated={"dp"}'),
    ],
)
def test_a_sharding_has_one_form_in_sdy(text: str, expected: str) -> None:
    sharding = parse_sharding(text)
    translated = to_tensor_sharding(sharding, MESH, SHAPE)
    assert str(translated) == f"<@mesh, {expected}>"
    assert parse_tensor_sharding(str(translated)) == translated
    assert from_tensor_sharding(translated, MESH, SHAPE) == sharding


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"dp"}p0, {"tp", ?}]', "dp: S(0), tp: S(1)"),
        ('[{"dp"}, {?}], replicated={"tp"}', "dp: S(0)"),
        ('[ { "tp" : (1)2 ,"tp":(2)4} , { } ]'.replace(" : ", ":"), "tp: S(0)"),
        ('[{?}, {?}], replicated={}, unreduced=sum{"tp"}', "dp: ?, tp: P(sum)"),
    ],
)
def test_other_forms_with_the_same_meaning_are_read(text: str, expected: str) -> None:
    assert str(from_tensor_sharding(parse_tensor_sharding(f"<@mesh, {text}>"), MESH, SHAPE)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp: P(max)", "P(max) on axis 'dp' has no counterpart in sdy; expected S, R, P(sum) or an open axis"),
        ("dp: P(avg)", "P(avg) on axis 'dp' has no counterpart in sdy"),
        ("dp: Cyclic(0, 2)", "Cyclic(0, 2) on axis 'dp' has no counterpart in sdy"),
        ("dp: S(0), tp: S(0)", "dimension 0 of size 24 is sharded over 16 ranks; expected a size that the"),
    ],
)
def test_a_sharding_that_sdy_lacks_is_an_error(text: str, message: str) -> None:
    with pytest.raises(SpmdirError) as error:
        to_tensor_sharding(parse_sharding(text), MESH, (24, 32))
    assert message in error.value.message


def test_an_open_axis_of_a_scalar_is_an_error() -> None:
    with pytest.raises(SpmdirError, match="axis 'dp' of a scalar is open"):
        to_tensor_sharding(parse_sharding("dp: ?"), MESH, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<mesh<["dp"=2]>, [{"dp"}, {}]>', "expected a sharding on a named mesh"),
        ('<@other, [{"dp"}, {}]>', "the sharding is on @other; expected the mesh of the module, @mesh"),
        ('<@mesh, [{"dp"}]>', "the sharding has 1 dimensions, but the tensor has 2"),
        (
            '<@mesh, [{"dp"}p1, {}]>',
            "dimension 0 has priority 1; expected none, since spmdir has no priorities: remove 'p1'",
        ),
        ('<@mesh, [{"ep"}, {}]>', "axis 'ep' is not in mesh @mesh"),
        ('<@mesh, [{"tp":(3)2}, {}]>', "'tp(3)2' is not a sub-axis of 'tp'"),
        ('<@mesh, [{"dp"}, {"dp"}]>', "axis 'dp' has two placements"),
        ('<@mesh, [{?}, {"dp"}]>', "dimension 0 is open and dimension 1 is closed"),
        ('<@mesh, [{}, {}], unreduced=max{"dp"}>', "values are unreduced by max; expected sums"),
        ('<@mesh, [{}, {}], sharded={"dp"}>', "expected replicated={…} or unreduced={…}"),
        ("<@mesh, [{}, dp]>", "expected the axes of each dimension"),
        ('<@mesh, [{"dp", "tp"}, {}]>', "dimension 0 of size 24 is sharded over 16 ranks"),
    ],
)
def test_a_sharding_that_spmdir_lacks_is_an_error(text: str, message: str) -> None:
    with pytest.raises(SpmdirError) as error:
        from_tensor_sharding(parse_tensor_sharding(text), MESH, (24, 32))
    assert message in error.value.message
