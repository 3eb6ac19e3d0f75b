"""Wrong placements are found: the broken law is named, with an example, at the class."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

import spmdir
from spmdir.checking.placements import LAWS, Effort, check_placement, check_plugin
from spmdir.checking.placements.step_laws import moves_of_large_tensors
from spmdir.core.errors import SpmdirError
from spmdir.core.placement.base import parse_placement
from spmdir.tools import spmd
from tests.checking.placements.right_placements import CHUNKED, DEALT, MOMENTS, RIGHT, ROOTED, TOTAL
from tests.checking.placements.wrong_made import source
from tests.checking.placements.wrong_table import ONLY, WRONG, broken_laws

SOME = 4
"""Examples of a law that are tried of what holds it; `make check-placements` tries all."""

CHEAP = tuple(
    law.name for law in LAWS if law.name not in ("edge", "precision", "steps", "state", "rules") and not law.is_slow
)
"""Laws that lower no program, and start no process."""


def written(tmp_path: Path, text: str, name: str = "Own") -> str:
    path = tmp_path / "own.py"
    path.write_text(source(text, name))
    return str(path)


NEVER_TAKEN = pytest.mark.filterwarnings("ignore:.*no plan can use this edge of .*:spmdir.core.errors.SpmdirWarning")
"""What is wrong with the edges of some placements is a warning where a program is planned."""


@NEVER_TAKEN
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_placement_breaks_its_law(tmp_path: Path, name: str) -> None:
    law = WRONG[name].law
    if law != "examples":
        assert broken_laws(name, tmp_path, [law]) == [law]
        return
    (error,) = check_plugin(written(tmp_path, WRONG[name].text, name)).broken
    assert f"{name}: law 'examples'" in error.message


@NEVER_TAKEN
@pytest.mark.parametrize("law", ONLY)
def test_a_wrong_placement_of_a_law_breaks_no_other(tmp_path: Path, law: str) -> None:
    """`make check-placements` tries the laws that cost more, and more examples."""
    path = written(tmp_path, WRONG[ONLY[law]].text, f"{ONLY[law]}Alone")
    others = tuple(other for other in CHEAP if other != law)
    report = check_plugin(path, Effort(quick=True, laws=others, few=SOME))
    assert WRONG[ONLY[law]].law == law and report.sound, str(report)


def test_every_law_is_broken_by_a_placement_that_breaks_no_other() -> None:
    assert {law.name for law in LAWS} - set(ONLY) == {"planned"}


def test_a_class_that_no_other_process_can_load_is_reported_unchecked() -> None:
    @attrs.frozen
    class DeclaredInMain(spmdir.placement.ShardPlacement):
        __module__ = "__main__"
        text = "DeclaredInMain({dim})"
        dim: int

        def ranges(self, size: int, count: int, index: int) -> tuple[tuple[int, int], ...]:
            step = -(-size // count)
            return ((min(index * step, size), min((index + 1) * step, size)),)

    (law,) = (law for law in LAWS if law.name == "processes")
    assert list(law.subjects(DeclaredInMain(0))) == [""] and not list(law.examples(DeclaredInMain(0)))  # type: ignore
    assert law.remedy == "define the class in a file that another process can load"


@pytest.mark.parametrize("name", RIGHT)
def test_what_wrong_placements_are_made_from_is_right(tmp_path: Path, name: str) -> None:
    report = check_plugin(written(tmp_path, RIGHT[name], name), Effort(quick=True, few=SOME))
    assert report.sound, str(report)


def test_moments_combine_in_any_order(tmp_path: Path) -> None:
    laws = ("text", "local shape", "inverse", "combine", "finish")
    report = check_plugin(written(tmp_path, MOMENTS, "RightMoments"), Effort(laws=laws))
    assert report.sound, str(report)


def test_what_is_rejected_for_some_numbers_of_ranks_is_not_tried_with_them(tmp_path: Path) -> None:
    picky = """
    def check(self, shape, count):
        if count != 3:
            raise SpmdirError(f"{self} is for 3 ranks; found {count}")
    """
    report = check_plugin(written(tmp_path, "from spmdir import SpmdirError\n\n" + DEALT + picky, "ThreeOnly"))
    assert report.sound, str(report)


SHIPPED = ("cyclic", "masked", "norm", "quantised", "ragged", "strided", "zigzag")
"""`make check-placements` tries all."""


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_placements_hold_every_law(name: str) -> None:
    report = check_plugin(f"spmdir/placements/{name}.py", Effort(quick=True, few=SOME))
    assert report.sound, str(report)


@pytest.mark.parametrize("dim", range(4))
def test_the_tensors_of_costs_fit_into_memory(dim: int) -> None:
    """Padded shards a dimension that its class does not name, so all dimensions of these tensors are alike."""
    shapes = [move.shape or () for move in moves_of_large_tensors(parse_placement(f"Padded({dim})"))]
    assert shapes and max(map(math.prod, shapes)) <= 1_000_000


def test_standard_placements_hold_every_law() -> None:
    """`make check-placements` tries the others."""
    report = check_placement("R", "S(0)", "P(max)", quick=True)
    assert report.sound, str(report)


def test_the_tool_prints_a_line_a_placement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        spmd.main(["check-placement", written(tmp_path, TOTAL, "LineByLine"), "--law", "text", "--law", "identity"])
        == 0
    )
    out, err = capsys.readouterr()
    assert out.startswith("LineByLine: ") and " laws hold (" in out and not err


def test_the_tool_names_law_example_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, TOTAL + "\n    def collect(self, shards, shape):\n        return undefined\n", "Told")
    assert spmd.main(["check-placement", path]) == 1
    err = capsys.readouterr().err
    line = Path(path).read_text().splitlines().index("        return undefined") + 1
    assert err.startswith(f"{path}:{line}:1: error: Told: law 'inverse' (`collect` restores")
    assert "is broken on tensor<f64> of random values, 1 rank: raises NameError" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("x = 1\n", None, "the file declares no placement; expected a class"),
        ("class NAME(Placement):\n    text: ClassVar[str] = 'NAME'\n", "class", "NAME is not an attrs class"),
        (
            "@attrs.frozen\nclass NAME(Placement):\n    text: ClassVar[str] = 'NAME({n})'\n"
            "    n: int = attrs.field(validator=attrs.validators.ge(100))\n",
            "@attrs",
            "NAME: law 'examples' (its `examples` are its texts, or its fields accept usual values) is broken: NAME ",
        ),
        ("1 / 0\n", "1 / 0", "plug-in failed: ZeroDivisionError"),
        (
            "@attrs.frozen\nclass NAME(Placement):\n    text: str = 'NAME({n})'\n    n: int\n",
            "class",
            "NAME declares `text` as a field; expected a class attribute, since all placements of a class have one "
            "`text`: write `text: ClassVar[…]",
        ),
        (
            "@attrs.frozen\nclass NAME(ShardPlacement):\n    text: ClassVar[str] = 'NAME({axis})'\n    axis: int\n",
            "@attrs",
            "NAME: law 'examples' (its `examples` are its texts, or its fields accept usual values) is broken: NAME "
            "has no field `dim`; expected the dimension that a ShardPlacement shards: add the field `dim: int`",
        ),
        (
            "@attrs.frozen\nclass NAME(Placement):\n    text: ClassVar[str] = 'S({n})'\n    n: int\n",
            "class",
            "placement 'S' is declared by spmdir.core.placement.standard, which comes with spmdir",
        ),
        (
            "@attrs.frozen\nclass NAME(Placement):\n    text: ClassVar[str] = 'NAME<{n}>'\n    n: int\n",
            "class",
            "the text of spmdir_plugin_",
        ),
    ],
    ids=["none", "undecorated", "picky", "failing", "field", "axis", "conflict", "angular"],
)
def test_a_file_that_cannot_be_checked_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, line: str | None, message: str
) -> None:
    path = written(tmp_path, text, f"Bare{len(text)}")
    assert spmd.main(["check-placement", path]) == 1
    lines = Path(path).read_text().splitlines()
    number = next((at for at, found in enumerate(lines, 1) if line and found.startswith(line)), 1)
    assert capsys.readouterr().err.startswith(
        f"{path}:{number}:1: error: {message.replace('NAME', f'Bare{len(text)}')}"
    )


def test_a_quick_check_says_how_many_examples_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert spmd.main(["check-placement", written(tmp_path, DEALT, "Quickly"), "--quick", "--law", "partition"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"Quickly\(0, 2\): 1 laws hold \(12 of \d{2,} examples\)", line)


OF_OPS = (
    CHUNKED
    + """
    rules: ClassVar[str] = '''
    aten.flip: (NAME(1)) -> (NAME(1))    when rank(self) == 7
    '''
