"""The correctness matrix: models × shardings × meshes, simulated and compared with one device.

`python -m benchmarks.correctness --models llama,llama:adamw --plans fsdp --meshes 2x4,3 --sizes 4x8,3x7`; a model by
its name is the exported forward, `model:core` and `model:inference` that with torch's decompositions, `model:optimizer`
the traced training step. Plans `random0`, `random1`, … are any shardings, `shipped0`, … any placements that come with
spmdir, of outputs too, and `decided0`, … those with any strategies of all ops. Models of odd sizes have these, `none`.
Prints the largest relative error of each case over all outputs (losses, gradients by way of moments, moments, new
parameters); exits with 1 if one is above the tolerance or a case is refused.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import traceback

import torch

from spmdir.core.errors import SpmdirError
from tests.models import cases, zoo

MODELS = [
    *zoo.MODELS,
    *(f"{model}:{optimizer}" for model in ("llama", "gpt2", "mlp") for optimizer in ("adamw", "sgd")),
    *(f"{model}{kind}" for model in zoo.ODD_MODELS for kind in ("", ":inference", ":core", ":sgd")),
]
ANY = (cases.RANDOM, cases.SHIPPED, cases.DECIDED)
PLANS = [*cases.PLANS, *(f"{kind}{seed}" for kind in ANY for seed in range(3))]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])

    def listed(text: str) -> list[str]:
        return text.split(",")

    parser.add_argument("--models", type=listed, default=MODELS, help=",".join(MODELS))
    parser.add_argument("--plans", type=listed, default=PLANS, help=",".join(PLANS))
    parser.add_argument("--meshes", type=listed, default=list(cases.LAYOUTS), help=",".join(cases.LAYOUTS))
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--sizes", type=listed, default=["4x8"], help="BATCHxSEQUENCE,…")
    parser.add_argument("--limit", type=float, help="largest error, relative to the largest value of an output")
    parser.add_argument("--trace", action="store_true", help="print the traceback of what fails")
    return parser.parse_args()


def _has(model: str, plan: str) -> bool:
    return plan.startswith((*ANY, "none")) or model.partition(":")[0] in zoo.MODELS


def main() -> int:
    """Run the selection; 0 if every case is within tolerance."""
    options = arguments()
    dtype = getattr(torch, options.dtype)
    limit, worst, failed = options.limit or cases.TOLERANCE[dtype], 0.0, 0
    for size in options.sizes:
        batch, sequence = map(int, size.split("x"))
        for model, plan, mesh in itertools.product(options.models, options.plans, options.meshes):
            if not _has(model, plan):
                continue
            start = time.perf_counter()
            try:
                error = cases.worst_error(model, plan, mesh, dtype, (batch, sequence))
                text = f"{error:.1e}" + ("" if error <= limit else "  WRONG")
                worst, failed = max(worst, error), failed + (error > limit)
            except Exception as problem:
                kind = "REFUSED" if isinstance(problem, SpmdirError) else "CRASHED"
                text, failed = f"{kind} {type(problem).__name__}: {problem}".partition("\n")[0], failed + 1
                if options.trace:
                    traceback.print_exc()
            print(f"{size:6} {model:22} {plan:21} {mesh:10} {time.perf_counter() - start:6.1f} s  {text}", flush=True)
    print(f"worst error {worst:.1e}, limit {limit:.0e}; {failed} cases failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
