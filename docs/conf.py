"""How the site is built: README and docs/ as pages, docs/index.md as their order, docstrings as the reference."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any

from sphinx.application import Sphinx

from spmdir.language_server.pygments_lexers import RewritesLexer, RulesLexer, SpmdLexer

project = "spmdir"
release = importlib.metadata.version("spmdir")
html_title = f"{project} {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# The sources are the repository itself, so that one link is right on the site and in a checkout.
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**.md"]
exclude_patterns = [".*", "build", "benchmarks", "examples", "spmdir", "tests"]
templates_path = ["templates"]
html_additional_pages = {"index": "to_readme.html"}
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False

myst_heading_anchors = 4
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_ivar = True


def as_literals(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring, which is plain text with code in single backticks, into reStructuredText."""
    prose_and_code = re.split(r"`([^`]*)`", "\n".join(lines))
    for position, text in enumerate(prose_and_code):
        prose_and_code[position] = f"\\ ``{text}``\\ " if position % 2 else re.sub(r"([*|]|_\b)", r"\\\1", text)
    lines[:] = "".join(prose_and_code).split("\n")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", as_literals, priority=100)  # before napoleon's
    for language, lexer in (("mlir", SpmdLexer), ("rules", RulesLexer), ("rewrites", RewritesLexer)):
        app.add_lexer(language, lexer)
