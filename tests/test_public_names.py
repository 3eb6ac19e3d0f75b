"""`import spmdir` is cheap, and every public name is there when asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import spmdir


@pytest.mark.parametrize("name", spmdir.__all__)
def test_a_public_name_is_the_object_of_its_home(name: str) -> None:
    assert getattr(spmdir, name).__name__ == name
    assert name in dir(spmdir)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'spmdir' has no attribute 'partition'"):
        _ = spmdir.partition


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import spmdir", ("torch", "xdsl", "lark")),
        ("import spmdir.core.call, spmdir.core.sharding, spmdir.rules, spmdir.search.solve", ("torch", "xdsl")),
        ("import spmdir; spmdir.parse, spmdir.run_passes, spmdir.plan_reshard, spmdir.comm_report", ("torch",)),
    ],
)
def test_the_core_imports_no_torch(statement: str, absent: tuple[str, ...]) -> None:
    program = f"import sys\n{statement}\nprint(*[name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == ""
