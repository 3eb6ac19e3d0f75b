"""Random pipelines over random programs in torch: after any legal order of passes the numbers are those of eager."""

from __future__ import annotations

import attrs
from hypothesis import strategies as st

from tests.fuzz import programs
from tests.fuzz.batch import Kind

CLEANUPS = ("cse", "dce", "canonicalize", "outline-layers,inline")
"""Passes that help anywhere before localize."""

STAGES = (
    (
        "propagate",
        "propagate{effort=5}",
        "propagate{overlap=schedule}",
        "propagate{sub-axes=none}",
    ),
    ("expand", ""),
    ("insert-reshard",),
    ("lower-reshard",),
    ("fuse-collectives", "fuse-collectives{max-sweeps=1}", ""),
    ("split-matmul{always=true}", "split-matmul", ""),
)
"""The choices of each pass before localize, in order; the first is what shrinking leads to."""

SCHEDULES = (
    "",
    "schedule",
    "schedule{memory=least}",
    "schedule{mode=simple}",
    "fit-memory{budget=least}",
    "fit-memory{budget=least offload=false},bucket",
    "bucket,split-async",
    "split-async,reorder",
    "split-async,reorder{mode=simple}",
    "fit-memory{budget=least},bucket,split-async,reorder",
    "verify-spmd",
)
"""What may run on the program of one rank."""


@attrs.frozen
class Piped:
    """A program, the passes that run over it, and whether what they leave is read back before it is simulated."""

    program: programs.Program
    passes: str
    is_read_back: bool

    def __str__(self) -> str:
        return f"{self.passes}{' and read back' * self.is_read_back} of\n{self.program}"


def check(case: Piped) -> str | None:
    """Run the passes and simulate; raises Wrong where the numbers are not those of eager."""
    programs.compare(case.program, case.passes, case.is_read_back)
    return None


@st.composite
def piped(draw: st.DrawFn) -> Piped:
    """Return a random program and a pipeline for it."""
    stages = [draw(st.sampled_from(choices)) for choices in STAGES]
    cleanups = st.sampled_from((*[""] * 2 * len(CLEANUPS), *CLEANUPS))
    steps = [step for stage in stages for step in (draw(cleanups), stage)]
    steps += [draw(cleanups), "localize", draw(st.sampled_from(SCHEDULES))]
    program = draw(programs.programs(families=("constrained", "losses")))
    return Piped(program, ",".join(filter(None, steps)), draw(st.booleans()))


PIPELINES = Kind("pipelines", piped(), check, examples=40, seconds=60, share=2)
