"""Edited pipelined steps: each is rejected at a place in its text, or computes what one device computes."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import attrs
from hypothesis import strategies as st

from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir
from tests.fuzz.batch import Kind, Wrong
from tests.simulator import pipelined_steps as cases

CUTS = (("at=2", "1f1b"), ("ranks=2 at=1,2,3", "1f1b"), ("ranks=2 at=1,2,3", "zbv"), ("at=1,2", "gpipe"))
_PLACE = re.compile(r"<edited>:\d+:\d+$")


@cache
def _example(number: int) -> tuple[Any, Any, str]:
    """Return a training step, its state, and the text of its pipelined step."""
    cut, kind = CUTS[number]
    step, state, module = cases.step_of(cases.blocks, clip=0.1)
    return step, state, ir.print_ir(cases.pipelined(module, cut, kind))


@attrs.frozen
class EditedOrder:
    """A text whose order, stages or names were edited.

    Attributes:
        example: the index in CUTS.
        text: the edited text.
        edit: the description of the edit.
    """

    example: int
    text: str
    edit: str

    def __str__(self) -> str:
        return f"{CUTS[self.example]}: {self.edit}\n{self.text[self.text.index('spmd.pipeline') :]}"


def check(case: EditedOrder) -> str | None:
    """Run an accepted text; raises Wrong if it computes other numbers, or if an error has no place in the text."""
    step, state, _ = _example(case.example)
    try:
        module = ir.parse(case.text, "<edited>")
        error = cases.relative_error(step, state, module, cases.numbers(), 1)
    except SpmdirError as failure:
        for message in str(failure).splitlines():
            if not _PLACE.search(message.partition(": error: ")[0]):
                raise Wrong(f"an error without a place: {message}") from None
        return failure.message
    if error > 1e-12:
        raise Wrong(f"the edited step is accepted, with a relative error of {error}")
    return None


@st.composite
def edited_orders(draw: st.DrawFn) -> EditedOrder:
    """Draw a pipelined step with one or two edits."""
    example = draw(st.integers(0, len(CUTS) - 1))
    text, edits = _example(example)[2], []
    for _ in range(draw(st.integers(1, 2))):
        edit = draw(st.sampled_from((*_ORDER_EDITS, _place_stage, _list, _relist, _rename)))
        text, description = edit(draw, text)
        edits.append(description)
    return EditedOrder(example, text, "; ".join(edits))


def _entries(text: str) -> tuple[str, list[str]]:
    head, _, order = text.rpartition("  order\n")
    return f"{head}  order\n", order.rstrip().removesuffix("}").split()


def _with_entries(head: str, entries: list[str]) -> str:
    return f"{head}    {' '.join(entries)}\n}}\n"


def _swap(draw: st.DrawFn, text: str) -> tuple[str, str]:
    head, entries = _entries(text)
    first = draw(st.integers(0, len(entries) - 2))
    second = min(len(entries) - 1, first + draw(st.integers(1, 6)))
    entries[first], entries[second] = entries[second], entries[first]
    return _with_entries(head, entries), f"swap {entries[second]} and {entries[first]}"


def _move(draw: st.DrawFn, text: str) -> tuple[str, str]:
    head, entries = _entries(text)
    entry = entries.pop(draw(st.integers(0, len(entries) - 1)))
    position = draw(st.integers(0, len(entries)))
    entries.insert(position, entry)
    return _with_entries(head, entries), f"move {entry} to {position}"


def _drop(draw: st.DrawFn, text: str) -> tuple[str, str]:
    head, entries = _entries(text)
    entry = entries.pop(draw(st.integers(0, len(entries) - 1)))
    return _with_entries(head, entries), f"drop {entry}"


def _repeat(draw: st.DrawFn, text: str) -> tuple[str, str]:
    head, entries = _entries(text)
    entry = draw(st.sampled_from(entries))
    entries.insert(draw(st.integers(0, len(entries))), entry)
    return _with_entries(head, entries), f"repeat {entry}"


def _retarget(draw: st.DrawFn, text: str) -> tuple[str, str]:
    head, entries = _entries(text)
    position = draw(st.sampled_from([i for i, entry in enumerate(entries) if ">" in entry] or [0]))
    entries[position] = f"{entries[position].partition('>')[0]}>{draw(st.integers(0, 4))}"
    return _with_entries(head, entries), f"send {entries[position]}"


def _renumber(draw: st.DrawFn, text: str) -> tuple[str, str]:
    head, entries = _entries(text)
    position = draw(st.integers(0, len(entries) - 1))
    entries[position] = re.sub(
        r"^\d+([FIWBU])\d+", rf"{draw(st.integers(0, 4))}\g<1>{draw(st.integers(0, 4))}", entries[position]
    )
    return _with_entries(head, entries), f"renumber {entries[position]}"


def _place_stage(draw: st.DrawFn, text: str) -> tuple[str, str]:
    stages = re.findall(r"stage (\d+) at", text)
    stage, coordinate = draw(st.sampled_from(stages)), draw(st.integers(0, 4))
    return re.sub(rf"stage {stage} at \d+", f"stage {stage} at {coordinate}", text), f"stage {stage} at {coordinate}"


def _list(draw: st.DrawFn, text: str) -> tuple[str, str]:
    old = draw(st.sampled_from(["micro 4", "batch arg1_1, ", "gradients, ", "sums ", "lr, ", "outputs loss", "pp = "]))
    new = draw(st.sampled_from(["", "micro 2", "micro 8", "state ", "outputs parameters", "pp = 1"]))
    head, _, tail = text.partition("spmd.pipeline")
    return f"{head}spmd.pipeline{tail.replace(old, new, 1)}", f"'{new}' for '{old}'"


def _relist(draw: st.DrawFn, text: str) -> tuple[str, str]:
    lists = {key: text.partition(f"\n  {key} ")[2].partition("\n")[0].split(", ") for key in ("state", "sums")}
    key = draw(st.sampled_from(["state", "sums"]))
    other = "sums" if key == "state" else "state"
    name = draw(st.sampled_from(lists[key]))
    left = ", ".join(entry for entry in lists[key] if entry != name)
    text = text.replace(f"\n  {key} {', '.join(lists[key])}\n", f"\n  {key} {left}\n", 1)
    text = text.replace(f"\n  {other} {lists[other][0]}", f"\n  {other} {name}, {lists[other][0]}", 1)
    return text, f"'{name}' in {other}"


def _rename(draw: st.DrawFn, text: str) -> tuple[str, str]:
    names = re.findall(r'spmd.name = "(\w+)"', text) + re.findall(r"@(stage[\w.]+)", text)
    old = draw(st.sampled_from(names))
    position = draw(st.sampled_from([match.end() for match in re.finditer(rf'["@]{re.escape(old)}\b', text)]))
    return f"{text[:position]}_x{text[position:]}", f"{old}_x for {old}"


_ORDER_EDITS = _swap, _move, _drop, _repeat, _retarget, _renumber

STAGE_ORDERS = Kind("orders", edited_orders(), check, examples=100)
