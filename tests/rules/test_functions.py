"""The page on rules lists every function of the rule language, as its code describes it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from spmdir.rules.language import functions, local_functions
from spmdir.rules.language.functions import FUNCTIONS

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"
FORM = re.compile(r"((?:\w+\([^)]*\)(?:, )?)+)(?:, also of `result`)?: (.+)", re.DOTALL)
"""`name(arguments), name(arguments): meaning`, as functions of the rule language are described."""


def described() -> dict[str, str]:
    """Return name → the row of the table that says how it is called and what it gives."""
    rows: dict[str, str] = {}
    for module in (functions, local_functions):
        tree = ast.parse(Path(module.__file__ or "").read_text())
        texts = [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        for form in filter(None, map(FORM.fullmatch, texts)):
            calls, meaning = form[1], " ".join(form[2].split()).rstrip(".")
            for name in re.findall(r"(\w+)\(", calls):
                rows[name] = (
                    f"| {', '.join(f'`{call}`' for call in re.findall(r'[a-z_]+[(][^)]*[)]', calls))} | {meaning} |"
                )
    return rows


def test_every_function_describes_itself():
    assert set(FUNCTIONS) <= set(described())


def test_the_page_lists_every_function():
    rows = described()
    expected = [*dict.fromkeys(rows[name] for name in FUNCTIONS)]
    page = PAGE.read_text().partition("### Functions")[2].partition("\n##")[0]
    assert [line for line in page.splitlines() if line.startswith("| `")] == expected
