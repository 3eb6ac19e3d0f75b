"""The modelled peak of live memory of a rank, beside that of a run of its emitted graph, for training steps.

The graph runs op by op on the CPU, each value is freed after its last use, and the storages of the tensors that are
left are added up. Collectives allocate as they would among all ranks.
"""

from __future__ import annotations

import itertools

from benchmarks.measure import Row, cold, listed, options, print_table

MODELS = ("llama", "gpt2", "odd_mixtral", "vit")
PLANS = ("none", "tensor_parallel", "fsdp", "fsdp_tensor_parallel")


def peaks(model: str, plan: str, mesh: str) -> tuple[float, float]:
    """Return the modelled and the measured peak of a training step, in bytes."""
    import torch

    from tests.models import cases
    from tests.report.live_bytes import modelled_and_measured

    layout = cases.LAYOUTS[mesh]
    program = cases.training(model, torch.float32, (8, 32))
    shardings = {} if plan == "none" else cases.shardings(model, plan, layout)
    return modelled_and_measured(program, layout.mesh, shardings)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--models", type=listed(str), default=list(MODELS), help="models of tests/models")
    parser.add_argument("--plans", type=listed(str), default=list(PLANS), help="plans of tests/models")
    parser.add_argument("--mesh", default="2x4", help="a mesh of tests/models")
    chosen = parser.parse_args()
    rows = []
    for model, plan in itertools.product(chosen.models, chosen.plans):
        if model.startswith("odd_") and plan != "none":
            continue  # these have no plans
        modelled, measured = cold(peaks, model, plan, chosen.mesh)
        off = abs(modelled / measured - 1)
        detail = f"{modelled / 1e6:.3f} MB modelled, {measured / 1e6:.3f} MB measured"
        rows.append(Row(f"{model}, {plan}", 100 * off, 5, form="{:.2f} %", detail=detail))
    print_table(f"modelled peak of live memory, off by, mesh {chosen.mesh}", rows)


if __name__ == "__main__":
    main()