"""
)


@pytest.mark.parametrize(
    ("text", "law", "message"),
    [
        (OF_OPS, "text strategies", "law 'text strategies' of aten.flip: (NAME(1)) -> (NAME(1)); add shapes"),
        (
            CHUNKED + "\n    def check(self, shape, count):\n        raise ShardingError('never')\n",
            "inverse",
            "law 'inverse'; `check` rejects all tensors of the examples: add shapes that it accepts to `sample_shapes`",
        ),
        (
            ROOTED.replace('target="R"', 'target="S(9)"'),
            "edge",
            "law 'edge' of the edge to S(9); add shapes",
        ),
        (
            ROOTED
            + "\n    def lift(self, rule, strategies):"
            + "\n        return rule.combining(self) if rule.name == 'aten.relu' else ()\n",
            "rules",
            "law 'rules' of aten.relu; add shapes",
        ),
    ],
    ids=["strategy", "tensor", "edge", "op"],
)
def test_what_no_example_meets_is_a_failure_unless_the_class_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, law: str, message: str
) -> None:
    name = f"Unmet{len(text)}"
    assert spmd.main(["check-placement", written(tmp_path, text, name), "--law", law]) == 1
    error = capsys.readouterr().err
    assert f"not checked, since no example fits: {message.replace('NAME', name)}" in error
    reason = f"\n    unchecked: ClassVar[dict[str, str]] = {{'{law}': 'seen on machines alone'}}\n"
    assert spmd.main(["check-placement", written(tmp_path, text + reason, f"{name}Said"), "--law", law]) == 0
    assert "is not checked: seen on machines alone" in capsys.readouterr().out


def test_shapes_of_the_class_are_tried(tmp_path: Path) -> None:
    picky = """
    sample_shapes: ClassVar[tuple[tuple[int, ...], ...]] = ((17, 19, 23),)

    def check(self, shape, count):
        if tuple(shape) != (17, 19, 23):
            raise ShardingError(f"{self} is of tensors of 17x19x23; found {list(shape)}")
