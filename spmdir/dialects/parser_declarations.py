"""What a text declares ahead of the ops that rely on it: its mesh, and examples of its symbolic sizes.

It is kept on the parser that reads the text, whichever that is, so that xDSL's own parser reads these texts too.
"""

from __future__ import annotations

from xdsl.parser import AttrParser

from spmdir.core.mesh import Mesh

Hints = tuple[tuple[str, int], ...]
"""Examples of sizes by name."""


def declare_mesh(parser: AttrParser, mesh: Mesh) -> None:
    """Let what follows in the text be about `mesh`."""
    parser.__dict__["spmd_mesh"] = mesh


def declared_mesh(parser: AttrParser) -> Mesh | None:
    """Return the mesh that the text has declared so far."""
    return parser.__dict__.get("spmd_mesh")


def declare_hints(parser: AttrParser, hints: Hints) -> None:
    """Let what follows in the text know these sizes too."""
    parser.__dict__["spmd_hints"] = declared_hints(parser) + hints


def declared_hints(parser: AttrParser) -> Hints:
    """Return the examples of the sizes that the text has declared so far."""
    return parser.__dict__.get("spmd_hints", ())
