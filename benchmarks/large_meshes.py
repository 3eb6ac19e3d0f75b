"""Compiling for meshes of 2²⁰ ranks beside a mesh of 2×4: nothing may go through the ranks of a mesh.

A program is propagated, resharded, lowered, fused, reported and localized, on meshes of 2²⁰ ranks and on 2×4, in one
process after a run on another mesh; `plan` is `plan_reshard` between all pairs of R, S(0), S(1) and P on two axes. CPU
seconds; ratios to 2×4. Plans on more axes are compared with a small mesh of as many axes, for the search goes by axes.

A Llama that is smaller than the mesh is propagated over axes of 1024 taken apart to fit its heads and its batch:
hundreds of reshards are planned on four axes in place of two.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks.measure import Row, options, print_table

MLP = (Path(__file__).parent.parent / "examples" / "mlp.mlir").read_text()
PIPELINE = "propagate{memory=none},insert-reshard,lower-reshard,fuse-collectives"
"""No memory limit: on the small mesh no rank holds its part of a program that is made for the large ones."""
SMALL = {"data": 2, "model": 4}
LARGE = (
    {"data": 1024, "model": 1024},
    {"data": 64, "pod": 64, "model": 256},
    {"model": 1 << 20},
)
PLANNED = (
    ({"a": 1024, "b": 1024}, {"a": 2, "b": 4}),
    ({"a": 64, "b": 64, "c": 256}, {"a": 2, "b": 2, "c": 4}),
    ({"a": 1 << 20}, {"a": 8}),
    ({"a": 32, "b": 32, "c": 32, "d": 32}, {"a": 2, "b": 2, "c": 2, "d": 2}),
)


def compiled(module: Any) -> float:
    """Seconds to take `module` from global shardings to one rank's program, and to report on it."""
    import spmdir

    start = time.process_time()
    spmdir.run_passes(module, PIPELINE)
    spmdir.report.comm_report(module)
    spmdir.run_passes(module, "localize")
    str(module)
    return time.process_time() - start


def mlp(batch: int, hidden: int, wide: int) -> Callable[[dict[str, int]], Any]:
    """Mesh axes → the module of a two-layer perceptron of these sizes."""
    import spmdir

    text = MLP.replace("x1024xf32", f"x{hidden}xf32").replace("x4096xf32", f"x{wide}xf32")
    text = text.replace("<16x", f"<{batch}x").replace("<1024x", f"<{hidden}x").replace("<4096x", f"<{wide}x")

    def module(axes: dict[str, int]) -> Any:
        here = text.replace("dp: ", "data: ").replace("tp: ", "model: ")
        if "data" not in axes:
            here = here.replace("data: S(0)", "")
        return spmdir.parse(here.replace("<dp = 2, tp = 4>", str(spmdir.Mesh(axes))))

    return module


def llama(**sizes: int) -> Callable[[dict[str, int]], Any]:
    """Mesh axes → the module of one Llama layer with loss and gradients."""
    import spmdir
    from benchmarks.programs import LLAMA_7B_WIDE, shardings, trace

    config = attrs.evolve(LLAMA_7B_WIDE, layers=1, **sizes)
    given, _ = shardings(config, "tp")
    graph, *_ = trace(config, None)

    def module(axes: dict[str, int]) -> Any:
        here = given if "data" in axes else {name: text.replace("data: S(0)", "") for name, text in given.items()}
        return spmdir.import_fx(graph, spmdir.Mesh(axes), here)

    return module


def beside_small(
    name: str, module: Callable[[dict[str, int]], Any], meshes: Sequence[dict[str, int]] = LARGE
) -> list[Row]:
    """One row for each large mesh."""
    compiled(module({"data": 3, "model": 5}))
    small = compiled(module(SMALL))
    rows = []
    for axes in meshes:
        large = compiled(module(axes))
        mesh = "x".join(map(str, axes.values()))
        rows.append(Row(f"{name} on {mesh} / 2x4", large / small, 2.0, detail=f"{large:.3f} / {small:.3f} s"))
    return rows


def planned(axes: dict[str, int], shape: tuple[int, ...]) -> float:
    """Seconds to plan every reshard between two placed axes."""
    import spmdir

    mesh, names = spmdir.Mesh(axes), list(axes)[:2]
    sides = [
        ", ".join(f"{axis}: {placement}" for axis, placement in zip(names, placements, strict=True))
        for placements in itertools.product(("R", "S(0)", "S(1)", "P(sum)"), repeat=len(names))
    ]
    start = time.process_time()
    for source, target in itertools.product(sides, repeat=2):
        spmdir.plan_reshard(shape, "f32", source, target, mesh)
    return time.process_time() - start


def plans() -> list[Row]:
    """One row for each large mesh and shape."""
    rows = []
    for kind, shape, little in (
        ("even", (1 << 24, 1 << 24), (64, 1024)),
        ("uneven", (70_001, 5_000), (15, 1001)),
    ):
        for axes, small_axes in PLANNED:
            small, large = planned(small_axes, little), planned(axes, shape)
            name = " / ".join("x".join(map(str, of.values())) for of in (axes, small_axes))
            rows.append(Row(f"plan, {kind}, {name}", large / small, 2.0, detail=f"{large:.3f} / {small:.3f} s"))
    return rows


EVEN_LLAMA = {"batch": 1024, "dim": 1 << 20, "heads": 1024, "kv_heads": 1024, "ffn": 1 << 20, "vocab": 1 << 20}

PARTS: dict[str, Callable[[], list[Row]]] = {
    "mlp, even": lambda: beside_small("mlp, even", mlp(1 << 20, 1 << 20, 1 << 22)),
    "mlp, uneven": lambda: beside_small("mlp, uneven", mlp(1500, 5000, 7000)),
    "llama, even": lambda: beside_small("llama, even", llama(**EVEN_LLAMA)),
    "llama, uneven": lambda: beside_small("llama, uneven", llama()),
    "plans": plans,
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="may be repeated; default: all")
    parts = parser.parse_args().part or PARTS
    planned({"a": 3, "b": 5}, (64, 1024))
    print_table("large meshes", [row for part in parts for row in PARTS[part]()])


if __name__ == "__main__":
    main()
