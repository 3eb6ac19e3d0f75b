"""Tools of xDSL that know nothing of spmdir but its universe read, verify, print and transform the IR."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, i64
from xdsl.ir import Block
from xdsl.parser import Parser
from xdsl.passes import PassPipeline
from xdsl.printer import Printer
from xdsl.universe import XDSL_UNIVERSE

from spmdir.core.admitted_ops import DROPOUT, RANDOM
from spmdir.core.errors import ParseError, ShardingError
from spmdir.core.placement.sharding import parse_sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.aten import op_class
from spmdir.dialects.collectives import collective_class
from spmdir.dialects.context import IRContext
from spmdir.dialects.names import keep_name, name_of
from spmdir.dialects.op_lookup import SIZE_NAMESPACES
from spmdir.dialects.reshard_ops import ReshardOp
from spmdir.dialects.size_ops import FUNCTIONS
from spmdir.dialects.values import signature_attrs
from spmdir.tools.golden import golden_files, read_golden
from spmdir.universe import UNIVERSE

ROOT = Path(__file__).parents[1]
MLP = """
spmd.mesh @grid <dp = 2, tp = 4>

func.func @mlp(%x: tensor<16x64xf32> {spmd.sharding = #spmd.sharding<@grid, dp: S(0)>},
               %w: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@grid, tp: S(1)>}) -> tensor<16x64xf32> {
  %0 = aten.mm(%x, %w) : tensor<16x64xf32> <dp: S(0), tp: S(1)>
  %1 = aten.mm(%x, %w) : tensor<16x64xf32> <dp: S(0), tp: S(1)>
  %2 = aten.relu(%1) : tensor<16x64xf32>
  %3 = aten.add.Tensor(%0, %1) : tensor<16x64xf32>
  return %3 : tensor<16x64xf32>
}
"""


def stock_context() -> Context:
    """A context as `xdsl-opt` makes it."""
    context = Context()
    for universe in (XDSL_UNIVERSE, UNIVERSE):
        for name, factory in universe.all_dialects.items():
            context.register_dialect(name, factory)
    return context


def stock(text: str) -> ModuleOp:
    """The module of `text`, read and verified as by `xdsl-opt`."""
    module = Parser(stock_context(), text).parse_module()
    module.verify()
    return module


def stock_text(module: ModuleOp, generic: bool = False) -> str:
    buffer = io.StringIO()
    Printer(buffer, print_generic_format=generic).print_op(module)
    return buffer.getvalue()


def run(pipeline: str, text: str = MLP) -> str:
    """What `xdsl-opt -p PIPELINE` makes of `text`, printed by spmd-opt's printer."""
    module = stock(text)
    passes = {**XDSL_UNIVERSE.all_passes, **UNIVERSE.all_passes}
    PassPipeline.parse_spec(passes, pipeline, lambda before, module, after: module.verify()).apply(
        stock_context(), module
    )
    return ir.print_ir(ir.parse(stock_text(module)))


@cache
def readable() -> tuple[str, ...]:
    """The inputs and outputs of golden files, but for those that need a plug-in or of which an error is expected."""
    return tuple(
        text
        for file in golden_files([str(ROOT / "tests/golden")])
        if "--load-plugin" not in Path(file).read_text()
        for source, expected in zip(*_parts(file), strict=True)
        for text in [*([source] if _is_accepted(source, expected) else []), *_output(expected)]
    )


def _parts(file: str) -> tuple[list[str], list[str]]:
    golden = read_golden(Path(file).read_text(), file)
    return golden.sources, [expected.split("// $", 1)[0] for _, expected in golden.parts]


def _is_accepted(source: str, expected: str) -> bool:
    return "expected-error" not in source and not re.search(r"^// ! .*error:", expected, re.MULTILINE)


def _output(expected: str) -> Iterator[str]:
    """The module that `expected` says is printed, unless it has a report as well or names other ops than a module."""
    lines = [line[5:] for line in expected.splitlines() if line.startswith("// |")]
    text = "\n".join(lines) + "\n"
    if text.lstrip().startswith(("spmd.", "func.", "builtin.", '"builtin.')):
        yield text


def unnumbered(text: str) -> str:
    """`text` without the numbers that end the names of values, which xDSL's printer gives anew."""
    return re.sub(r"(%(?:[\w.]*[A-Za-z.])?)_?\d+\b(?!\.)", r"\1", text)


def ops(text: str) -> list[str]:
    return [line.split("(")[0].split(" = ")[1] for line in text.splitlines() if " = aten" in line]


def test_what_stock_tools_print_of_each_golden_module_is_equal_and_spmd_opt_prints_it_alike():
    for text in readable():
        module = ir.parse(text)
        again = ir.parse(stock_text(stock(text)))
        assert again.is_structurally_equivalent(module), text
        assert unnumbered(ir.print_ir(again)) == unnumbered(ir.print_ir(module)), text


def test_stock_tools_read_the_generic_form():
    # xDSL prints letters beyond ASCII as escaped bytes, which its parser does not take for the name of a function.
    for text in [text for text in readable() if text.isascii()][::10]:
        module = ir.parse(text)
        generic = ir.print_ir(module, generic=True)
        assert stock(generic).is_structurally_equivalent(module), text


def test_the_name_of_the_mesh_and_merged_sub_axes_do_not_depend_on_the_parser():
    text = MLP.replace("dp: S(0), tp: S(1)>\n", "tp(1)2: S(0), tp(2)2: S(0)>\n", 1)
    again = ir.parse(text)
    assert "<tp: S(0)>" in ir.print_ir(again)
    assert ir.print_ir(stock(text)) == ir.print_ir(again)


