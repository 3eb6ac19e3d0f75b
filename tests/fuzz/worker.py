"""The process that runs batches, one after the other; see `spmdir.checking.rules.worker`."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import resource
from collections.abc import Callable
from typing import Any

import torch

import spmdir
from spmdir.checking.rules.worker import serve
from tests.fuzz.batch import Batch, run_batch
from tests.fuzz.kinds import KINDS

MEMORY = 16 << 30
"""Bytes of address space: a tensor that a malformed text asks for must fail here, not fill the machine."""


class Session:
    """Runs batches; everything is imported first, because hypothesis draws from the constants of imported modules."""

    def __init__(self, setup: Any, say: Callable[[str], None]):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        torch.set_num_threads(1)
        logging.disable()
        for module in pkgutil.walk_packages(spmdir.__path__, "spmdir."):
            importlib.import_module(module.name)
        self._say = say

    def batch(self, kind: str, seed: int, examples: int | None) -> Batch:
        self._say(f"running batch {seed} of {kind}")
        return run_batch(KINDS[kind], seed, examples)


if __name__ == "__main__":
    serve(Session)
