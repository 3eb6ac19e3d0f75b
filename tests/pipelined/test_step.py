"""The text of a pipelined step, and errors in it."""

from __future__ import annotations

import pytest

from spmdir.pipelined.step import StepTextError, parse_step, print_step

TEXT = """over pp = 2 micro 2 {
  batch x, y
  state lr, parameters
  sums gradients, loss
  outputs loss
  stage 0 at 0: F @a, B @b, U @c
  stage 1 at 1: F @d, B @e, U @f, U @g
  order
    0F0 0F0>1 1F0 1B0 1B0>0 0B0 0U0 1U0 1U1
}"""


def test_the_text_is_the_step() -> None:
    step = parse_step(TEXT).step
    assert print_step(step) == TEXT
    assert (step.axis, step.ranks, step.micro, step.batch) == ("pp", 2, 2, ("x", "y"))
    assert step.is_state("parameters.up.weight") and step.is_sum("loss") and not step.is_state("losses")
    assert [f"{action}" for action, _ in step.functions()] == ["0F0", "0B0", "0U0", "1F0", "1B0", "1U0", "1U1"]


def test_comments_and_line_breaks_do_not_matter() -> None:
    text = TEXT.replace("batch x, y", "batch x, // the tokens\n    y").replace("1F0 1B0", "1F0\n  // backward\n  1B0")
    assert parse_step(text).step == parse_step(TEXT).step


@pytest.mark.parametrize(
    ("old", "new", "message", "at"),
    [
        ("over pp", "on pp", "expected the axis with its size", "on pp"),
        ("1B0>0", "1B0>", "invalid entry '1B0>'; expected an action such as 0F0", "1B0> "),
        ("0U0", "0X0", "invalid entry '0X0'", "0X0"),
        ("stage 1 at", "stage 2 at", "expected `stage 1 at 0: F @forward", "stage 2"),
        ("F @d", "F d", "found 'F d'; expected the kind of an action", "stage 1"),
        ("sums", "sum", "unknown clause 'sum'; expected one of batch, state, sums, outputs, stage or order", "sum "),
        ("x, y", "x y", "found 'x y'; expected names of tensors", "batch"),
        ("\n}", "\n", "'{' is not closed", "{"),
    ],
)
def test_errors_have_the_offset_of_their_cause(old: str, new: str, message: str, at: str) -> None:
    text = TEXT.replace(old, new)
    if old == "sums":
        text = TEXT.replace("  state lr, parameters\n", "").replace("batch x, y\n", "").replace("  sums", "sum")
    with pytest.raises(StepTextError) as raised:
        parse_step(text)
    assert message in raised.value.message
    assert text.startswith(at, raised.value.offset)