def test_passes_of_both_mix_and_options_are_checked_as_by_spmd_opt():
    assert ops(run("spmd-propagate{effort=100},cse")) == ["aten.mm", "aten.add.Tensor"]
    assert 'spmd.stage = "local"' in run("spmd-propagate,spmd-insert-reshard,spmd-lower-reshard,spmd-localize")
    with pytest.raises(ParseError, match="has no option 'effrt'"):
        run("spmd-propagate{effrt=3}")


@pytest.mark.parametrize(
    ("call", "left"),
    [
        ("aten.relu(%x)", 0),
        ("aten.bernoulli.p(%x) {p = 0.5}", 2),
        ("aten.scaled_dot_product_attention(%x, %x, %x)", 0),
        ("aten.scaled_dot_product_attention(%x, %x, %x) {dropout_p = 0.5}", 2),
        ("my.op(%x)", 2),
        ("spmd.reshard %x", 0),
    ],
)
def test_equal_and_unused_ops_go_unless_they_draw_random_numbers_or_are_unknown(call: str, left: int):
    text = MLP.replace("  %2 = aten.relu(%1)", f"  %a = {call} : tensor<16x64xf32> <>\n  %b = {call}")
    text = text.replace("%b", "%2").replace(
        "%2 = " + call + " : tensor<16x64xf32>\n", f"%2 = {call} : tensor<16x64xf32> <>\n"
    )
    name = call.split(" ")[0].split("(")[0]
    for pipeline in ("cse", "dce", "canonicalize"):
        assert run(pipeline, text).count(f"= {name}") == left, pipeline


def test_the_tables_of_random_ops_say_what_torch_says():
    from spmdir.core.admitted_ops import LISTED, is_admitted, listed
    from spmdir.torch_interop.schemas import is_random, resolve

    names = [name for namespace in LISTED for name in listed(namespace) if is_admitted(name)]
    tagged = {name for name in names if (found := resolve(name)) is not None and is_random(found)}
    assert tagged <= RANDOM | DROPOUT
    assert set(names) >= RANDOM | DROPOUT


def test_names_of_arguments_that_import_leaves_to_their_values_survive_stock_tools():
    named = {name: Block(arg_types=[i64]).args[0] for name in ("up.weight", "norm_1", "ids")}
    for name, value in named.items():
        keep_name(value, name)
    said = {name: signature_attrs(name, "input", None, value).data for name, value in named.items()}
    assert said == {"up.weight": {}, "norm_1": {"spmd.name": StringAttr("norm_1")}, "ids": {}}
    text = MLP.replace("%x", "%up.weight").replace("%w:", "%norm_1:").replace("%w)", "%norm_1)")
    function = ir.main_function(ir.parse(stock_text(stock(text))))
    assert [name_of(value) for value in function.args] == ["up.weight", "norm"]


def test_a_clone_of_the_context_still_knows_every_op_and_its_rules():
    context = ir.context()
    assert isinstance(context.clone(), IRContext)
    assert context.clone().get_optional_op("my.op") is not None
    assert context.clone().rules is context.rules
    assert context.clone().loaded_ops is not context.loaded_ops


def test_ops_are_built_from_values_and_shardings():
    function = ir.main_function(ir.parse(MLP))
    x = function.args[0]
    total = op_class("aten.sum.dim_IntList").build([x], [TensorMeta((64,), "f32")], dim=(0,))
    reshard = ReshardOp.build(x, parse_sharding("tp: S(1)", "grid"))
    assert (total.argument, reshard.target) == ({"dim": (0,)}, parse_sharding("tp: S(1)", "grid"))
    first_op, module = function.body.block.first_op, function.parent_op()
    assert first_op is not None and isinstance(module, ModuleOp)
    function.body.block.insert_ops_before([total, reshard], first_op)
    ir.verify(module)


def test_the_dialects_of_sizes_list_every_function_but_those_of_math():
    spaces = {name.partition(".")[0] for name in FUNCTIONS}
    assert spaces - {"math"} == set(SIZE_NAMESPACES) == spaces & set(UNIVERSE.all_dialects)


@pytest.mark.parametrize(
    ("text", "lacking"),
    [
        (MLP.replace(" {spmd.sharding = #spmd.sharding<@grid, dp: S(0)>}", ""), "sharding"),
        ("func.func @f(%x: tensor<4xf32>) {\n  return\n}\n", "sharding"),
    ],
)
def test_a_collective_is_built_on_a_tensor_with_a_sharding(text: str, lacking: str):
    x = ir.main_function(ir.parse(text)).args[0]
    with pytest.raises(ShardingError, match=f"has no {lacking}; expected a tensor"):
        collective_class("all_gather").build(x, axes=("dp",), dim=0)


def test_nothing_is_defined_twice_among_the_universes():
    for kind in ("all_dialects", "all_passes", "all_targets"):
        assert not set(getattr(UNIVERSE, kind)) & set(getattr(XDSL_UNIVERSE, kind))


def test_the_universe_is_found_by_its_entry_point_and_costs_no_import_of_the_dialects(tmp_path: Path):
    metadata = tmp_path / "spmdir_universe-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: spmdir-universe\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[xdsl.universe]\nspmdir = spmdir.universe:UNIVERSE\n")
    (tmp_path / "mlp.mlir").write_text(MLP)
    tool = "import sys; from xdsl.tools.xdsl_opt import main; main(); print(sorted({'torch', 'lark'} & {*sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", tool, str(tmp_path / "mlp.mlir"), "-p", "cse"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    printed, _, loaded = done.stdout.rstrip().rpartition("\n")
    assert ops(ir.print_ir(ir.parse(printed))) == ["aten.mm", "aten.add.Tensor"]
    assert loaded == "[]"
