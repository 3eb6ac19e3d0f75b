"""The site has every page and every public name; `make site` builds it with broken links as errors."""

from __future__ import annotations

import re
from pathlib import Path

from tests.public_names import public_names

DOCS = Path(__file__).parents[2] / "docs"


def entries(page: Path) -> list[str]:
    """Return what the tables of contents of `page` list."""
    found = re.findall(r"^```\{toctree\}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [line for entry in found for line in entry.splitlines() if not line.startswith(":")]


def test_every_page_is_in_the_contents_once() -> None:
    listed = entries(DOCS / "index.md")
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    pages |= {f"{index.parent.name}/index" for index in DOCS.glob("*/index.md")}
    assert set(listed) == pages | {"/README", "/CONTRIBUTING", "/CHANGELOG"}, "docs/index.md names each page"
    assert len(listed) == len(set(listed))
    for index in DOCS.glob("*/index.md"):
        pages = {page.stem for page in index.parent.glob("*.md")} - {"index"}
        assert sorted(entries(index)) == sorted(pages), f"{index} names each page beside it"


def test_every_public_name_is_in_the_reference_once() -> None:
    listed: list[str] = []
    directive = re.compile(
        r"^\.\. (?:(currentmodule)|(?:auto)?(?:class|data|exception|function)):: ([\w.]+)", re.MULTILINE
    )
    for is_module, name in directive.findall((DOCS / "api.md").read_text()):
        if is_module:
            module = name.removeprefix("spmdir").removeprefix(".")
        else:
            listed.append(f"{module}.{name}".removeprefix("."))  # type: ignore  # of the line before
    assert set(listed) == set(public_names()) - {"errors.SpmdirError"}, "docs/api.md names each public name"
    assert len(listed) == len(set(listed))
