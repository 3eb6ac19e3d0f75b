"""All wrong placements, each with the law that it breaks.

`python -m tests.checking.placements.wrong_table` tries every law on each and prints what each breaks, after the
standard placements, which hold all.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from spmdir.checking.placements import LAWS, Effort, check_placement
from spmdir.checking.placements.check_placement import verdicts_of
from tests.checking.placements.wrong_alone import ALONE
from tests.checking.placements.wrong_declarations import DECLARATIONS
from tests.checking.placements.wrong_edges import STEPS
from tests.checking.placements.wrong_joints import JOINTS, STATES, TEXTS
from tests.checking.placements.wrong_made import WrongPlacement, source
from tests.checking.placements.wrong_partials import PARTIALS
from tests.checking.placements.wrong_shards import SHARDS
from tests.checking.placements.wrong_unusual import UNUSUAL

WRONG: dict[str, WrongPlacement] = {
    **DECLARATIONS, **SHARDS, **PARTIALS, **STEPS, **JOINTS, **STATES, **TEXTS, **ALONE, **UNUSUAL,
}  # fmt: skip
"""Name → a wrong placement."""

ONLY = {
    "declaration": "ErrorAsANumber",
    "frozen": "Mutable",
    "text": "NotesUpToThree",
    "edges": "SpreadTwice",
    "partition": "WrongForThousands",
    "runs": "WrongRuns",
    "local shape": "MoreThanItSays",
    "inverse": "WrongForBytes",
    "magnitude": "LosesLargeOnes",
    "elementwise": "TurnsIntegers",
    "reduction": "ConjugatedSums",
    "identity": "OneForASumWithAStep",
    "copies": "SumsOfCopiesWithAStep",
    "kind": "SumsOfKindMax",
    "combine": "SquaresOfOneSide",
    "finish": "FinishesWithOtherRows",
    "splits": "Splits",
    "scaled": "UnscaledDown",
    "edge": "SumsAsMaxima",
    "cost": "BytesTooFew",
    "precision": "ErrorOfTheResult",
    "steps": "OrderOfManyColumns",
    "state": "NeverAddsIt",
    "rules": "CombinesSums",
    "text strategies": "DoublesWhatItSplits",
    "processes": "HashesTexts",
}
"""Law → the wrong placement that breaks this law alone; no placement can break 'planned', which is of the planner."""


def broken_laws(name: str, folder: Path, laws: Sequence[str]) -> list[str]:
    """Return which of `laws` the wrong placement `name` breaks, each alone; others than its own on few examples."""
    path = folder / f"{name.lower()}.py"
    path.write_text(source(WRONG[name].text, name))

    def is_broken(law: str) -> bool:
        return any(verdict.broken for verdict in verdicts_of(str(path), Effort(law != WRONG[name].law, (law,))))

    return [law for law in laws if is_broken(law)]


def main(names: Sequence[str]) -> int:
    """Print what each wrong placement breaks; return 1 if one does not break its law, or one of ONLY another one."""
    laws, missed = [law.name for law in LAWS], 0
    if not names:
        standard = check_placement("R", "S(0)", "S(2)", *(f"P({op})" for op in ("sum", "avg", "max", "any")))
        print(standard)
        missed += len(standard.broken)
    with tempfile.TemporaryDirectory() as folder:
        for name in names or WRONG:
            found = broken_laws(name, Path(folder), laws)
            law, alone = WRONG[name].law, name in ONLY.values()
            missed += found != [law] if alone else law not in (*found, "examples")
            print(f"{name:24}{law:14}{', '.join(found)}", flush=True)
    print(f"{missed} are not as they are listed")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
