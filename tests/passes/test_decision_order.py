"""The order in which functions with common caches are decided."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from xdsl.dialects.builtin import StringAttr

from spmdir.core.errors import ParseError, SpmdirError
from spmdir.dialects import ir
from spmdir.dialects.caches import expected_calls
from spmdir.passes.decision_order import decide_together, shares_arguments

FUNCTION = """
func.func @{name}(%k: tensor<4x8xf32> {{spmd.kind = "cache", spmd.name = "k"}}, %rows: tensor<4x1xf32>,
                  %positions: tensor<4x1xi64>)
    -> (tensor<4x8xf32> {{spmd.name = "k", spmd.kind = "mutation"}}) attributes {{spmd.calls = {calls}}} {{
  %k.1 = cache.write(%k, %rows, %positions) : tensor<4x8xf32>
  return %k.1 : tensor<4x8xf32>
}}
"""


def programs(calls: Mapping[str, str]) -> str:
    """Return a module with a function for each name, with its number of calls."""
    return "spmd.mesh @mesh <tp = 2>\n" + "".join(
        FUNCTION.format(name=name, calls=count) for name, count in calls.items()
    )


def first_decided(calls: Mapping[str, str], seconds: Mapping[str, Mapping[str, float]]) -> tuple[str, list[str]]:
    """Return the function that was decided first, and the names of all functions in the module.

    Args:
        seconds: function that is decided first → function → seconds of a call, or a negative number if it has no
            decision.
    """

    def decide(module, function) -> float:
        names = [other.attributes["first"].data for other in ir.functions(module) if "first" in other.attributes]
        name = function.sym_name.data
        first = names[0] if names else name
        function.attributes["first"] = StringAttr(first)
        if seconds[first][name] < 0:
            raise SpmdirError(f"no decision of {name} after {first}")
        return seconds[first][name]

    module = ir.parse(programs(calls))
    decide_together(module, decide, decide)
    firsts = {function.attributes["first"].data for function in ir.functions(module)}
    assert len(firsts) == 1
    return firsts.pop(), [function.sym_name.data for function in ir.functions(module)]


SECONDS = {"decode": {"decode": 1.0, "prefill": 90.0}, "prefill": {"decode": 1.6, "prefill": 40.0}}


@pytest.mark.parametrize(("calls", "expected"), [("200 : i64", "decode"), ("20 : i64", "prefill")])
def test_calls_decide_which_function_is_decided_first(calls: str, expected: str) -> None:
    first, names = first_decided({"decode": calls, "prefill": "1 : i64"}, SECONDS)
    assert first == expected
    assert names == ["decode", "prefill"]


def test_another_order_is_used_if_the_first_has_no_decision() -> None:
    calls = {"decode": "200 : i64", "prefill": "1 : i64"}
    failing = {**SECONDS, "decode": {"decode": 1.0, "prefill": -1.0}}
    assert first_decided(calls, failing)[0] == "prefill"
    with pytest.raises(SpmdirError, match="no decision of prefill after decode"):
        first_decided(calls, {name: {"decode": 1.0, "prefill": -1.0} for name in failing})


def test_calls_are_a_positive_integer() -> None:
    function, _ = ir.functions(ir.parse(programs({"decode": "0 : i64", "prefill": '"often"'})))
    with pytest.raises(ParseError, match=r"spmd\.calls is 0 : i64; expected a positive integer"):
        expected_calls(function)


def test_functions_with_common_caches_share_arguments() -> None:
    assert shares_arguments(ir.parse(programs({"decode": "1 : i64", "prefill": "1 : i64"})))
    assert not shares_arguments(ir.parse(programs({"decode": "1 : i64"})))
