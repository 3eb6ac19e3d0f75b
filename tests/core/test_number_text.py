"""Numbers have ASCII digits in every text; Python's `int` and a regex's `\\d` take those of all scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

import spmdir
from spmdir.core.byte_size import Bytes
from spmdir.core.errors import SpmdirError
from spmdir.core.number_text import integer, real
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import Pipeline
from spmdir.reshard.measured_times import parse_costs

PROGRAM = """spmd.mesh @mesh <a = 4>
func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(1)>}) -> tensor<8x8xf32> {
  %0 = aten.softmax.int(%x) {dim = 1} : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
"""


@pytest.mark.parametrize("kind", [integer, real, Bytes])
def test_digits_of_other_scripts_are_no_number(kind: type) -> None:
    assert kind("14") == 14
    with pytest.raises(ValueError, match="١٤"):
        kind("١٤")


@pytest.mark.parametrize("number", ["a = 4", "x8x", "S(1)", "dim = 1", "%0 = "])
def test_a_program_has_none_of_them(number: str) -> None:
    number = number if number != "x8x" else "8x8xf32>\n  return"
    digit = next(letter for letter in number if letter.isdigit())
    with pytest.raises(SpmdirError) as error:
        ir.parse(PROGRAM.replace(number, number.replace(digit, chr(0x0660 + int(digit)))))
    assert error.value.location is not None


@pytest.mark.parametrize("step", ["propagate{effort=٤}", "propagate{memory=٤GiB}", "bind-sizes{s0=٤}"])
def test_an_option_has_none_of_them(step: str) -> None:
    with pytest.raises(SpmdirError, match="٤"):
        Pipeline(step).made()


def test_a_table_of_costs_has_none_of_them() -> None:
    with pytest.raises(SpmdirError):
        parse_costs("aten.mm f32[٤,4] f32[4,4] = 1e-6", "costs.txt")


def test_no_pattern_asks_for_digits_of_any_script() -> None:
    root = Path(spmdir.__file__).parent
    texts = [*root.rglob("*.py"), *root.rglob("*.lark")]
    assert [path for path in texts if "\\d" in path.read_text()] == []
