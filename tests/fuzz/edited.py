"""Edited IR at every stage: what the tools accept computes what its single-device form says."""

from __future__ import annotations

import math
import re
from functools import cache
from random import Random

import attrs
import torch
from hypothesis import strategies as st

from spmdir import run_passes
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.tools.golden import read_golden
from spmdir.tools.spmd_run import random_inputs
from tests.fuzz.batch import Kind, Wrong
from tests.fuzz.edits import axes, outcome, random_edit
from tests.fuzz.local_programs import PROGRAMS, STAGES, program
from tests.fuzz.malformed import ROOT
from tests.search.random_programs import programs

PASSES = ("propagate", "insert-reshard", "lower-reshard", "fuse-collectives", "localize")
"""The program is edited after import, which is before the first of them, or after one of them."""

MESHES = (Mesh({"dp": 2}), Mesh({"dp": 3}), Mesh({"dp": 2, "tp": 2}), Mesh({"dp": 2, "tp": 3}))
MESHES = (*MESHES, Mesh({"dp": 1, "tp": 4}), Mesh({"dp": 4, "tp": 1}), Mesh({"dp": 1}), Mesh({"dp": 1, "tp": 1}))
LARGEST = 100_000
"""Elements of all arguments of a golden program that is edited: others take long."""


@attrs.frozen
class Edited:
    """A program at a stage, its text after edits, and where it comes from."""

    stage: str
    before: str
    text: str

    def __str__(self) -> str:
        return f"{self.stage}:\n{self.before}\n// edited:\n{self.text}"


def check(case: Edited) -> str | None:
    """Simulate the edited program; raises Wrong if it is accepted and does not compute what it says."""
    found = outcome(case.text, inputs_of(case.before))
    if found == "wrong":
        raise Wrong("accepted, and its numbers are not those of its single-device form")
    return f"after {case.stage}" if found == "rejected" else None


def inputs_of(text: str) -> dict[str, torch.Tensor]:
    """Random global values for the arguments of a program, by name; integers are 0 and 1."""
    inputs, state = random_inputs(ir.parse(text), 0, None)
    return {**inputs, **state}


@st.composite
def edited(draw: st.DrawFn) -> Edited:
    """Return a random program, one that has what localize makes, or a golden one; taken to a stage and edited there."""
    source = draw(st.sampled_from(("random", "random", "local", "golden")))
    if source == "local":
        stage = draw(st.sampled_from([*STAGES, "localize", "localize"]))
        text = _local(draw(st.sampled_from([*PROGRAMS])), stage)
        return Edited(stage, text, random_edit(text, draw(_randoms)))
    random = source == "random"
    text = draw(programs(MESHES)).text if random else golden()[draw(st.integers(0, len(golden()) - 1))]
    stage = draw(st.integers(0, len(PASSES)))
    reached, name = "import", text
    for pass_name in PASSES[:stage]:
        try:
            name = ir.print_ir(run_passes(ir.parse(name), pass_name))
        except SpmdirError:
            break
        reached = pass_name
    return Edited(reached, text if reached == "import" else name, random_edit(name, draw(_randoms)))


_randoms = st.integers(0, 2**32 - 1).map(Random)


@cache
def _local(name: str, stage: str) -> str:
    return program(name, stage)


@cache
def golden() -> tuple[str, ...]:
    """Return the golden programs that run: complete, accepted, and small; in double precision, so that all else is
    wrong."""
    texts = []
    for path in sorted((ROOT / "tests" / "golden").rglob("*.mlir")):
        if "bad" in path.parts:
            continue
        sources = read_golden(path.read_text(), str(path)).sources
        texts += [part for part in map(_double, sources) if axes(part) and _runs(part)]
    return tuple(texts)


def _double(text: str) -> str:
    return re.sub(r"(?:(?<=x)|\b)b?f(?:16|32)\b", "f64", text)


def _runs(text: str) -> bool:
    try:
        metas = [meta_of(argument.type) for argument in ir.main_function(ir.parse(text)).args]
        if any(meta is None for meta in metas) or sum(math.prod(meta.shape) for meta in metas if meta) > LARGEST:
            return False
        return outcome(text, inputs_of(text)) == "right"
    except (SpmdirError, RuntimeError, AssertionError):
        return False


EDITED = Kind("edits", edited(), check, examples=80, seconds=30, share=2.5)
