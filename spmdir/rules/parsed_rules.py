"""The packaged rules and strategies in parsed form; loading them needs no parser."""

from __future__ import annotations

from pathlib import Path

from spmdir.core.parse_cache import ParsedTexts
from spmdir.rules.language.syntax_tree import (
    Binary,
    Condition,
    Constant,
    Function,
    Name,
    OpCall,
    Parameter,
    PlacementTerm,
    Result,
    Rule,
    RuleClause,
    Sequence,
    StateCall,
    Statement,
    Term,
    TextStrategy,
)

PARSED = ParsedTexts(
    Path(__file__).parent / "aten" / "aten.parsed",
    (
        Rule, Parameter, Result, Term, RuleClause, Condition, Statement, Constant, Name, Function, Binary, Sequence,
        OpCall, StateCall, TextStrategy, PlacementTerm,
    ),
)  # fmt: skip
"""The parsed form of the packaged rules and strategies, written by `make parsed-texts`."""
