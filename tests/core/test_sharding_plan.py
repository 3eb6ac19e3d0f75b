"""Plan files: what they say, and where they go wrong."""

from __future__ import annotations

import pytest

from spmdir.core import toml_text
from spmdir.core.errors import Location, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from spmdir.core.placement.sharding_plan import read_plan

MESH = Mesh({"dp": 2, "tp": 4})


def test_names_globs_and_unquoted_dotted_names_have_shardings_in_the_order_of_the_file() -> None:
    plan = read_plan(
        """
        out_shardings = ["dp: S(0)", "?", ""]
        [shardings]
        x = "dp: S(0)"
        "layers.*.weight" = "tp: S(1)"
        head.weight = "tp: ?"
        """,
        "plan.toml",
        MESH,
    )
    assert [(name, str(sharding)) for name, sharding in plan.shardings.items()] == [
        ("x", "dp: S(0)"),
        ("layers.*.weight", "tp: S(1)"),
        ("head.weight", "tp: ?"),
    ]
    assert plan.out_shardings == (parse_sharding("dp: S(0)"), None, parse_sharding(""))


def test_an_empty_plan_leaves_everything_open() -> None:
    plan = read_plan("", "plan.toml", MESH)
    assert (plan.shardings, plan.out_shardings) == ({}, None)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("[shardings]\nx = dp", "2:5", "Invalid value"),
        ("[shardings]\nx = 'dp: S(0)", "2:14", "Expected"),
        ("[shardings]\nx = 'a'\nx = 'b'", "3:8", "Cannot overwrite a value"),
        (
            "[sharding]\nx = 'dp: S(0)'",
            "1:1",
            "unknown key 'sharding'; expected keep, out_shardings",
        ),
        ("shardings = 'dp: S(0)'", "1:1", "'shardings' is not a table"),
        ("out_shardings = 'dp: S(0)'", "1:1", "'out_shardings' is not a list"),
        ("[shardings]\n\nx = 'pp: S(0)'", "3:6", "axis 'pp' is not in mesh"),
        ("[shardings]\n'a.*.b' = 'dp: Q'", "2:12", "unknown placement 'Q'"),
        ("[shardings]\nx = {dp = 0}", "2:1", "0 is not a sharding"),
        ("[shardings]\na.b = 1", "2:1", "1 is not a sharding"),
        ("[shardings]\nx = 'dp: S(0), dp: S(1)'", "2:6", "axis 'dp' has two placements"),
        ("out_shardings = ['', 'pp: R']\n[shardings]", "1:23", "axis 'pp' is not in mesh"),
    ],
)
def test_a_wrong_plan_is_rejected_at_its_place(text: str, place: str, message: str) -> None:
    with pytest.raises(SpmdirError) as error:
        read_plan(text, "plan.toml", MESH)
    assert str(error.value).startswith(f"plan.toml:{place}: error: {message}")


def test_a_plan_of_long_names_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(*arguments: object) -> Location:
        raise AssertionError("the place of what is right is not asked for")

    monkeypatch.setattr(toml_text, "text_location", counted)
    name = "shards" * 100_000
    text = f'[shardings]\n"{name}" = "dp: S(0)"\n' + "".join(f'"{name}{i}" = ""\n' for i in range(3))
    assert len(read_plan(text, "plan.toml", MESH).shardings) == 4
