"""What is wrong with a text, and where: the messages of the tools."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from spmdir.core.input_parts import parts_of
from spmdir.core.limits import CHARACTERS
from spmdir.language_server.completions import completions
from spmdir.language_server.declared_names import shard_hints
from spmdir.language_server.hover_texts import meaning
from spmdir.language_server.line_costs import line_costs
from spmdir.language_server.renaming import name_at
from spmdir.tools.command import run_in_process
from tests.language_server.texts import MLP, decided, document, underlined

BAD = sorted((Path(__file__).parents[1] / "golden" / "bad").rglob("*.mlir"))
UNDEFINED = "%9 is not defined before its use here; expected the name of an argument or of an earlier result"


def test_a_well_formed_program_has_no_mistakes() -> None:
    assert document(MLP).mistakes == ()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("aten.gelu(%0)", "aten.gelu(%9)", [("%9", UNDEFINED)]),
        ("mesh, dp: S(0)", "mesh, dp: S(7)", "expected a dimension below 2"),
        ("tp: S(1)", "qp: S(1)", "qp"),
    ],
)
def test_what_is_wrong_is_underlined(old: str, new: str, expected: list[tuple[str, str]] | str) -> None:
    found = underlined(document(MLP.replace(old, new)))
    if isinstance(expected, str):
        assert len(found) == 1 and expected in found[0][1]
    else:
        assert found == expected


def test_every_op_that_does_not_verify_is_underlined_to_its_end() -> None:
    text = MLP.replace("aten.gelu", "aten.gellu").replace("aten.mm(%1, %w2)", "aten.mmm(%x, %w2)")
    assert [piece for piece, _ in underlined(document(text))] == [
        '%1 = aten.gellu(%0) {approximate = "none"} : tensor<16x4096xf32>',
        "%2 = aten.mmm(%x, %w2) : tensor<16x1024xf32>",
    ]


def test_a_part_has_mistakes_of_its_own() -> None:
    found = document(f"{MLP}\n// -----\n{MLP.replace('%w1)', '%w9)')}\n// -----\n{MLP}")
    assert [one.span.start // len(MLP) for one in found.mistakes] == [1]
    assert [part.is_current for part in found.parts] == [True, False, True]


def test_a_broken_text_keeps_the_module_that_was_read_last() -> None:
    before = document(MLP)
    after = document(MLP.replace("%w1)", "%w1"), previous=before)
    assert after.mistakes and after.parts[0].module is before.parts[0].module


def test_an_op_of_a_models_source_is_underlined_in_the_text() -> None:
    text = MLP.replace("aten.gelu(%0)", "aten.gellu(%0)").replace(
        'none"} : tensor<16x4096xf32>', 'none"} : tensor<16x4096xf32> loc("model.py":3:1)'
    )
    assert underlined(document(text))[0][0].startswith("%1 = aten.gellu(%0)")


def test_the_messages_of_bad_programs_are_those_of_the_tool() -> None:
    for path in BAD:
        text = path.read_text()
        if "\n// -----" in text or "--" in text.partition("\n")[0] or "-p " in text.partition("\n")[0]:
            continue
        status, _, said = run_in_process(["spmd-opt", "-", "--no-verify-each"], text)
        found = document(text, str(path)).mistakes
        assert bool(found) == bool(status), path
        if found:
            assert found[0].message.splitlines()[0] in said, path
    assert len(BAD) > 50


def test_rules_and_rewrites_have_the_mistakes_of_their_parsers() -> None:
    rules = "my.op(x: m k) -> m    sum k\nmy.other(x: m -> m\nmy.third(x: m) -> q\n"
    assert [document(rules).scan.line(one.span.start) for one in document(rules, "my.rules").mistakes] == [1, 2, 2]
    (wrong,) = document("one: all_gather x on A dim d => y\n", "my.rewrites").mistakes
    assert wrong.span.start == len("one: all_gather x on A dim d => ")


@pytest.mark.parametrize(
    "text",
    ["%" * 5000, "(" * 5000, '"' * 99, "func.func " * 500, "// -----\n" * 200, "\0\x7f\ud7ff", "%0 = " * 999],
    ids=range(7),
)
@pytest.mark.parametrize("file", ["a.mlir", "a.rules", "a.rewrites"])
def test_hostile_texts_have_mistakes_or_none(text: str, file: str) -> None:
    for one in document(text, file).mistakes:
        assert 0 <= one.span.start <= one.span.end <= len(text)


def test_a_text_beyond_the_limit_is_not_read() -> None:
    (wrong,) = document("/" * (CHARACTERS.most + 1)).mistakes
    assert "too many bytes of text" in wrong.message


def test_decided_programs_of_all_stages_have_no_mistakes() -> None:
    assert all(
        document(decided("--propagate", *more)).mistakes == ()
        for more in ((), ("--insert-reshard",), ("--insert-reshard", "--lower-reshard", "--localize"))
    )


def test_offsets_of_parts_are_those_of_the_text() -> None:
    text = f"{MLP}// -----\n{MLP}"
    assert "".join(part for _, part in parts_of(text)) == text


@pytest.mark.parametrize("stage", ["--propagate", "--insert-reshard", "--lower-reshard", "--localize"])
def test_broken_programs_are_answered(stage: str) -> None:
    passes = ("--propagate", "--insert-reshard", "--lower-reshard", "--localize")
    text, random = decided(*passes[: passes.index(stage) + 1]), Random(stage)
    for new in ("", "%", "\n", "(", "<", '"', "}", "tp", "S(9)", "// -----\n", "é𝕩", "func.func @q(") * 2:
        at = random.randrange(len(text))
        broken = text[:at] + new + text[at + random.randrange(9) :]
        found = document(broken, previous=document(text) if random.random() < 0.5 else None)
        assert all(0 <= one.span.start <= one.span.end <= len(broken) for one in found.mistakes)
        for place in random.sample(range(len(broken) + 1), 5):
            meaning(found, place)
            name_at(found, place)
            completions(found, place)
        assert list(shard_hints(found, 0, len(broken))) or found.mistakes
        assert line_costs(found) == [] or not found.mistakes


def test_an_axis_that_the_mesh_lacks_is_said_once_and_answered() -> None:
    text = decided("--propagate", "--insert-reshard", "--lower-reshard")
    found = document(text.replace("<dp: S(0), tp: S(1)>", "<qp: S(0), tp: S(1)>"))
    assert [piece.partition(" ")[0] for piece, _ in underlined(found)] == ["%0"]
    for match in re.finditer("%", found.text):
        meaning(found, match.start() + 1)
    assert list(shard_hints(found, 0, len(text)))
