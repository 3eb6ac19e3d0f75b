"""A directory of decided programs, one text file each, which users can review, commit and edit."""

from __future__ import annotations

import os
import re
from pathlib import Path

import attrs
import torch
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.errors import SpmdirError
from spmdir.core.progress import say
from spmdir.core.text_file import read_text_file, write_text_file
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import Pipeline, Step, run_passes
from spmdir.reshard.topology import with_costs
from spmdir.runtime.cached_program import check_and_locate
from spmdir.runtime.digests import package_digest, text_digest

_CHECK = (Step("verify-spmd", (("before-reshard", "true"),)),)


@attrs.frozen
class CacheEntry:
    """The file of a decided program.

    Attributes:
        path: the path of the file.
        header: the comment at its start: the model, mesh and passes of the program.
    """

    path: Path
    header: str

    @classmethod
    def of(cls, directory: str | os.PathLike[str], name: str, imported: ModuleOp, deciding: Pipeline) -> CacheEntry:
        """Return the entry for an imported program and the passes `deciding`; its file may not exist.

        The file name contains a digest of the program, mesh, annotations, pipeline, machine and versions.
        """
        machines = [
            repr(with_costs(deciding.find_topology(step.topology), step.costs))  # type: ignore[attr-defined]
            for step in deciding.made()
            if hasattr(step, "topology") and hasattr(step, "costs")
        ]
        parts = [torch.__version__, package_digest(), deciding.digest, *machines, ir.print_ir(imported)]
        digest = text_digest("\0".join(parts))
        lines = (
            f"Decided for {name} on the mesh {ir.mesh(imported)}, traced by torch {torch.__version__}, by the passes",
            str(deciding),
            "You may edit shardings, but not the computation. Delete the file to decide the program again.",
        )
        file = f"{re.sub(r'[^A-Za-z0-9_]+', '-', name)}-{digest[:16]}.mlir"
        return cls(Path(directory) / file, "".join(f"// {line}\n" for line in lines))

    def read(self, imported: ModuleOp, deciding: Pipeline) -> ModuleOp | None:
        """Return the program in the file, after a check that it is a decided form of `imported`; None without a file.

        Raises:
            SpmdirError: located in the file: it is damaged, of another program, or not a legal decision.
        """
        if not os.path.exists(self.path):  # Path.exists raises for a name that is too long
            return None
        say("reading {}", self.path)
        try:
            module = ir.parse(read_text_file(self.path, f"'{self.path}'"), str(self.path))
            run_passes(module, deciding.with_steps(_CHECK))
            undecided = tuple(step for step in deciding.steps if step.name != "propagate")
            check_and_locate(module, run_passes(imported, deciding.with_steps(undecided)))
        except SpmdirError as error:
            message = f"{error.message}; correct the file, or delete it to have the program decided again"
            raise SpmdirError(message, error.location) from None
        return module

    def write(self, decided: ModuleOp) -> None:
        """Write a decided program atomically: concurrent readers find no file or the whole file.

        Raises:
            SpmdirError: the file cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpmdirError(
                f"cannot make the directory '{self.path.parent}': {error.strerror}; expected a path that can be "
                "written: choose another one"
            ) from None
        write_text_file(self.path, self.header + ir.print_ir(decided))
