"""Random edits of a program's text at any stage, and what comes of an edited program.

An edit changes one thing that says how the program is distributed, or that a compiler might get wrong: a sharding, a
collective and its attributes, an operand, a literal, a global shape, an attribute of an argument. A few edits may meet
and hide each other, so `random_edit` makes one to three.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import torch

from spmdir import SpmdirError, simulate
from spmdir.analysis.local_programs.globalize import globalize
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.names import full_name
from spmdir.dialects.stage import is_local
from spmdir.simulator.simulate import run_single
from spmdir.torch_interop.dtypes import TORCH_DTYPES

SHARDING = re.compile(r"(?<=> )<([^<>]*)>|(?<=@mesh)((?:, )?[^<>]*)(?=>)")
ENTRY = re.compile(r"[\w()]+: [A-Z]\w*(?:\([^()]*\))?")
VALUE = re.compile(r"%[\w.#]+")
INTEGER = re.compile(r"(?<![\w.%-])-?\d+(?![\w.])")
DEFINITION = re.compile(r"  (%[\w.]+) = ([\w.]+)[( ]")
PLACEMENTS = ("R", "S(0)", "S(1)", "S(2)", "P(sum)", "P(max)", "P(avg)", "Cyclic(0, 1)", "Cyclic(0, 2)", "Masked")
SIBLINGS = (
    ("sum", "max", "min", "avg", "product"),
    ("size", "offset", "end"),
    ("before", "after"),
    ("zero", "lowest"),
    ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "slice", "partition", "permute", "broadcast"),
    ("aten.lt.Scalar", "aten.le.Scalar", "aten.ge.Scalar", "aten.gt.Scalar", "aten.ne.Scalar"),
    ("aten.add.Scalar", "aten.sub.Scalar", "aten.mul.Scalar"),
    ("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor"),
    ("aten.logical_and", "aten.logical_or"),
    ("aten.relu", "aten.exp", "aten.tanh", "aten.neg"),
    ("aten.tril", "aten.triu"),
    ("true", "false"),
    ("spmd.halo", "spmd.halo_reduce"),
)  # fmt: skip
"""Words that stand for each other somewhere."""


def random_edit(text: str, random: Random) -> str:
    """Return `text` after one to three random edits; it may then be not a program at all."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        for _ in range(20):
            edited = random.choice(EDITS)(text, random)
            if edited is not None and edited != text:
                text = edited
                break
    return text


def _instead(pattern: re.Pattern[str], text: str, random: Random, new: Callable[[str], str]) -> str | None:
    """Return `text` with one of the places of `pattern` replaced by what `new` makes of it."""
    found = [match for match in pattern.finditer(text) if match.start() > text.find("func.func")]
    if not found:
        return None
    match = random.choice(found)
    return text[: match.start()] + new(match[0]) + text[match.end() :]


def axes(text: str) -> list[str]:
    """Return the axes of the mesh that `text` declares."""
    return re.findall(r"(\w+) = \d+", text.partition("<")[2].partition(">")[0])


def placement(text: str, random: Random) -> str | None:
    """Return `text` with another placement for one axis somewhere, or none."""
    other = f"{random.choice(axes(text))}: {random.choice(PLACEMENTS)}"
    return _instead(ENTRY, text, random, lambda old: random.choice((other, f"{old.partition(':')[0]}: S(0)", "R")))


def sharding(text: str, random: Random) -> str | None:
    """Return `text` with another sharding for one value: another value's, none, one more axis, or another order of
    axes."""

    def new(old: str) -> str:
        bracketed = old.startswith("<")
        entries = ENTRY.findall(old)
        others = [ENTRY.findall(match[0]) for match in SHARDING.finditer(text)]
        more = [*entries, f"{random.choice(axes(text))}: {random.choice(PLACEMENTS)}"]
        found = ", ".join(random.choice((random.choice(others), [], more, entries[::-1])))
        return f"<{found}>" if bracketed else f", {found}" if found else ""

    return _instead(SHARDING, text, random, new)


def integer(text: str, random: Random) -> str | None:
    """Return `text` with another integer somewhere."""
    others = INTEGER.findall(text)
    return _instead(INTEGER, text, random, lambda old: random.choice((str(int(old) + 1), str(int(old) - 1), *others)))


def axis(text: str, random: Random) -> str | None:
    """Return `text` with another axis in a collective or in a number of a rank."""
    named = axes(text)
    pattern = re.compile(rf"(?<=[\[ (])(?:{'|'.join(named)})(?=[,\])])")
    return _instead(pattern, text, random, lambda old: random.choice((*named, f"{random.choice(named)}(1)2")))


def word(text: str, random: Random) -> str | None:
    """Return `text` with another op, reduction or kind of number that could stand in one place."""
    family = random.choice(SIBLINGS)
    pattern = re.compile(rf"(?<![\w.])(?:spmd\.)?(?:{'|'.join(map(re.escape, family))})(?![\w.])")

    def new(old: str) -> str:
        prefix = "spmd." if old.startswith("spmd.") and not family[0].startswith("spmd.") else ""
        return prefix + random.choice(family)

    return _instead(pattern, text, random, new)


