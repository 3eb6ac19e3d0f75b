"""Rules on calls, both written in a line, for the tables of tests."""

from __future__ import annotations

from typing import Any

from spmdir.core.placement.call import TensorMeta
from spmdir.rules import OpRule, RuleSet
from spmdir.rules.language.records import read


def tensor(text: str) -> TensorMeta:
    """Return the type that `4x6xf32`, `4x6` (of f32) or, for a scalar, `f32` stands for."""
    *sizes, dtype = text.split("x")
    return TensorMeta(tuple(map(int, sizes)), dtype) if not dtype.isdigit() else tensor(f"{text}xf32")


def instance(line: str, operands: str, **arguments: Any) -> OpRule:
    """Return the rule `mylib.op{line}` on `operands`, whose results are inferred.

    Raises:
        RuleError: they do not fit.
    """
    rules = RuleSet(read(f"mylib.op{line}", "own.rules"))
    call = rules.infer_call("mylib.op", tuple(map(tensor, operands.split())), arguments)
    rule = rules.instantiate(call)
    assert rule is not None
    return rule


def dims(line: str, operands: str, **arguments: Any) -> str:
    """Return the dimensions and the sizes of the factors, as `--print-rules` shows them, without clauses."""
    return instance(line, operands, **arguments).text().partition("}")[0] + "}"
