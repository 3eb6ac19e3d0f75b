"""IR without one bracket, comma, colon or quote: it is read, or the error is where the character was."""

from __future__ import annotations

import re
from functools import cache

import attrs
from hypothesis import strategies as st

from spmdir.tools.golden import read_golden
from tests.fuzz.batch import Kind, Wrong
from tests.fuzz.malformed import ROOT, example, run_tool_on

DELETED = frozenset('<>(){}[],:"=')
_COMMENTS = re.compile(r"[ \t]*//[^\n]*")
_PLACE = re.compile(r"<stdin>:(\d+):\d+: error: \S")


@attrs.frozen
class Deletion:
    """A text, and the offset of the character that is deleted."""

    whole: str
    offset: int

    @property
    def text(self) -> str:
        """Return the text without the character."""
        return self.whole[: self.offset] + self.whole[self.offset + 1 :]

    @property
    def lines(self) -> range:
        """Return the line of the character to that of the next token."""
        rest = self.whole[self.offset + 1 :]
        following = self.offset + 1 + len(rest) - len(rest.lstrip())
        return range(self.whole.count("\n", 0, self.offset) + 1, self.whole.count("\n", 0, following) + 2)

    def __str__(self) -> str:
        return f"{self.whole[: self.offset]}«{self.whole[self.offset]}»{self.whole[self.offset + 1 :]}"


def check(case: Deletion) -> str | None:
    """Read the text; raises Wrong where the error is on another line."""
    status, _, err = run_tool_on(case.text)
    if status == 0:
        return None
    place = _PLACE.match(err)
    if status != 1 or place is None:
        raise Wrong(f"exit status {status}: {err}")
    if int(place[1]) not in case.lines:
        raise Wrong(f"the error is on line {place[1]}; the character is on line {case.lines.start}: {err}")
    return err.partition("error: ")[2]


@cache
def corpus() -> tuple[str, ...]:
    """Return programs that are read, without comments and regions in the generic form."""
    texts = [example()]
    for path in sorted((ROOT / "tests" / "golden").rglob("*.mlir")):
        if "bad" not in path.parts:
            texts += read_golden(path.read_text(), str(path)).sources
    bare = [_COMMENTS.sub("", text).strip() + "\n" for text in texts]
    return tuple(text for text in bare if len(text) < 4000 and "({" not in text and run_tool_on(text)[0] == 0)


@st.composite
def deletions(draw: st.DrawFn) -> Deletion:
    """Return a program and a character of it."""
    text = corpus()[draw(st.integers(0, len(corpus()) - 1))]
    places = [place for place, character in enumerate(text) if character in DELETED]
    return Deletion(text, places[draw(st.integers(0, len(places) - 1))])


DELETIONS = Kind("deletions", deletions(), check, examples=400)
