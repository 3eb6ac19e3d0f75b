"""Malformed text of every format that a tool reads: an answer, or an error of one line at its place."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from unittest import mock

import attrs
from hypothesis import assume
from hypothesis import strategies as st

from spmdir.core.input_parts import SPLIT
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from spmdir.core.placement.sharding_plan import read_plan
from spmdir.core.placement.standard import parse_placement
from spmdir.rewrites.rewrite_text import parse_rewrites
from spmdir.tools import spmd, spmd_opt, spmd_run, spmd_translate
from spmdir.tools.argument_parser import parse_mesh_axes
from spmdir.tools.command import run_in_process
from spmdir.tools.golden import read_golden
from tests.fuzz.batch import Kind, Wrong

ROOT = Path(__file__).parents[2]
MESH = Mesh({"dp": 2, "tp": 4})
TOOLS: dict[str, Callable[[Sequence[str]], int]] = {
    "spmd-opt": spmd_opt.main,
    "spmd-run": spmd_run.main,
    "spmd": spmd.main,
    "spmd-translate": spmd_translate.main,
}
WAY = "--propagate --insert-reshard --lower-reshard --fuse-collectives --verify-spmd --localize"
NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "1000000",
    "9223372036854775807",
    "99999999999999999999",
    "1e400",
    "nan",
    "-0.0",
)
WORDS = """
dp tp S(0) S(9) P(sum) P(max) R ? Cyclic(0,2) Strided(0,2) Ragged(0,[1,2]) Masked Norm(2) Quantised tensor<4xf32> i1
tensor<0xf64> none f32 complex<f32> aten.relu aten.mm spmd.all_gather spmd.reshard -> => loc(unknown) needs of on dim
op // true size(4,dp) async module when sum linear and not rewrite return dp/2 s0 ... _ {{ }} func.func spmd.sharding
!spmd.pending<tensor<4xf32>> _start (((((((( [[[[[[[[ -- = --propagate -p -
"""
TOKENS = (*"<>(){}[]@%#:,=\"'?!^*&|\\/ \t\n\0é\u200b\ufeff", "\r\n", "", *NUMBERS, *WORDS.split())
MUTATIONS = [
    "replace",
    "delete",
    "double",
    "swap",
    "splice",
    "number",
    "line-out",
    "line-twice",
    "lines-swapped",
    "byte",
    "end",
    "repeat",
]
_TOKEN = re.compile(r"\s+|\w+|.", re.DOTALL)


@attrs.frozen
class Text:
    """A text of some format, and the command line that reads it where it is a file; `{}` stands for its path."""

    format: str
    text: str
    command: str = ""

    def __str__(self) -> str:
        return f"{self.format} {self.command}\n{self.text!r}" if len(self.text) < 4000 else f"{self.text[:4000]!r}…"


def check(case: Text) -> str | None:
    """Run the tool; raises Wrong where its answer breaks a promise, and whatever escapes from it."""
    direct = DIRECT.get(case.format)
    if direct is not None:
        direct(case.text)
        return None
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        suffix = {"rules": ".rules", "topology": ".toml"}.get(case.format, ".mlir")
        Path(f"in{suffix}").write_text(case.text, encoding="utf-8", newline="")
        if case.format == "command":
            Path("in.mlir").write_text(example())
            argv = _arguments(case.text)
        else:
            argv = [part.replace("{}", f"in{suffix}") for part in shlex.split(case.command)]
        status, out, err = run_tool(argv)
        if status not in (0, 1):
            raise Wrong(f"exit status {status}: {err}")
        if status == 1:
            located(out, err)
            return err.partition("error: ")[2] or err
        if argv[0] == "spmd-opt" and "{}" in case.command and out and "--verify-diagnostics" not in argv:
            Path("out.mlir").write_text(out, newline="")
            forms = ("split-input-file", "print-op-generic", "print-debuginfo")
            again = run_tool(["spmd-opt", "out.mlir", *(option for option in argv if option.endswith(forms))])
            if again[0] != 0 or again[1] != out:
                raise Wrong(f"what was printed is not read back alike: {again[2] or out}")
    return None


def located(out: str, err: str) -> None:
    """Raise Wrong unless an error is one on stderr alone, with its words."""
    if not re.search(r"^(.*:\d+:\d+: )?error: \S", err, re.MULTILINE):
        raise Wrong(f"exit status 1 with no error but {err!r}")
    if out and "output 0" not in out:
        raise Wrong(f"exit status 1 with output {out[:200]!r}")


def run_tool(argv: Sequence[str]) -> tuple[int, str, str]:
    """Status, stdout and stderr of a tool in this process; exceptions that are internal errors escape."""
    out, err = io.StringIO(), io.StringIO()
    stdin = io.TextIOWrapper(io.BytesIO(example().encode()))
    with (
        mock.patch.object(sys, "stdin", stdin),
        mock.patch.dict(os.environ, {"SPMDIR_DEBUG": "1", "COLUMNS": "120"}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = TOOLS[argv[0]](list(argv[1:]))
        except SystemExit as end:
            status = int(end.code or 0)
    return status, out.getvalue(), err.getvalue()


def run_tool_on(text: str, *options: str) -> tuple[int, str, str]:
    """Status, stdout and stderr of `spmd-opt` for a text on stdin."""
    with mock.patch.dict(os.environ, {"SPMDIR_DEBUG": "1"}):
        return run_in_process(["spmd-opt", "-", *options], text)


def _arguments(text: str) -> list[str]:
    try:
        words = shlex.split(text.replace("\0", ""))
    except ValueError:
        return []
    return words if words and words[0] in TOOLS and not _reaches_out(words) else []


def _reaches_out(words: Sequence[str]) -> bool:
    """Return whether a mutated command would read or write outside its folder, or execute a file."""
    return any("/" in word and "out" not in word for word in words[1:]) or any(".py" in word for word in words)


DIRECT: dict[str, Callable[[str], object]] = {
    "sharding": parse_sharding,
    "placement": parse_placement,
    "rewrites": parse_rewrites,
    "plan": lambda text: read_plan(text, "plan.toml", MESH),
    "mesh": lambda text: Mesh(parse_mesh_axes(text)),
}
"""Formats that are read by one function: text → its value."""


@cache
def example() -> str:
    """Return the text that tools find on stdin and in `in.mlir`."""
    return (ROOT / "examples" / "mlp.mlir").read_text()


TOPOLOGY = """intra_bandwidth = 4e11
inter_bandwidth = 5e10
memory_bandwidth = 2e12
base_latency = 1e-6
intra_latency = 1e-6
inter_latency = 3e-6
"""
PLAN = """out_shardings = ["dp: S(0)", "?"]

[shardings]
x = "dp: S(0)"
"model.layers.*.weight" = "tp: S(0)"
"""
SHARDINGS = """dp: S(0), tp: P(sum)
dp: Strided(0, 2), tp: S(0)
dp: ?
dp: Ragged(1, [1, 2]), tp: Norm(2)
dp(1)2: S(1)"""
PLACEMENTS = """S(0)
P(max)
Ragged(0, [1, 2, 3])
Norm(inf)
Cyclic(1, 4)
Strided(0, 2)"""
COMMANDS = """spmd-opt in.mlir --propagate --insert-reshard
spmd-opt in.mlir -p 'propagate{effort=2},insert-reshard' --timing
spmd-opt - --propagate="effort=3" --print-ir-after-all --verify-each -o out.mlir
spmd-opt in.mlir --print-op-generic --print-debuginfo --split-input-file
spmd report in.mlir --view cost,summary --topology flat
spmd-opt --list-passes
spmd plan-reshard 'S(0), S(0)' 'S(1), S(1)' --mesh 2x8 --shape 64x64 --no-dtensor
spmd plan-reshard 'dp: P(sum)' 'dp: R' --mesh dp=2,tp=8 --shape 7x5 --intra tp
spmd plan-reshard R 'Cyclic(0, 2)' --mesh 3 --shape 10 --dtype bf16 --topology flat --no-dtensor
spmd plan-reshard --help
spmd-run in.mlir --seed 3 --tolerance 1e-9 --sizes s0=3
spmd-translate --emit-fx in.mlir --rank 3 --sizes s0=8,s1=5 -o out.txt
spmd-translate --import-pt2 in.mlir --mesh dp=2,tp=4 --missing-rule=error
spmd check-placement --list-laws"""
FORMATS = [
    "mlir",
    "mlir",
    "mlir",
    "mlir",
    "rules",
    "rules",
    "rewrites",
    "plan",
    "topology",
    "sharding",
    "placement",
    "mesh",
    "command",
    "command",
]
"""Formats, each as often as it is drawn."""


@cache
def corpus() -> dict[str, tuple[Text, ...]]:
    """Format → texts to begin with."""
    small = example().replace("1024", "8").replace("4096", "12")
    plan_it = "spmd plan-reshard S(0) R --mesh 4 --shape 8 --no-dtensor --topology {}"
    check_it, report = "spmd-run {} --check", "spmd report {} --view cost,memory"
    rules = [p.read_text() for p in sorted((ROOT / "spmdir" / "rules" / "aten").glob("*.rules"))]
    rewrites = (ROOT / "spmdir" / "rewrites" / "fuse_collectives.rewrites").read_text()
    files = {
        "mlir": (*_golden(), *[Text("mlir", small, command) for command in (check_it, report) * 5]),
        "rules": tuple(
            Text("rules", b, f"spmd-opt - --load-plugin {{}} {WAY}") for r in rules for b in r.split("\n\n")
        ),
        "topology": (Text("topology", TOPOLOGY, plan_it),),
        "plan": (Text("plan", PLAN),),
        "rewrites": tuple(Text("rewrites", block) for block in rewrites.split("\n\n")),
    }
    lines = {"sharding": SHARDINGS, "placement": PLACEMENTS, "mesh": "dp=2,tp=4\na = 1, b = 3", "command": COMMANDS}
    return files | {name: tuple(Text(name, line) for line in text.splitlines()) for name, text in lines.items()}


def _golden() -> list[Text]:
    """Return the inputs of golden files, run as they are there, and all the way."""
    texts = []
    for path in sorted((ROOT / "tests" / "golden").rglob("*.mlir")):
        golden = read_golden(path.read_text(), str(path))
        command = shlex.join("{}" if argument == "-" else argument for argument in golden.commands[0])
        texts.append(Text("mlir", SPLIT.join(golden.sources), command))
        for part in golden.sources[:2] if "bad" not in path.parts else []:
            texts += [Text("mlir", part, f"spmd-opt {{}} {WAY}"), Text("mlir", part, "spmd-translate --emit-fx {}")]
    return texts


@st.composite
def malformed(draw: st.DrawFn) -> Text:
    """Return a text of the corpus with up to four mutations."""
    texts = corpus()[draw(st.sampled_from(FORMATS))]
    case = texts[draw(st.integers(0, len(texts) - 1))]
    text = case.text
    for _ in range(draw(st.integers(1, 4))):
        how, a, b = draw(st.sampled_from(MUTATIONS)), draw(st.integers(0, 2**16)), draw(st.integers(0, 2**16))
        text = mutated(text, how, a, b, texts)
    assume(case.format != "command" or _arguments(text))
    return attrs.evolve(case, text=text.encode("utf-8", "replace").decode())


def mutated(text: str, how: str, a: int, b: int, texts: Sequence[Text]) -> str:
    """`text` changed at a place that `a` chooses in a way that `b` does."""
    if how in ("line-out", "line-twice", "lines-swapped"):
        lines = text.splitlines(keepends=True) or [""]
        i, j = a % len(lines), b % len(lines)
        if how == "lines-swapped":
            lines[i], lines[j] = lines[j], lines[i]
        else:
            lines[i : i + 1] = [] if how == "line-out" else [lines[i], lines[i]]
        return "".join(lines)
    tokens = _TOKEN.findall(text) or [""]
    i = a % len(tokens)
    if how == "number":
        found = [n for n, token in enumerate(tokens) if token.isdigit()] or [i]
        i = found[a % len(found)]
        tokens[i] = NUMBERS[b % len(NUMBERS)]
    elif how == "replace":
        tokens[i] = TOKENS[b % len(TOKENS)]
    elif how == "delete":
        tokens[i : i + 1 + b % 4] = []
    elif how == "double":
        tokens[i : i + 1] = [tokens[i]] * 2
    elif how == "swap":
        j = b % len(tokens)
        tokens[i], tokens[j] = tokens[j], tokens[i]
    elif how == "splice":
        other = _TOKEN.findall(texts[b % len(texts)].text) or [""]
        start = (a * 31 + b) % len(other)
        tokens[i:i] = other[start : start + 1 + b % 12]
    elif how == "byte":
        tokens[i] += chr(b % 256)
    elif how == "end":
        tokens = tokens[:i]
    else:
        tokens[i] *= (2, 30, 3000, 40_000)[b % 4] if len(tokens[i]) < 20 else 2
    return "".join(tokens)


MALFORMED = Kind("malformed", malformed(), check, examples=250, seconds=10, share=2)
