"""What stands behind the operands of an op: where it ends, what it reads as, and where malformed text is wrong."""

from __future__ import annotations

import pytest

from spmdir.core.mesh import Mesh
from spmdir.core.placement.literals import LiteralError
from spmdir.dialects.attributes import print_type
from spmdir.dialects.op_parser import parse_tail, tail_end

MESH = Mesh({"dp": 2, "tp": 4})
CLAUSES = (("on", "axes"), ("dim", "dim"), ("op", "op"), ("whole", "whole"))


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (" : tensor<4xf32>\n  %1 = aten.neg(%0)", "\n  %1 = aten.neg(%0)"),
        (" : tensor<4xf32> // a comment", " // a comment"),
        (" : tensor<4xf32> loc(unknown)", " loc(unknown)"),
        (" : tensor<4xf32> loc(#loc3)\n    of [8]\n  return", " loc(#loc3)\n    of [8]\n  return"),
        (" {size = [1 loc(#a)\n, 2]} : none", ""),
        (' {mode = "a loc(#a)"} : none loc(#b)\n}', " loc(#b)\n}"),
        (" : none loc(#a) loc(#b)\n}", " loc(#a) loc(#b)\n}"),
        (" : tensor<4xf32> }", " }"),
        (" : tensor<4xf32> attributes {a}", " attributes {a}"),
        (" : tensor<4xf32> %1 = aten.neg(%0)", " %1 = aten.neg(%0)"),
        (" : tensor<4xf32> %1:2 = aten.neg(%0)", " %1:2 = aten.neg(%0)"),
        (" : tensor<4xf32>, none %1, %2 = aten.neg(%0)", " %1, %2 = aten.neg(%0)"),
        (" : tensor<4xf32> return %0", " return %0"),
        (" {size = [1,\n  2]} : none", ""),
        (" : tensor<4xf32>\n    needs (<dp: S(0)>)\n  return", "\n  return"),
        (" : tensor<4xf32>\n    of [8]\n  return", "\n  return"),
        (' {mode = "a // b"} : none\n}', "\n}"),
        (" {never = [closed : none\n}", ""),
    ],
)
def test_an_op_ends_where_another_thing_begins(text: str, rest: str) -> None:
    assert text[tail_end(text, 0) :] == rest


@pytest.mark.parametrize(
    ("text", "types", "properties"),
    [
        (": tensor<4x8xf32>", ["tensor<4x8xf32>"], {}),
        (": tensor<f64>, none", ["tensor<f64>", "none"], {}),
        ("{k = 1} : none", ["none"], {"arguments": "arguments<{k = 1}>"}),
        ("on [dp, tp] dim 0 : none", ["none"], {"arguments": 'arguments<{axes = ["dp", "tp"], dim = 0}>'}),
        ("op sum whole : none", ["none"], {"arguments": 'arguments<{op = "sum", whole = true}>'}),
        ("dim -1 {k = 1} : none", ["none"], {"arguments": "arguments<{dim = -1, k = 1}>"}),
        (": tensor<4xf32> <dp: S(0)>", ["tensor<4xf32>"], {"sharding": "shardings<@mesh, <dp: S(0)>>"}),
        (": none needs (<dp: R>, _)", ["none"], {"needs": "shardings<@mesh, <>, none>"}),
        (": none of [8], none", ["none"], {"of": "shapes<{of = [[8], none]}>"}),
    ],
)
def test_a_tail_reads_as_types_and_properties(text: str, types: list[str], properties: dict[str, str]) -> None:
    read, found = parse_tail(CLAUSES, text, MESH, ())
    assert [print_type(kind) for kind in found] == types
    assert {name: str(value) for name, value in read.items()} == {k: f"#spmd.{text}" for k, text in properties.items()}


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("", "", "found 'the end', expected ':' and the result types or one of 'on', 'dim'"),
        ("on [dp] tensor<4xf32>", "tensor", "found 'tensor<4xf32>', expected ':' and the result types"),
        ("{k = 1 : none", "{", "the arguments are not closed"),
        ("{k = maybe} : none", "maybe", 'write "maybe" if a string is meant'),
        (":", "", "expected a result type, as in tensor<16x64xf32>"),
        (": vector<4xf32>", " vector", "expected a type: tensor<16x64xf32> or none"),
        (": tensor<4xf33>", "tensor", "unknown element type 'f33'"),
        (": tensor<4xf32> <dp: Q>", "dp: Q", "'Q'"),
        (": none needs (<dp: S(0)>", "(", "`needs (` is not closed"),
        (": none of [4", "[4", "expected global shapes after 'of'"),
        (": none, none again", " again", "found 'again' after the result types; expected the end of the op"),
    ],
)
def test_a_malformed_tail_is_an_error_at_its_place(text: str, at: str, message: str) -> None:
    with pytest.raises(LiteralError) as caught:
        parse_tail(CLAUSES, text, MESH, ())
    assert message in str(caught.value)
    assert caught.value.offset == (text.index(at) if at else len(text))
