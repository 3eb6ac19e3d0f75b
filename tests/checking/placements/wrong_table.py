"""All wrong placements, each with the law that it breaks.

`python -m tests.checking.placements.wrong_table` tries every law on each and prints what each breaks.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from spmdir.checking.placements import LAWS, Effort, check_plugin
from tests.checking.placements.wrong_declarations import DECLARATIONS
from tests.checking.placements.wrong_edges import STEPS
from tests.checking.placements.wrong_joints import JOINTS, STATES, TEXTS
from tests.checking.placements.wrong_made import WrongPlacement, source
from tests.checking.placements.wrong_partials import PARTIALS
from tests.checking.placements.wrong_shards import SHARDS

WRONG: dict[str, WrongPlacement] = {**DECLARATIONS, **SHARDS, **PARTIALS, **STEPS, **JOINTS, **STATES, **TEXTS}
"""Name → a wrong placement."""


def broken_laws(name: str, folder: Path, laws: Sequence[str]) -> list[str]:
    """Return which of `laws` the wrong placement `name` breaks, each alone; others than its own on few examples."""
    path = folder / f"{name.lower()}.py"
    path.write_text(source(WRONG[name].text, name))
    return [law for law in laws if check_plugin(str(path), Effort(law != WRONG[name].law, (law,))).broken]


def main(names: Sequence[str]) -> int:
    """Print what each wrong placement breaks; return 1 if one does not break its law, or no one breaks a law alone."""
    laws, alone, missed = [law.name for law in LAWS], set[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names or WRONG:
            found = broken_laws(name, Path(folder), laws)
            alone.update(found if len(found) == 1 else ())
            missed += WRONG[name].law not in (*found, "examples")
            print(f"{name:24}{WRONG[name].law:14}{', '.join(found)}", flush=True)
    never = [law for law in laws if law not in alone]
    print(f"{missed} missed; broken by no placement alone: {', '.join(never) or 'none'}")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
