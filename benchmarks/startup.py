"""Start-up of `spmd-opt examples/mlp.mlir --propagate --insert-reshard` against importing xDSL's tool."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import Row, options, print_table

ROOT = Path(__file__).parent.parent
TOOL = "from spmdir.tools.spmd_opt import main; raise SystemExit(main())"
COMMANDS = {
    "xDSL": ["-c", "import xdsl.xdsl_opt_main"],
    "spmd-opt": ["-c", TOOL, str(ROOT / "examples" / "mlp.mlir"), "--propagate", "--insert-reshard"],
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
    ours, stock = min(seconds["spmd-opt"]), min(seconds["xDSL"])
    detail = f"{ours:.2f} / {stock:.2f} s, best of {runs}"
    print_table("start-up", [Row("spmd-opt / import of xDSL", ours / stock, 3.0, detail=detail)])


if __name__ == "__main__":
    main()
