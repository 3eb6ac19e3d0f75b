"""Count phrases and variable names that make text hard to read, per file. The counts are a report, not a limit.

    make style                                      every page and module, the worst files first
    make style OPTIONS='spmdir/search --lines'      each match in some files

The report reads Markdown pages, and in Python files the comments, strings and docstrings. CONTRIBUTING.md says how to
write. A match may be right: rewrite the sentence, do not swap the word.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PHRASES = {
    "noun clause": r"(what|whatever|which) (is|are|was|were|it|they|has|have|can|may|must|does|do|a|an|the|each|no)",
    "text that speaks": r"(is|are) (told|said)|(tell|say|ask)s? (how|what|which|why|whether|where|for)",
    "participle as a noun": r"that (is|are) (there|given|made|found|held|kept|needed)",
    "stands, goes by": r"stands? (for|in|where|there|on|as|once|alone)|goe?s? by",
    "beside, behind": r"beside|behind",
    "of its own": r"by itself|of (its|their) own|as (it is|they are)",
    "double negative": r"none of|nothing (but|else)|no (other|more than)",
    "so that": r"so that",
}
"""Name of a symptom → the pattern of its phrases."""

VAGUE_WORDS = "found one at own held told given made kept other others what now rest some more there taken known"
VAGUE = frozenset(re.findall(r"\w+", VAGUE_WORDS))
"""Names of variables that do not say what they hold."""


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of prose of a file with their numbers."""
    text = path.read_text()
    if path.suffix == ".md":
        is_code = False
        for number, line in enumerate(text.splitlines(), 1):
            is_code ^= line.startswith("```")
            if not is_code:
                yield number, re.sub(r"`[^`]*`", "`code`", line)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and len(token.string.split()) > 2):
            yield from enumerate(token.string.splitlines(), token.start[0])


def vague_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each assignment or parameter with a vague name, with its line."""
    for node in ast.walk(ast.parse(path.read_text())) if path.suffix == ".py" else ():
        name = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else ""
        if name in VAGUE and not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
            yield node.lineno, name  # type: ignore[attr-defined]  # arguments and names have lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "paths", nargs="*", type=Path, default=[*map(Path, ("spmdir", "docs", "README.md", "CONTRIBUTING.md"))]
    )
    parser.add_argument("--lines", action="store_true", help="Print each match with its line.")
    parser.add_argument("--worst", type=int, default=15, help="The number of files listed.")
    options = parser.parse_args()
    files = [file for path in options.paths for file in ([path] if path.is_file() else path.rglob("*.*"))]
    symptoms, matches_by_file, words = Counter[str](), Counter[Path](), 0
    for file in sorted(file for file in files if file.suffix in (".py", ".md")):
        matches = [(number, f"name {name}") for number, name in vague_names(file)]
        for number, line in prose(file):
            words += len(line.split())
            for symptom, pattern in PHRASES.items():
                matches += [(number, symptom) for _ in re.finditer(rf"\b({pattern})\b", line, re.IGNORECASE)]
        symptoms.update(symptom for _, symptom in matches)
        matches_by_file[file] = len(matches)
        for number, symptom in sorted(matches) if options.lines else ():
            print(f"{file}:{number}: {symptom}")
    names = sum(count for symptom, count in symptoms.items() if symptom.startswith("name "))
    phrases = symptoms.total() - names
    for symptom, count in symptoms.most_common():
        print(f"{count:6}  {symptom}")
    print(f"{phrases:6}  phrases, {1000 * phrases / max(words, 1):.1f} per 1,000 words; {names} vague names")
    print("worst files:", ", ".join(f"{file} {count}" for file, count in matches_by_file.most_common(options.worst)))


if __name__ == "__main__":
    main()
