"""The examples of README.md and docs/ do what the pages show.

Blocks marked `console` hold shell commands after `$ ` and what they print; blocks marked `pycon` hold a Python
session, one a page, to which blocks marked `python` belong too. They run in a folder that has `examples/`, and later
blocks of a page see what earlier ones made. `...` stands for anything.

Before a block, `<!-- not executed: REASON -->` leaves it out; `<!-- ranks: N -->` on a page makes one program of its
`python` blocks, which runs on N processes as under torchrun.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from spmdir.pipeline.options import load_pass, pass_options
from spmdir.pipeline.pass_table import PASSES
from spmdir.rules.language.checks import KEYWORDS
from spmdir.rules.language.records import split_records
from tests.docs.warm_commands import ROOT, warm_commands

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
SHOWN = {"", "{eval-rst}", "{toctree}", "elisp", "lua", "mlir", "rewrites", "rules", "sh", "text", "toml"}
"""The languages of blocks that show something and are not executed."""
_BLOCK = re.compile(r"^(<!-- not executed: [^\n]+ -->\n+)?```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RANKS = re.compile(r"^<!-- ranks: (\d+) -->$", re.MULTILINE)
_COMMAND = re.compile(r"[^\n]*<<'END'[^\n]*\n.*?^END\n|(?:[^\n]*\\\n)*[^\n]*\n", re.MULTILINE | re.DOTALL)
_CHECKER = doctest.OutputChecker()


@attrs.frozen
class Command:
    """A shell command and what it prints, stderr included."""

    line: int
    text: str
    expected: str


def blocks(page: Path) -> Iterator[tuple[str, int, str]]:
    """Kind, first line and text of each block that is an example."""
    text = page.read_text()
    for match in _BLOCK.finditer(text):
        if not match[1] and match[2] not in SHOWN:
            yield match[2], text.count("\n", 0, match.start(3)) + 1, match[3]


def commands(text: str, line: int) -> Iterator[Command]:
    """The commands of a console block; one goes on where a line ends in a backslash, or to the END of its input."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        head = _COMMAND.match(part)
        assert head is not None
        yield Command(line, head[0], part[head.end() :])
        line += part.count("\n")


def same(found: str, expected: str) -> bool:
    found, expected = ("\n".join(map(str.rstrip, text.strip().splitlines())) + "\n" for text in (found, expected))
    return _CHECKER.check_output(expected, found, doctest.ELLIPSIS)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The tools of this checkout as commands."""
    with warm_commands(tmp_path_factory.mktemp("bin")) as environment:
        yield environment


@pytest.mark.parametrize("page", [p for p in PAGES if any(blocks(p))], ids=lambda page: page.stem)
def test_a_page_shows_what_its_examples_print(
    page: Path, shell: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    ranks = _RANKS.search(page.read_text())
    program = ""
    for kind, line, text in blocks(page):
        if kind == "pycon":
            run_session(page, line, text, names)
        elif kind == "python":
            program += "\n" * (line - 1 - program.count("\n")) + text
            if not ranks:
                exec(compile(program, page, "exec"), names)
                program = ""
        else:
            assert kind == "console", f"{page.name}:{line}: blocks marked '{kind}' are neither executed nor only shown"
            for command in commands(text, line):
                done = run(command.text, shell)
                assert same(done.stdout, command.expected), f"{page.name}:{command.line} prints\n{done.stdout}"
    if ranks:
        Path(page.name).write_text(program)
        done = run(f"torchrun --nproc-per-node {ranks[1]} {page.name}", shell)
        assert not done.returncode, done.stdout


def run(command: str, shell: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=shell, timeout=600,
        check=False,
    )  # fmt: skip


def run_session(page: Path, line: int, text: str, names: dict[str, Any]) -> None:
    session = doctest.DocTestParser().get_doctest(text, names, f"{page.name}:{line}", str(page), line - 1)
    session.globs = names
    report = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    with contextlib.redirect_stdout(io.StringIO()):
        runner.run(session, out=report.write, clear_globs=False)
    assert not runner.failures, report.getvalue()


def test_every_shell_session_has_commands() -> None:
    for page in PAGES:
        for kind, line, text in blocks(page):
            assert kind != "console" or text.startswith("$ "), f"{page.name}:{line}"


def test_a_comment_leaves_out_only_the_block_after_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- not executed: a sketch -->\n```python\na\n```\n\n<!-- ranks: 2 -->\n\n```python\nb\n```\n")
    assert [text for _, _, text in blocks(page)] == ["b\n"]


def test_a_wrong_example_is_found_out() -> None:
    assert same("a 1.5\nb\n", "a ...\nb\n")
    assert not same("a\nb\n", "a\n")
    assert [c.text for c in commands("$ echo a\\\n  b\na b\n$ true\n", 1)] == ["echo a\\\n  b\n", "true\n"]
    with pytest.raises(AssertionError, match="Expected"):
        run_session(PAGES[0], 1, ">>> 1 + 1\n3\n", {})


def test_every_pass_and_option_is_on_the_page_of_passes() -> None:
    page = (ROOT / "docs/passes.md").read_text()
    for name in PASSES:
        assert f"| `{name}`" in page or re.search(rf"^##+ .*\b{name}\b", page, re.MULTILINE), name
        for option in pass_options(load_pass(name)):
            assert f"`{option.replace('_', '-')}`" in page, f"{name}: {option}"


def test_the_page_of_rules_shows_packaged_lines_and_every_clause() -> None:
    """`…` stands for anything; statements below a line are not compared."""
    page = (ROOT / "docs/rules.md").read_text()
    files = sorted((ROOT / "spmdir").rglob("*.rules"))
    records = [record for file in files for _, record, _ in split_records(file.read_text())]
    packaged = "\n".join(" ".join(record.split()) for record in records)
    shown = [" ".join(line.split()) for line in page.splitlines() if re.match(r"aten\.[^`]*\) ->", line)]
    assert len(shown) > 9
    for line in shown:
        pattern = ".*".join(re.escape(part.strip(" ;")) for part in line.split("…"))
        assert re.search(f"^{pattern}", packaged, re.MULTILINE), line
    for word in KEYWORDS:
        assert re.search(rf"`{word}\b", page), word


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target, _, heading in re.findall(r"\]\(([^)#:]*)(#([^)]*))?\)", page.read_text()):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name} links to {target}"
            assert not heading or heading in headings(linked), f"{page.name} links to {target}#{heading}"


def headings(page: Path) -> list[str]:
    """The anchors of the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles]


def test_files_and_tests_that_pages_name_exist() -> None:
    """`spmdir/…`, `tests/…`, `examples/…` and `benchmarks/…` in backticks, and `file::test` among them."""
    for page in PAGES:
        for name in re.findall(r"`((?:spmdir|tests|examples|benchmarks)/[\w./<>*-]+(?:::\w+)?)`", page.read_text()):
            file, _, test = name.partition("::")
            if "*" in file or "<" in file:
                continue
            assert (ROOT / file).exists(), f"{page.name} names {file}"
            assert not test or f"def {test}(" in (ROOT / file).read_text(), f"{page.name} names {name}"


def test_tests_of_reference_systems_that_name_no_file_are_in_its_own() -> None:
    text = "".join(path.read_text() for path in sorted((ROOT / "tests/reference").glob("test_*.py")))
    for name in re.findall(r"`(test_\w+)`", (ROOT / "docs/reference-systems.md").read_text()):
        assert f"def {name}(" in text, name
