"""The law that every process computes the same: compare with a process that has the environment of another rank."""

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

from spmdir.checking.placements.instances import instances
from spmdir.checking.placements.law import Example, Fault, Law, Outcome, if_applicable
from spmdir.checking.placements.layouts import layouts
from spmdir.checking.placements.simulated_steps import run_moves
from spmdir.checking.placements.step_laws import moves_of_large_tensors
from spmdir.checking.placements.tensor_examples import supported_types
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.base import Placement
from spmdir.core.placement.digest import layout_digest
from spmdir.torch_interop.bits import flat_bytes

DECLARATIONS = {"layout": "`ranges`, `local_type` or `check`", "values": "`distribute`", "steps": "`edges`"}
"""Name of a digest → the declarations that it depends on."""

ENVIRONMENT = {"PYTHONHASHSEED": "1234567", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "7", "HOSTNAME": "other"}
"""The environment variables of the other process, as another rank may have them."""

SECONDS = 120
"""The time limit of the other process."""

DIGEST_PROCESS = "spmdir.checking.placements.digest_process"
"""The module that the other process runs."""


def digests(placement: Placement) -> dict[str, str]:
    """Return the digests that DECLARATIONS names: of local types and ranges, of local tensors, and of steps.

    All processes use the same tensors, so equal digests are expected. Tensors that the placement cannot represent are
    left out.
    """
    torch.manual_seed(0)
    dtype = next(iter(supported_types(placement)), None)
    examples = [attrs.evolve(example, dtype=dtype) for example in layouts(placement)] if dtype else []
    layout = layout_digest(placement, ((example.shape or (), dtype, example.ranks) for example in examples if dtype))
    values, steps = hashlib.sha256(), hashlib.sha256()
    for example in examples:
        try:
            shards = placement.distribute(example.tensor(), example.ranks, example.noise())
        except UnsupportedError:
            continue
        for shard in shards:
            values.update(_bytes(shard))
    for move in moves_of_large_tensors(placement):
        for shard in run_moves([move], [move.source_shards()])[0]:
            steps.update(_bytes(shard))
    return {"layout": layout, "values": values.hexdigest(), "steps": steps.hexdigest()}


def _bytes(tensor: torch.Tensor) -> bytes:
    """Return the elements of a tensor as bytes."""
    return bytes(flat_bytes(tensor).tolist())


def source_of(kind: type[Placement]) -> str | None:
    """Return the file or the module from which another process can load a class; None if there is none."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if file is None or kind.__module__ == "__main__":
        return None
    return kind.__module__ if kind.__module__.startswith("spmdir.") else file


def _is_compared(placement: Placement) -> bool:
    """Return whether a placement is compared with the one of another process, which makes the same instances."""
    return placement.trait not in ("open", "replicated") and placement in instances(type(placement))


def _environment_example(placement: Placement) -> Iterator[Example]:
    """Yield one example, with the environment of the other process as its note."""
    if _is_compared(placement) and source_of(type(placement)) is not None:
        yield Example(note=" ".join(f"{name}={value}" for name, value in ENVIRONMENT.items()))


def _find_difference(placement: Placement, example: Example) -> Fault:
    """Return a fault if another process, with another environment, computes another digest or fails; else None.

    NOT_APPLICABLE if the placement accepts no tensors.
    """
    kind = type(placement)
    source = source_of(kind)
    assert source is not None
    other_digests = _digests_of_other_process(source, tuple(map(str, instances(kind))))[str(placement)]
    if "error" in other_digests:
        return f"another process fails: {other_digests['error']}"
    own_digests = digests(placement)
    different = [text for name, text in DECLARATIONS.items() if own_digests[name] != other_digests[name]]
    if not different:
        return None if list(layouts(placement)) else Outcome.NOT_APPLICABLE
    return (
        f"the results of {different[0]} differ in another process; expected results that depend only on the arguments, "
        "not on the `hash` of a text, random numbers, the time or the environment"
    )


@lru_cache(maxsize=8)
def _digests_of_other_process(source: str, texts: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Return the digests of each placement from another process, or "error" and a message.

    Args:
        source: the file or module that declares the placements.
        texts: the placements.
    """
    process = subprocess.run(
        [sys.executable, "-m", DIGEST_PROCESS],
        input=json.dumps({"source": source, "texts": texts}),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if process.returncode:
        error_lines = process.stderr.strip().splitlines() or ["without a message"]
        error = f"it ends with status {process.returncode}: {error_lines[-1]}"
        return {text: {"error": error} for text in texts}
    return json.loads(process.stdout.splitlines()[-1])


PROCESS_LAWS = (
    Law(
        "processes",
        "every process computes the same local types, shards and steps, with any hash seed and environment",
        _environment_example,
        _find_difference,
        ("ranges", "local_type", "distribute", "edges"),
        subjects=if_applicable(_is_compared),
        remedy="define the class in a file that another process can load",
        is_slow=True,
    ),
)
