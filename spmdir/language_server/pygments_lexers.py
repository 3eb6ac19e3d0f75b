"""Lexers for Pygments of programs, rules and rewrites; Pygments finds them by its entry points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pygments.lexer import RegexLexer, words
from pygments.token import (
    Comment,
    Keyword,
    Name,
    Number,
    Operator,
    Punctuation,
    String,
    Whitespace,
)

from spmdir.language_server.keywords import (
    CLAUSES,
    COLLECTIVES,
    ELEMENT_TYPES,
    PLACEMENTS,
    REDUCTIONS,
    REWRITE_WORDS,
    RULE_CLAUSES,
    RULE_CONTROL,
    STRUCTURE,
    TAILS,
)

_NUMBER = r"-?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|inf\b|nan\b)"


class SpmdLexer(RegexLexer):
    """Programs. Collectives are builtins, placements are classes, and other ops are functions."""

    name = "spmdir programs"
    aliases = ["spmdir", "spmd-mlir"]
    filenames: ClassVar[Sequence[str]] = []  # lexers of MLIR use `*.mlir`
    tokens: ClassVar[dict[str, list[Any]]] = {
        "root": [
            (r"\s+", Whitespace),
            (r"//.*", Comment.Single),
            (r'"(?:[^"\\\n]|\\.)*"', String),
            (r"%[\w.$#-]+", Name.Variable),
            (r'@(?:[\w.$-]+|"[^"\n]*")', Name.Label),
            (r"\^[\w.$-]+", Name.Label),
            (r"[#!][A-Za-z_][\w.]*", Name.Decorator),
            (rf"spmd\.(?:{'|'.join(COLLECTIVES)})(?:_start)?\b", Name.Builtin),
            (words(STRUCTURE, prefix=r"(?<![\w.])", suffix=r"(?![\w.])"), Keyword),
            (r"(?:builtin|tensor)(?=<)", Keyword.Type),
            (r"(?<=[0-9?\]])x", Operator),  # between the sizes of a type
            (rf"(?:(?<=x)|(?<![\w.]))(?:{'|'.join(ELEMENT_TYPES)})\b", Keyword.Type),
            (r"[a-z_]\w*(?:\.\w+)+", Name.Function),
            (words(CLAUSES + TAILS, suffix=r"\b"), Keyword.Pseudo),
            (words(PLACEMENTS, suffix=r"(?=\(|\b)"), Name.Class),
            (words(REDUCTIONS, suffix=r"\b"), Name.Constant),
            (r"(?:true|false|none|unit)\b", Keyword.Constant),
            (r"(?<![\w.])0x[0-9A-Fa-f]+", Number.Hex),
            (_NUMBER, Number),
            (r"[A-Za-z_][\w$]*", Name.Attribute),
            (r"->|[=!<>]=|[=:?*+/|%-]", Operator),
            (r"[()\[\]{}<>,.]", Punctuation),
        ]
    }


class RulesLexer(RegexLexer):
    """Rules and strategies of ops."""

    name = "spmdir rules"
    aliases = ["rules", "spmd-rules"]
    filenames = ["*.rules"]
    tokens: ClassVar[dict[str, list[Any]]] = {
        "root": [
            (r"\s+", Whitespace),
            (r"#.*", Comment.Single),
            (r'"[^"\n]*"', String),
            (r"[A-Z]\w*\.\w+(?=\()", Name.Class),
            (r"[a-z_]\w*(?:\.\w+)+", Name.Function),
            (words(RULE_CLAUSES, prefix=r"\b", suffix=r"\b(?!\s*[:=(])"), Keyword),
            (words(RULE_CONTROL, prefix=r"\b", suffix=r"\b(?!\s*[:=])"), Keyword.Reserved),
            (words(REDUCTIONS, prefix=r"\b", suffix=r"\b(?!\s*[:=(])"), Keyword),
            (words(PLACEMENTS, prefix=r"\b", suffix=r"\b"), Name.Class),
            (words(ELEMENT_TYPES, prefix=r"\b", suffix=r"\b"), Keyword.Type),
            (r"[*^~][A-Za-z_]?\w*(?:[-~][A-Za-z_]\w*)?", Name.Variable),
            (r"[A-Za-z_]\w*(?=\()", Name.Builtin),
            (r"[A-Za-z_]\w*", Name.Variable),
            (_NUMBER, Number),
            (r"->|==|!=|>=|<=|[-+/%<>=?]|…|\.\.\.", Operator),
            (r"[()\[\],:;]", Punctuation),
        ]
    }


class RewritesLexer(RegexLexer):
    """Rewrites of collectives."""

    name = "spmdir rewrites"
    aliases = ["rewrites", "spmd-rewrites"]
    filenames = ["*.rewrites"]
    tokens: ClassVar[dict[str, list[Any]]] = {
        "root": [
            (r"\s+", Whitespace),
            (r"#.*", Comment.Single),
            (r"[a-z][a-z_-]+(?=:)", Name.Label),
            (rf"(?:{'|'.join(COLLECTIVES)}|wait)(?:_start)?\b", Name.Builtin),
            (words(REWRITE_WORDS, suffix=r"\b"), Keyword),
            (r"f\b", Name.Function),
            (r"[A-Z]\b\??", Name.Class),
            (r"[a-z]\b", Name.Variable),
            (r"[a-z][a-z_-]+", Name),
            (r"=>|!=|\.\.\.", Operator),
            (r"[(),:?]", Punctuation),
        ]
    }
