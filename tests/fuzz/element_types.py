"""Programs in which one element type is changed: an error that names the op whose result has it."""

from __future__ import annotations

import re
from functools import cache

import attrs
from hypothesis import assume
from hypothesis import strategies as st

from spmdir.core.dtype import DTYPES
from spmdir.tools.golden import read_golden
from tests.fuzz.batch import Kind, Wrong
from tests.fuzz.edited import MESHES
from tests.fuzz.malformed import ROOT, run_tool_on
from tests.search.random_programs import programs

_RESULT = re.compile(r"^ *(%[\w.]+)(?:, %[\w.]+)* = (aten\.[\w.]+)\(.*? : tensor<(?:\d+x)*([a-z]\w*)>", re.MULTILINE)
_PLACE = re.compile(r"<stdin>:(\d+):\d+: error: (.*)")


@attrs.frozen
class Changed:
    """A program with the number of the line of an op whose first result has another element type."""

    text: str
    line: int
    value: str
    op: str

    def __str__(self) -> str:
        return f"line {self.line}:\n{self.text}"


def check(case: Changed) -> str:
    """Decide the program; raises Wrong unless the error names the op, at its place, or is at a user of its result."""
    status, _, err = run_tool_on(case.text, "--propagate")
    if status == 0:
        raise Wrong("accepted")
    places = [(int(place[1]), place[2]) for place in map(_PLACE.match, err.splitlines()) if place]
    lines = case.text.splitlines()
    users = {number for number, line in enumerate(lines, 1) if re.search(rf"{case.value}\b", line)} - {case.line}
    said = [message for line, message in places if line in users or (line == case.line and case.op in message)]
    if status != 1 or not said:
        raise Wrong(f"exit status {status}, and no error of {case.op} on line {case.line}: {err}")
    return said[0]


@cache
def golden() -> tuple[str, ...]:
    """Return programs of golden files that can be decided."""
    texts = []
    for path in sorted((ROOT / "tests" / "golden" / "propagate").glob("*.mlir")):
        texts += read_golden(path.read_text(), str(path)).sources
    return tuple(text for text in texts if _RESULT.search(text) and run_tool_on(text, "--propagate")[0] == 0)


@st.composite
def changed(draw: st.DrawFn) -> Changed:
    """Return a program with one change."""
    text = draw(programs(MESHES)).text if draw(st.booleans()) else draw(st.sampled_from(golden()))
    returned = re.findall(r"%[\w.]+", text[text.rfind("return ") :])  # whose types the text has twice
    found = [result for result in _RESULT.finditer(text) if result[1] not in returned]
    assume(found)
    result = draw(st.sampled_from(found))
    others = [name for name in DTYPES if name != result[3]]
    edited = text[: result.start(3)] + draw(st.sampled_from(others)) + text[result.end(3) :]
    return Changed(edited, text.count("\n", 0, result.start()) + 1, result[1], result[2])


TYPES = Kind("types", changed(), check, examples=100)
