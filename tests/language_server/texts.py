"""Texts, and places in them that a test marks with `^`."""

from __future__ import annotations

from pathlib import Path

from spmdir.language_server.document import Document, read_document
from spmdir.pipeline.pipeline import Pipeline
from spmdir.tools.command import run_in_process

MLP = (Path(__file__).parents[2] / "examples" / "mlp.mlir").read_text()
PIPELINE = Pipeline()


def document(text: str, file: str = "in.mlir", previous: Document | None = None) -> Document:
    return read_document(text, file, PIPELINE, previous)


def decided(*passes: str) -> str:
    """Return the text of the example after passes."""
    return run_in_process(["spmd-opt", "-", *passes], MLP)[1]


def underlined(found: Document) -> list[tuple[str, str]]:
    """Return what each mistake underlines, and its message."""
    return [(found.text[one.span.start : one.span.end], one.message) for one in found.mistakes]
