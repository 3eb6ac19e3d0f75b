"""The law that every process computes the same: another one, of another rank, is asked and compared."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import attrs
import torch

from spmdir.checking.placements.examples import held_types
from spmdir.checking.placements.instances import instances
from spmdir.checking.placements.law import Example, Fault, Law, Outcome, if_concerned
from spmdir.checking.placements.layouts import layouts
from spmdir.checking.placements.simulated_steps import run
from spmdir.checking.placements.step_laws import large_edges
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.base import Placement
from spmdir.core.placement.digest import layout_digest
from spmdir.torch_interop.bits import flat_bytes

PARTS = {"layout": "`ranges`, `local_type` or `check`", "values": "`distribute`", "steps": "`edges`"}
"""What digests are of → the declarations that it comes from."""

ENVIRONMENT = {"PYTHONHASHSEED": "1234567", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "7", "HOSTNAME": "other"}
"""What the other process has in its environment, as another rank may."""

SECONDS = 120

OTHER = "spmdir.checking.placements.other_process"
"""The module that the other process runs."""


def digests(placement: Placement) -> dict[str, str]:
    """Return a digest of each of PARTS, on the same tensors in every process."""
    torch.manual_seed(0)
    dtype = next(iter(held_types(placement)), None)
    taken = [attrs.evolve(one, dtype=dtype) for one in layouts(placement)] if dtype else []
    found = {"layout": layout_digest(placement, ((one.shape or (), dtype, one.ranks) for one in taken if dtype))}
    values, steps = hashlib.sha256(), hashlib.sha256()
    for example in taken:
        try:
            shards = placement.distribute(example.tensor(), example.ranks, example.noise())
        except UnsupportedError:
            continue
        for shard in shards:
            values.update(_bytes(shard))
    for move in large_edges(placement):
        for shard in run([move], [move.held()])[0]:
            steps.update(_bytes(shard))
    return {**found, "values": values.hexdigest(), "steps": steps.hexdigest()}


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(flat_bytes(tensor).tolist())


def source_of(kind: type[Placement]) -> str | None:
    """Return the file or the module from which another process can load a class; None if there is none."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if file is None or kind.__module__ == "__main__":
        return None
    return kind.__module__ if kind.__module__.startswith("spmdir.") else file


def _concerns(placement: Placement) -> bool:
    return placement.trait not in ("open", "replicated") and placement in instances(type(placement))


def _others(placement: Placement) -> Iterator[Example]:
    if _concerns(placement) and source_of(type(placement)) is not None:
        yield Example(about=" ".join(f"{name}={value}" for name, value in ENVIRONMENT.items()))


def _same(placement: Placement, example: Example) -> Fault:
    kind = type(placement)
    texts = tuple(str(one) for one in instances(kind))
    source = source_of(kind)
    assert source is not None
    theirs = _in_another_process(source, texts)[str(placement)]
    if "error" in theirs:
        return f"another process fails: {theirs['error']}"
    ours = digests(placement)
    different = [what for name, what in PARTS.items() if ours[name] != theirs[name]]
    if not different:
        return None if list(layouts(placement)) else Outcome.UNMET
    return (
        f"{different[0]} gives something else in another process; expected an answer that depends on the arguments "
        "alone, and not on `hash` of a text, random numbers, the time or the environment"
    )


@lru_cache(maxsize=8)
def _in_another_process(source: str, texts: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Return the digests of each placement as another process computes them."""
    question = json.dumps({"source": source, "texts": texts, "path": sys.path})
    done = subprocess.run(
        [sys.executable, "-m", OTHER],
        input=question,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["without a message"]
        error = f"it ends with status {done.returncode}: {said[-1]}"
        return {text: {"error": error} for text in texts}
    return json.loads(done.stdout.splitlines()[-1])


PROCESS_LAWS = (
    Law(
        "processes",
        "every process computes the same, whatever its hash seed and its environment",
        _others,
        _same,
        ("ranges", "local_type", "distribute", "edges"),
        subjects=if_concerned(_concerns),
        wanted="define the class in a file that another process can load",
        is_slow=True,
    ),
)
