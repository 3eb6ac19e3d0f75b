"""The site has every page and every public name; `make site` builds it with broken links as errors."""

from __future__ import annotations

import re
from pathlib import Path

import spmdir

DOCS = Path(__file__).parents[2] / "docs"


def test_every_page_is_in_the_contents_once() -> None:
    entries = re.findall(r"^```\{toctree\}\n(.*?)^```$", (DOCS / "index.md").read_text(), re.MULTILINE | re.DOTALL)
    listed = [line for entry in entries for line in entry.splitlines() if not line.startswith(":")]
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"} | {"/README", "/CONTRIBUTING", "/CHANGELOG"}
    assert set(listed) == pages, "docs/index.md names each page"
    assert len(listed) == len(set(listed))


def test_every_public_name_is_in_the_reference_once() -> None:
    directive = re.compile(r"^\.\. (?:auto)?(?:class|data|exception|function):: (\w+)", re.MULTILINE)
    listed = directive.findall((DOCS / "api.md").read_text())
    assert set(listed) == set(spmdir.__all__), "docs/api.md names each public name"
    assert len(listed) == len(set(listed))