def operand(text: str, random: Random) -> str | None:
    """Return `text` with another operand for an op or the return."""
    values = VALUE.findall(text)
    return _instead(VALUE, text, random, lambda old: random.choice(values))


def deletion(text: str, random: Random) -> str | None:
    """Return `text` without one op: its users take its operand, which may then have the sharding of the op's result."""
    lines = text.split("\n")
    found = [index for index, line in enumerate(lines) if DEFINITION.match(line) and len(VALUE.findall(line)) > 1]
    if not found:
        return None
    line = lines.pop(random.choice(found))
    gone, kept = VALUE.findall(line)[0], VALUE.findall(line)[1]
    given = SHARDING.search(line)
    for index, other in enumerate(lines):
        if given and random.random() < 0.7 and re.match(rf"  {re.escape(kept)} = ", other):
            other = SHARDING.sub(lambda match: given[0], other, count=1)
        lines[index] = re.sub(rf"{re.escape(gone)}(?![\w.])", kept, other)
    return "\n".join(lines)


def repetition(text: str, random: Random) -> str | None:
    """Return `text` with an op repeated on its own result."""
    lines = text.split("\n")
    found = [index for index, line in enumerate(lines) if DEFINITION.match(line) and len(VALUE.findall(line)) > 1]
    if not found:
        return None
    at = random.choice(found)
    result, first = VALUE.findall(lines[at])[:2]
    body = re.sub(rf"{re.escape(first)}(?![\w.])", result, lines[at].partition(" = ")[2])
    rest = [re.sub(rf"{re.escape(result)}(?![\w.])", "%again", line) for line in lines[at + 1 :]]
    return "\n".join([*lines[: at + 1], f"  %again = {body}", *rest])


def swap(text: str, random: Random) -> str | None:
    """Two ops next to each other, or the first two operands of an op, change places."""
    if random.random() < 0.5:
        pattern = re.compile(r"%[\w.]+, %[\w.]+")
        return _instead(pattern, text, random, lambda old: ", ".join(old.split(", ")[::-1]))
    lines = text.split("\n")
    found = [at for at in range(len(lines) - 1) if all(map(DEFINITION.match, lines[at : at + 2]))]
    if not found:
        return None
    at = random.choice(found)
    return "\n".join([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]])


def removal(text: str, random: Random) -> str | None:
    """Something said of an op, an argument or a result is not said."""
    said = random.choice((
        r" of \[[^\n]*", r"spmd\.of = #spmd\.shapes<[^<>]*>", r"spmd\.sharding = #spmd\.sharding<[^<>]*>(?:, )?",
        r" attributes \{[^\n]*\}\}", r" attributes \{spmd\.local\}", r"_start", r" needs \([^()]*\)", r" fill lowest",
        r" on \[[^\]]*\]", r" \{[^{}\n]*\}(?= :)",
    ))  # fmt: skip
    return _instead(re.compile(said), text, random, lambda old: "")


EDITS = (placement, sharding, integer, axis, word, operand, deletion, repetition, swap, removal)
"""What may be done to a text."""


def outcome(text: str, inputs: Mapping[str, Any], rtol: float = 1e-9) -> str:
    """Return what becomes of a program: "rejected", "right", or "wrong" if it does not compute what it says.

    What it says is its single-device form: the program without its shardings and collectives. Of the program of one
    rank it is that of the global program that its values and local forms tell of.

    Args:
        inputs: every argument by name; a program that takes others is rejected.
    """
    try:
        module = ir.parse(text)
        found = simulate(module, dict(inputs), dict(inputs))
    except SpmdirError:
        return "rejected"
    whole = globalize(module, ir.main_function(module), ir.context()) if is_local(ir.main_function(module)) else module
    unread = [argument for argument in ir.main_function(whole).args if full_name(argument) not in inputs]
    given = {**inputs, **{full_name(argument): _zeros(argument) for argument in unread}}
    try:
        said = run_single(whole, given, given)
    except SpmdirError:
        return "wrong"  # ranks ran what one device rejects
    pairs = zip(found, said, strict=True)
    return "right" if all(_equal(a, b, rtol) for a, b in pairs) else "wrong"


def _zeros(argument: Any) -> torch.Tensor:
    """Return a value for an operand that a local form does not read."""
    meta = meta_of(argument.type)
    assert meta is not None
    return torch.zeros(meta.shape, dtype=TORCH_DTYPES[meta.dtype])


def _equal(found: Any, said: Any, rtol: float) -> bool:
    if not isinstance(said, torch.Tensor):
        return found == said
    return found.shape == said.shape and torch.allclose(found, said, rtol=rtol, atol=rtol, equal_nan=True)
