"""Start-up of `spmd --help` and of `spmd-opt` on a small program, against importing the tool of xDSL."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import Row, options, print_table

ROOT = Path(__file__).parent.parent
TOOL = "from spmdir.tools.{} import main; raise SystemExit(main())"
COMMANDS = {
    "xDSL": ["-c", "import xdsl.xdsl_opt_main"],
    "spmd --help": ["-c", TOOL.format("spmd"), "--help"],
    "spmd-opt": ["-c", TOOL.format("spmd_opt"), str(ROOT / "examples" / "mlp.mlir"), "--propagate", "--insert-reshard"],
}


def wall(arguments: list[str]) -> float:
    """Wall seconds of one run of Python."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return time.perf_counter() - start


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    for command in COMMANDS.values():
        wall(command)  # fills the caches of bytecode and files
    seconds = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, command in COMMANDS.items():
            seconds[name].append(wall(command))
    best = {name: min(times) for name, times in seconds.items()}
    rows = [
        Row(
            f"{name} / import of xDSL",
            best[name] / best["xDSL"],
            limit,
            detail=f"{best[name]:.2f} / {best['xDSL']:.2f} s, best of {runs}",
        )
        for name, limit in (("spmd --help", 1.0), ("spmd-opt", 3.0))
    ]
    print_table("start-up", rows)


if __name__ == "__main__":
    main()