"""
    (error,) = check_plugin(written(tmp_path, CHUNKED + picky.split("\n\n", 1)[1], "Found"), CHECKED).errors
    assert "`check` rejects all tensors of the examples" in error.message
    assert check_plugin(written(tmp_path, CHUNKED + picky, "Given"), CHECKED).sound


CHECKED = Effort(laws=("partition", "local shape", "inverse"))


def test_code_that_does_not_end_is_cut_off_at_its_line(tmp_path: Path) -> None:
    text = CHUNKED.replace("step = -(-size // count)", "while True:\n            pass")
    path = written(tmp_path, text, "Endless")
    (error,) = check_plugin(path, Effort(laws=("partition",), seconds=0.2)).broken
    assert "takes longer than 0.2 s; expected a result in less time" in error.message
    assert error.location is not None
    assert Path(path).read_text().splitlines()[error.location.line - 1].strip() in ("while True:", "pass")


def test_nothing_is_tried_after_code_that_does_not_end(tmp_path: Path) -> None:
    text = CHUNKED.replace("step = -(-size // count)", "while self.dim == 0:\n            pass\n        step = 1")
    path = written(tmp_path, text.replace('("NAME(0)",)', '("NAME(0)", "NAME(1)")'), "FirstEndless")
    report = check_plugin(path, Effort(laws=("partition",), seconds=0.2))
    assert len(report.verdicts) == 1 and "; the check ends here" in str(report)


def test_a_fault_is_placed_at_the_method_that_it_is_about(tmp_path: Path) -> None:
    path = written(tmp_path, WRONG["Unscaled"].text, "Placed")
    (error, *_) = check_plugin(path, Effort(laws=("scaled",))).broken
    assert error.location is not None
    assert Path(path).read_text().splitlines()[error.location.line - 1].strip() == "def scaled(self, inner):"


def test_torch_logs_nothing_before_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = ROOTED.replace("return group.broadcast(", "return x @ x.new_ones(77, 3) + group.broadcast(")
    assert spmd.main(["check-placement", written(tmp_path, text, "Logging"), "--law", "edge"]) == 1
    assert capfd.readouterr().err.startswith(str(tmp_path))


@pytest.mark.parametrize("name", ["nonsense", "partitoin"])
def test_a_law_that_there_is_not_is_an_error(name: str) -> None:
    with pytest.raises(SpmdirError, match=f"unknown law '{name}'"):
        Effort(laws=(name,))


def test_laws_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert spmd.main(["check-placement", "--list-laws"]) == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [law.name for law in LAWS]


@pytest.mark.parametrize("given", [3, None, int])
def test_what_is_not_a_placement_is_rejected(given: Any) -> None:
    with pytest.raises(SpmdirError, match="expected a class, a value or the text"):
        check_placement(given)
