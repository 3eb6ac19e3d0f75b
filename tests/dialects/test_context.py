"""The parser: printed locations and repeated dictionaries are read without the lexer, and mean what they say."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import CallSiteLoc, FileLineColLoc, IntAttr, NameLoc, StringAttr

from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir
from spmdir.dialects.context import IRLexer

MESH = "spmd.mesh @mesh <dp = 2>\n"


def ops_of(text: str):
    return list(ir.main_function(ir.parse(text)).body.block.ops)


def program(ops: int, arguments: int) -> str:
    """The text of a program with this many ops that have locations, and arguments that have shardings."""
    attributes = '{spmd.kind = "parameter", spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}'
    given = ", ".join(["%x: tensor<4xf32>", *(f"%p{n}: tensor<4xf32> {attributes}" for n in range(arguments))])
    places = "".join(f'#loc{n} = loc("layers.{n}"(#loc))\n' for n in range(ops))
    body = "".join(f"  %v{n} = aten.neg(%x) : tensor<4xf32> loc(#loc{n})\n" for n in range(ops))
    return f'#loc = loc("model.py":1:1)\n{places}\n{MESH}\nfunc.func @main({given}) {{\n{body}  return\n}}\n'


def tokens(text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many tokens the lexer reads."""
    count, lex = 0, IRLexer.lex

    def counted(self: IRLexer):
        nonlocal count
        count += 1
        return lex(self)

    with monkeypatch.context() as patch:
        patch.setattr(IRLexer, "lex", counted)
        ir.parse(text)
    return count


def test_an_op_with_a_printed_location_and_its_alias_take_few_tokens(monkeypatch):
    few, many = (tokens(program(ops, 1), monkeypatch) for ops in (10, 30))
    assert many - few <= 20 * 5


def test_equal_attributes_of_arguments_are_read_once(monkeypatch):
    few, many = (tokens(program(1, arguments), monkeypatch) for arguments in (10, 30))
    assert many - few <= 20 * 6


def test_each_form_of_a_location_is_read_as_it_is_spelled():
    text = f"""#a = loc("model.py":3:1)
#b = loc("a \\"quoted\\" name"(#a))
#c = loc(callsite(#a at #b))
#d = loc("layers.0" ( #c ))
#e = loc("layers.1"(#c))
{MESH}
func.func @main(%x: tensor<4xf32>) {{
  %0 = aten.neg(%x) : tensor<4xf32> loc(#b)
  %1 = aten.neg(%x) : tensor<4xf32> loc(#c)
  %2 = aten.neg(%x) : tensor<4xf32> loc(#d)
  %3 = aten.neg(%x) : tensor<4xf32>   loc( #e )
  %4 = aten.neg(%x) : tensor<4xf32> loc("other.py":7:2)
  return loc(#a)
}}
"""
    place = FileLineColLoc(StringAttr("model.py"), IntAttr(3), IntAttr(1))
    quoted = NameLoc(StringAttr('a "quoted" name'), place)
    call = CallSiteLoc(place, quoted)
    layers = [NameLoc(StringAttr(f"layers.{n}"), call) for n in range(2)]
    other = FileLineColLoc(StringAttr("other.py"), IntAttr(7), IntAttr(2))
    assert [op.location for op in ops_of(text)] == [quoted, call, *layers, other, place]


@pytest.mark.parametrize(
    ("definitions", "location", "message"),
    [
        ('#a = loc("m.py":1:1)\n#a = loc("m.py":2:1)\n', "#a", "<text>:2:.*re-declaration of alias '#a'"),
        ('#a = loc("layer"(#b))\n', "#a", "<text>:1:.*'#b'"),
        ("#a = dense<0> : tensor<1xi64>\n", "#a", "Expected location alias"),
        ("", "#a", "<text>:5:.*'#a'"),
    ],
)
def test_a_location_that_is_none_is_an_error_at_its_place(definitions, location, message):
    body = f"  %0 = aten.neg(%x) : tensor<4xf32> loc({location})\n  return\n"
    with pytest.raises(SpmdirError, match=message):
        ir.parse(f"{definitions}{MESH}\n\nfunc.func @main(%x: tensor<4xf32>) {{\n{body}}}\n")


@pytest.mark.parametrize(
    "attributes",
    [
        '{spmd.name = "a } b"}',
        '{spmd.name = "a \\" } b", spmd.kind = "input"}',
        '{spmd.kind = "input" // a } comment\n}',
        '{spmd.nested = {a = "}", b = [1, 2]}, spmd.kind = "input"}',
    ],
)
def test_braces_inside_a_dictionary_do_not_end_it(attributes):
    text = f"{MESH}func.func @main(%x: tensor<4xf32> {attributes}, %y: tensor<4xf32> {attributes}) {{\n  return\n}}\n"
    given = ir.main_function(ir.parse(text)).arg_attrs
    assert given is not None and given.data[0] == given.data[1] and given.data[0].data


def test_a_missing_comma_in_a_repeated_dictionary_is_an_error_at_its_place():
    twice = ", ".join(f'%{name}: tensor<4xf32> {{spmd.kind = "input" spmd.name = "a"}}' for name in "xy")
    with pytest.raises(SpmdirError, match="<text>:2:56"):
        ir.parse(f"{MESH}func.func @main({twice}) {{\n  return\n}}\n")
