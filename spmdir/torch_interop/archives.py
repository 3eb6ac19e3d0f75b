"""Readers of the archives that torch.export.save writes: `torch.export.pt2_archive._package`, in torch 2.11 to 2.13."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.pt2_archive._package import PT2ArchiveReader as PT2ArchiveReader
from torch.export.pt2_archive._package import _load_exported_programs


def file_reader(source: Any) -> Any:
    """Return torch's own reader of the members of an archive, a path or a file."""
    return torch._C.PyTorchFileReader(source)


def model_program(reader: PT2ArchiveReader) -> ExportedProgram:
    """Return the program in an archive that torch.export.save wrote."""
    return _load_exported_programs(reader, reader.get_file_names(), None)["model"]


def drop_guards(exported: ExportedProgram) -> None:
    """Drop the text of the guards that an archive holds, which torch would execute in `exported.module()`."""
    exported._guards_code = []
