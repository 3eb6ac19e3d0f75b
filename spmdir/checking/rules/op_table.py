"""`python -m spmdir.checking.rules.op_table`: update the table of ops with the ops of the installed torch.

The lines of other versions of torch are kept. Run it once with each version, in any order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from spmdir.core.admitted_ops import LISTED, TABLE, VERSIONS
from spmdir.torch_interop.ops import schemas
from spmdir.torch_interop.schemas import judge

Verdicts = dict[tuple[str, str], set[str]]
"""(name of an op, reason to reject it or "") → the versions of torch for which this is so."""


def installed_version() -> str:
    """Return the version of the installed torch, as in the table."""
    return ".".join(torch.__version__.split(".")[:2])


def registered_ops() -> Iterator[tuple[str, str]]:
    """Yield (name, reason to reject it or "") for every op that is registered with torch's dispatcher."""
    for qualified, schema in schemas():
        name = qualified.replace("::", ".")
        yield name, judge(name, schema)


def parse_table(text: str) -> Verdicts:
    """Parse the text of a table: the inverse of `table_text`. A line without versions is for all of them."""
    verdicts: Verdicts = {}
    for line in text.splitlines():
        name_and_reason, _, versions = line.partition(" [")
        name, _, reason = name_and_reason.partition(" ")
        verdicts[name, reason] = set(versions.removesuffix("]").split() or VERSIONS)
    return verdicts


def table_text(verdicts: Verdicts) -> str:
    """Return the text of a table: lines such as `aten.mm` or `aten.add_.Tensor writes self [2.12 2.13]`."""
    lines = []
    for (name, reason), versions in verdicts.items():
        line = f"{name} {reason}".rstrip()
        if versions != set(VERSIONS):
            line += f" [{' '.join(version for version in VERSIONS if version in versions)}]"
        lines.append(line)
    return "\n".join(sorted(lines)) + "\n"


def update_verdicts(verdicts: Verdicts, version: str, ops: Iterator[tuple[str, str]]) -> Verdicts:
    """Return `verdicts` after replacing those of a version of torch by its `ops`."""
    new_verdicts = {key: versions - {version} for key, versions in verdicts.items()}
    for name, reason in ops:
        if name.partition(".")[0] in LISTED:
            new_verdicts.setdefault((name, reason), set()).add(version)
    return {key: versions for key, versions in new_verdicts.items() if versions}


def main() -> None:
    """Update the table."""
    verdicts = parse_table(TABLE.read_text()) if TABLE.exists() else {}
    TABLE.write_text(table_text(update_verdicts(verdicts, installed_version(), registered_ops())))


if __name__ == "__main__":
    main()
