"""The profiles of property tests: the same examples in each run, or others."""

import subprocess
import sys
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).parents[1]

DRAWN = """
from hypothesis import given, settings, strategies

drawn = []

@settings(max_examples=5)
@given(strategies.integers())
def test_draws(number):
    drawn.append(number)

def test_prints():
    print("DRAWN", drawn)
"""


def drawn(folder: Path, *options: str) -> str:
    """The numbers that a property test draws in a run of its own."""
    (folder / "test_drawn.py").write_text(DRAWN)
    command = [sys.executable, "-m", "pytest", "-sq", "-p", "tests.hypothesis_profile", *options, "test_drawn.py"]
    found = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    return next(line for line in found.stdout.splitlines() if "DRAWN" in line).partition("DRAWN")[2]


def test_exploring_draws_by_the_seed_what_other_runs_do_not(tmp_path: Path) -> None:
    explore = "--hypothesis-profile=spmdir-explore"
    usual, *others = (drawn(tmp_path, *options) for options in ((), (explore, "--hypothesis-seed=1")) for _ in "12")
    assert usual == others[0]
    assert others[1] == others[2] != usual
    assert drawn(tmp_path, explore, "--hypothesis-seed=2") != others[1]


def test_a_failure_that_was_explored_says_how_to_repeat_it() -> None:
    assert settings.get_profile("spmdir-explore").print_blob
