"""`python -m spmdir.checking.rules.op_table`: write what the installed torch says into the table of ops.

What the table has of other versions of torch stays, so it is run once with each version, in any order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from spmdir.core.admitted_ops import LISTED, TABLE, VERSIONS
from spmdir.torch_interop.ops import schemas
from spmdir.torch_interop.schemas import judge

Verdicts = dict[tuple[str, str], set[str]]
"""(Name of an op, why it is rejected) → the versions of torch that say so."""


def installed() -> str:
    """Return the version of torch, as in the table."""
    return ".".join(torch.__version__.split(".")[:2])


def registered() -> Iterator[tuple[str, str]]:
    """Yield (Name, why it is rejected or "") of every op that torch's dispatcher knows."""
    for qualified, schema in schemas():
        said = qualified.replace("::", ".")
        yield said, judge(said, schema)


def parse(text: str) -> Verdicts:
    """Return the table that `text` spells."""
    verdicts: Verdicts = {}
    for line in text.splitlines():
        said, _, versions = line.partition(" [")
        name, _, reason = said.partition(" ")
        verdicts[name, reason] = set(versions.removesuffix("]").split() or VERSIONS)
    return verdicts


def spell(verdicts: Verdicts) -> str:
    """Return the text of a table."""
    lines = []
    for (name, reason), versions in verdicts.items():
        some = "" if versions == set(VERSIONS) else f" [{' '.join(v for v in VERSIONS if v in versions)}]"
        lines.append(f"{name} {reason}".rstrip() + some)
    return "\n".join(sorted(lines)) + "\n"


def updated(verdicts: Verdicts, version: str, found: Iterator[tuple[str, str]]) -> Verdicts:
    """Return `verdicts` with what `version` of torch says in the place of what it said before."""
    kept = {key: versions - {version} for key, versions in verdicts.items()}
    for name, reason in found:
        if name.partition(".")[0] in LISTED:
            kept.setdefault((name, reason), set()).add(version)
    return {key: versions for key, versions in kept.items() if versions}


def main() -> None:
    before = parse(TABLE.read_text()) if TABLE.exists() else {}
    TABLE.write_text(spell(updated(before, installed(), registered())))


if __name__ == "__main__":
    main()
