"""Declarations that a parser has read, for the ops that follow: the mesh, and the examples of symbolic sizes.

The declarations are stored as attributes of the parser, which may be `IRParser` or xDSL's parser.
"""

from __future__ import annotations

from xdsl.parser import AttrParser

from spmdir.core.mesh import Mesh

Hints = tuple[tuple[str, int], ...]
"""(name, example) of each symbolic size."""


def declare_mesh(parser: AttrParser, mesh: Mesh) -> None:
    """Record that the text declares `mesh`."""
    parser.__dict__["spmd_mesh"] = mesh


def declared_mesh(parser: AttrParser) -> Mesh | None:
    """Return the mesh that the text has declared so far; None if it has not."""
    return parser.__dict__.get("spmd_mesh")


def declare_hints(parser: AttrParser, hints: Hints) -> None:
    """Record that the text declares these sizes."""
    parser.__dict__["spmd_hints"] = declared_hints(parser) + hints


def declared_hints(parser: AttrParser) -> Hints:
    """Return the examples of the sizes that the text has declared so far."""
    return parser.__dict__.get("spmd_hints", ())
