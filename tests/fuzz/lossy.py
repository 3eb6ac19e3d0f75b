"""Programs that round on the way: each pass keeps the numbers to the bit, and they are those of rounding on one device.

Values are integers and halves, all ops and sums are exact on them, and the placements round to multiples of four. So no
order of sums changes a bit, and a lossy step that is dropped, added or moved does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from spmdir import run_passes, simulate
from spmdir.dialects import ir
from spmdir.simulator.simulate import run_single
from tests.fuzz.batch import Kind, Wrong
from tests.fuzz.edited import MESHES
from tests.placements.lossy_placements import ROUNDING, coarse
from tests.search.random_programs import OPS, programs

EXACT_OPS = tuple(op for op in OPS if not re.search("cos|mean|softmax", op.text))
LARGEST = 2.0**40
"""The largest value; products of it with halves and sums are exact in f64."""

CLEANUPS = ("canonicalize", "cse", "dce")
LOCAL = ("fit-memory{budget=least}", "bucket", "split-async", "reorder", "schedule")


@attrs.frozen
class Lossy:
    """A program, and the passes that run on it."""

    text: str
    passes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.passes)} on\n{self.text}"


def check(case: Lossy) -> str | None:
    """Simulate the program after each pass; raises Wrong where a bit differs from the program before it."""
    inputs = _integers(case.text)
    expected = _rounded(case.text, inputs)
    if max((value.abs().max().item() for value in expected if value.numel()), default=0.0) > LARGEST:
        return "values too large"
    module, lowered = ir.parse(case.text), False
    for name in ("nothing", *case.passes):
        if name != "nothing":
            run_passes(module, name)
        lowered |= name == "lower-reshard"
        if "CoarseSum" in case.text and not lowered:
            continue  # what a partial value loses depends on how it is split, which is decided by then
        found = simulate(module.clone(), inputs)
        if "CoarseSum" in case.text and name == "lower-reshard":
            expected = found
        _compare(found, expected, name, module)
    return None if "Coarse" in case.text else "nothing is lossy"


def _compare(found: Sequence[Tensor], expected: Sequence[Tensor], name: str, module: ModuleOp) -> None:
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        if not torch.equal(one, other):
            raise Wrong(f"after {name}, result {index} is another:\n{ir.print_ir(module)}")


def _integers(text: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [argument.type.get_shape() for argument in ir.main_function(ir.parse(text)).args]  # type: ignore[attr-defined]
    return [torch.randint(-9, 10, shape, generator=generator).double() for shape in shapes]


def _rounded(text: str, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return what the program computes on one device that rounds where the text has a lossy placement."""
    lines = text.splitlines()
    head = next(index for index, line in enumerate(lines) if line.startswith("func"))
    arguments, _, results = lines[head].partition(" -> ")
    rounded = []
    for number, line in enumerate(lines):
        match = re.match(r"  (%v\d+) = spmd.constraint (%v\d+) : (tensor<\S+>) <.*Coarse(?:Rows)?\b", line)
        if match and number > head:
            value, operand, kind = match.groups()
            line = (
                f"  {value}a = aten.mul.Scalar({operand}) {{other = 0.25}} : {kind}\n"
                f"  {value}b = aten.round({value}a) : {kind}\n"
                f"  {value} = aten.mul.Scalar({value}b) {{other = 4}} : {kind}"
            )
        rounded.append(line)
    given = [coarse(x) if _is_coarse(one) else x for x, one in zip(inputs, arguments.split("%")[1:], strict=True)]
    found = run_single(ir.parse("\n".join(rounded)), given)
    return [coarse(y) if _is_coarse(one) else y for y, one in zip(found, results.split("tensor")[1:], strict=True)]


def _is_coarse(text: str) -> bool:
    return re.search(r"Coarse(Rows)?\b", text) is not None


@st.composite
def lossy(draw: st.DrawFn) -> Lossy:
    """Return a random program with one kind of lossy placement, and passes to the program of a rank."""
    placement = draw(st.sampled_from(ROUNDING))
    given = ("?", "?") if placement == "CoarseSum" else ("?", placement)
    drawn = programs(MESHES, among=EXACT_OPS, given=given, asked=("?", placement, placement), constraints=2)
    text = draw(drawn).text
    passes: list[str] = []
    for stage in (
        *("fold-views", "propagate", "insert-reshard", "lower-reshard", "fuse-collectives"),
        *("split-matmul{always=true}", "localize"),
    ):
        passes += draw(st.lists(st.sampled_from(CLEANUPS), max_size=1))
        passes += [stage] if stage not in ("fold-views", "split-matmul{always=true}") or draw(st.booleans()) else []
    return Lossy(text, (*passes, *(name for name in LOCAL if draw(st.booleans()))))


LOSSY = Kind("lossy", lossy(), check, examples=30, seconds=60, share=2)
