"""Pipelines as text: passes, options, and what is said about wrong ones."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from spmdir.core.errors import ParseError, UnsupportedError
from spmdir.dialects import ir
from spmdir.pipeline.base_passes import LocalPass
from spmdir.pipeline.options import describe, make_pass
from spmdir.pipeline.pass_table import PASSES
from spmdir.pipeline.pipeline import Pipeline, run_passes


@dataclass(frozen=True)
class ProbePass(ModulePass):
    """Does nothing.

    At length.
    """

    name = "probe"
    max_steps: int = 3
    rate: float | None = None
    eager: bool = False
    axes: tuple[str, ...] = ()
    order: Literal["up", "down"] = "up"
    label: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        raise AssertionError("only the options are of interest")


@pytest.fixture(autouse=True)
def _probe(monkeypatch: pytest.MonkeyPatch) -> None:
    home = ModuleType("probe_home")
    home.ProbePass = ProbePass  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "probe_home", home)
    monkeypatch.setitem(PASSES, "probe", "probe_home:ProbePass")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("probe", ProbePass()),
        ("probe{}", ProbePass()),
        ("probe{max-steps=5 eager}", ProbePass(max_steps=5, eager=True)),
        ("probe{max_steps=-5 eager=false}", ProbePass(max_steps=-5)),
        ("probe{rate=1 order=down}", ProbePass(rate=1.0, order="down")),
        ("probe{rate=none}", ProbePass()),
        ("probe{axes=dp,tp}", ProbePass(axes=("dp", "tp"))),
        ('probe{label="two words" max-steps=1}', ProbePass(label="two words", max_steps=1)),
        ('probe{label=""}', ProbePass()),
    ],
)
def test_options_are_read_by_their_types(text: str, expected: ProbePass) -> None:
    assert Pipeline(text).made() == [expected]


def test_passes_keep_their_order() -> None:
    steps = Pipeline(" probe{axes=a,b max-steps=1} , probe, probe{max-steps=2},").made()
    assert steps == [ProbePass(axes=("a", "b"), max_steps=1), ProbePass(), ProbePass(max_steps=2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prob", "unknown pass 'prob'; expected one of inline, fold-experts, fold-views, propagate,"),
        ("prob", "did you mean 'probe'?"),
        ("probe{max-step=1}", "pass 'probe' has no option 'max-step'"),
        ("probe{max-step=1}", "did you mean 'max-steps'?"),
        ("probe{max-steps=x}", "option 'max-steps' of pass 'probe' cannot be 'x'; expected int"),
        ("probe{eager=yes}", "cannot be 'yes'; expected true|false"),
        ("probe{order=left}", "cannot be 'left'; expected up|down"),
        ("probe{rate=fast}", "cannot be 'fast'; expected float|none"),
        ("propagate{effort=-1}", "option 'effort' of pass 'propagate' cannot be '-1'; expected int from 0 on"),
        (
            "propagate{memory=much}",
            "option 'memory' of pass 'propagate' cannot be 'much'; expected auto|least|a size as 80GiB or 500MB|none",
        ),
        ("probe{max-steps=1", "'probe{max-steps=1' is not a pipeline"),
        ("probe;probe", "'probe;probe' is not a pipeline"),
        ("probe{=1}", "'=1' is not an option of pass 'probe'"),
    ],
)
def test_a_wrong_pipeline_says_what_was_found_and_expected(text: str, message: str) -> None:
    with pytest.raises(ParseError) as raised:
        Pipeline(text)
    assert message in str(raised.value)


ANY = ("inline", "localize", "outline-layers", "verify-spmd", "make-schedule", "canonicalize", "cse", "dce", "probe")
"""The passes that take modules with types of either kind."""

LOCAL = [name for name in PASSES if isinstance(make_pass(name, {}), LocalPass)]
RELU = (
    "spmd.mesh @mesh <dp = 2>\nfunc.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>})"
    " -> tensor<4xf32> {\n  %0 = aten.relu(%x) : tensor<4xf32>\n  return %0 : tensor<4xf32>\n}"
)


@pytest.mark.parametrize("name", [name for name in PASSES if name not in (*ANY, *LOCAL)])
def test_a_localized_module_is_rejected_by_passes_that_read_global_types(name: str) -> None:
    module = run_passes(ir.parse(RELU), "propagate,insert-reshard,lower-reshard,localize")
    with pytest.raises(UnsupportedError, match=f"run {name} before localize"):
        run_passes(module, name)


@pytest.mark.parametrize("name", LOCAL)
def test_a_module_with_global_types_is_rejected_by_passes_on_the_program_of_a_rank(name: str) -> None:
    module = run_passes(ir.parse(RELU), "propagate,insert-reshard,lower-reshard")
    with pytest.raises(UnsupportedError, match=f"run {name} after localize"):
        run_passes(module, name)


def test_a_pass_is_described_by_its_first_line_and_its_options() -> None:
    summary, options = describe("probe")
    assert summary == "Does nothing."
    assert options[:3] == ["max-steps: int = 3", "rate: float|none = None", "eager: true|false = False"]
