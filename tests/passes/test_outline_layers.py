"""outline-layers and inline are each other's inverse but for names, and passes do the same to outlined programs."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdir
from spmdir.core.repetition import repeated_parts
from spmdir.dialects import ir
from spmdir.dialects.names import text_name
from spmdir.dialects.values import sharding_of
from spmdir.explanation.excerpt import excerpt
from spmdir.pipeline import layer_runner
from spmdir.pipeline.pipeline import Pipeline
from spmdir.pipeline.remaining_passes import inline_layers, names_in_layers
from spmdir.report.summary import summary

EXAMPLE = Path(__file__).parents[1] / "golden/outline-layers/equal_layers_become_calls_of_a_function.mlir"

PASSES = (
    "print-rules", "propagate", "expand", "insert-reshard", "lower-reshard", "fuse-collectives", "verify-spmd",
    "localize", "bucket",
)  # fmt: skip

UNARY = ("relu", "sin", "neg", "exp")


def unnamed(module: object) -> str:
    """Return the text of a module in which values are numbered in the order in which the text names them."""
    numbers: dict[str, str] = {}
    text = re.sub(r'spmd\.name = "[^"]*"', "", spmdir.print_ir(module))  # type: ignore[arg-type]
    return re.sub(r"%[\w$.-]+", lambda match: numbers.setdefault(match[0], f"%{len(numbers)}"), text)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Return an undecided program of equal layers, which take their own weight, the layer before and what all share."""
    count, steps = draw(st.integers(2, 5)), []
    for place in range(draw(st.integers(4, 8))):
        values = [*(f"%v{{layer}}.{earlier}" for earlier in range(place)), "{x}", "%shared"]
        one, other = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        kind = draw(st.sampled_from(["mm", "add", *UNARY]))
        made = f"  %v{{layer}}.{place} = "
        if kind == "mm":
            steps.append(f"{made}aten.mm({one}, %h.{{layer}}.w) : tensor<8x8xf32>")
        elif kind == "add":
            steps.append(f"{made}aten.add.Tensor({one}, {other}) : tensor<8x8xf32>")
        else:
            steps.append(f"{made}aten.{kind}({one}) : tensor<8x8xf32>")
    sharding = draw(st.sampled_from(["", " {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}"]))
    arguments = ["%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}", "%shared: tensor<8x8xf32>"]
    arguments += [f"%h.{layer}.w: tensor<8x8xf32>{sharding}" for layer in range(count)]
    last = len(steps) - 1
    body = [
        step.format(layer=layer, x="%x" if layer == 0 else f"%v{layer - 1}.{last}")
        for layer in range(count)
        for step in steps
    ]
    result = f"%v{count - 1}.{last}"
    head = f"spmd.mesh @mesh <dp = 2, tp = 2>\n\nfunc.func @main({', '.join(arguments)}) -> tensor<8x8xf32> {{"
    return "\n".join([head, *body, f"  return {result} : tensor<8x8xf32>", "}\n"])


@settings(max_examples=12)
@given(programs())
def test_inline_undoes_outline_layers_but_for_names_before_and_after_each_pass(text: str) -> None:
    module = spmdir.parse(text)
    outlined = spmdir.run_passes(module.clone(), "outline-layers")
    again = spmdir.print_ir(outlined)
    assert spmdir.print_ir(spmdir.parse(again)) == again
    assert unnamed(inline_layers(outlined)) == unnamed(module)
    for name in PASSES:
        for one in (module, outlined):
            spmdir.run_passes(one, name)
        assert unnamed(inline_layers(outlined)) == unnamed(module), name
        costs = [spmdir.report.comm_report(one).objective for one in (module, outlined)]
        assert costs[0] == costs[1]


def test_an_outlined_program_is_finished_explained_and_reported_as_the_one_that_it_stands_for() -> None:
    text = EXAMPLE.read_text()
    module, outlined = (spmdir.parse(text), spmdir.run_passes(spmdir.parse(text), "outline-layers"))
    assert spmdir.print_ir(outlined).count("func.call @layers_forward") == 3
    for report in (spmdir.report.comm_report, spmdir.report.memory_report, spmdir.report.schedule_report):
        assert unnumbered(report(outlined)) == unnumbered(report(module))
    graphs = [spmdir.lower_to_fx(one, 0).graph for one in (outlined, module)]
    called = [[node.target for node in graph.nodes if node.op == "call_function"] for graph in graphs]
    assert called[0] == called[1]
    for one in (module, outlined):
        spmdir.run_passes(one, "strip-spmd")
    graph = [spmdir.print_ir(one).count("func.call") for one in (module, outlined)]
    assert graph == [0, 3]


def test_an_outlined_program_is_explained_as_the_one_that_it_stands_for() -> None:
    operands = {layer: f"%mm{layer - 1}.relu.sin.add" if layer else "%x" for layer in range(4)}
    body = [
        f"""  %mm{layer} = aten.mm({before}, %h.{layer}.w) : tensor<512x512xf32>
  %mm{layer}.relu = aten.relu(%mm{layer}) : tensor<512x512xf32>
  %mm{layer}.relu.sin = aten.sin(%mm{layer}.relu) : tensor<512x512xf32>
  %mm{layer}.relu.sin.add = aten.add.Tensor(%mm{layer}.relu.sin, {before}) : tensor<512x512xf32>
"""
        for layer, before in list(operands.items())[:3]
    ]
    weights = ", ".join(f"%h.{layer}.w: tensor<512x512xf32>" for layer in range(3))
    text = f"""spmd.mesh @mesh <tp = 2>
func.func @main(%x: tensor<512x512xf32>, {weights}) -> tensor<512x512xf32> {{
{"".join(body)}  return {operands[3]} : tensor<512x512xf32>
}}
"""
    module, outlined = (spmdir.parse(text), spmdir.run_passes(spmdir.parse(text), "outline-layers"))
    assert spmdir.print_ir(outlined).count("func.call @h_forward") == 3
    assert unnumbered(spmdir.report.explain(outlined, "%h.1.w")) == unnumbered(spmdir.report.explain(module, "%h.1.w"))
    changed = {"%h.1.w": "tp: S(1)"}
    assert unnumbered(spmdir.report.what_if(outlined, changed)) == unnumbered(spmdir.report.what_if(module, changed))


def unnumbered(report: object) -> list[str]:
    return re.sub(r"[%\w.]*[0-9]+\b", "", str(report)).split()


@pytest.mark.parametrize("period", [4, 7])
def test_repeated_parts_begin_where_least_is_used_across(period: int) -> None:
    # Each entry uses the one before it, and those of a part all but the first its first.
    looks = [100, 101, *(list(range(period)) * 3), 102]
    links: list[list[int]] = [[]]
    for index in range(1, len(looks)):
        first = 2 + (index - 2) // period * period
        links.append([index - 1, *([first] if index > first + 1 else [])])
    assert repeated_parts(looks, links, [None] * len(looks), 4) == [
        [range(2 + period * layer, 2 + period * (layer + 1)) for layer in range(3)]
    ]


def test_what_stands_between_equal_parts_and_is_as_long_belongs_to_them() -> None:
    looks = [*range(5), *range(5), *range(20, 26), *range(5), *range(5)]
    links: list[list[int]] = [[index - 1] if index else [] for index in range(len(looks))]
    assert [len(part) for part in repeated_parts(looks, links, [None] * len(looks), 4)[0]] == [5, 5, 6, 5, 5]


def test_a_summary_is_that_of_the_program_whether_it_is_outlined_or_not() -> None:
    module = spmdir.parse(EXAMPLE.read_text())
    text = str(summary(module, Pipeline()))
    assert text == str(summary(spmdir.run_passes(module.clone(), "outline-layers"), Pipeline()))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "layers @layers_forward x 3, 6 ops each" in lines
    assert "3 x layers.*.a tensor<8x8xf32> <tp: S(1)>" in lines
    assert any(line.startswith("all_reduce [tp] @layers_forward 3 ") for line in lines)


@pytest.mark.parametrize("outlined", [False, True])
def test_an_excerpt_takes_and_gives_what_goes_across(outlined: bool) -> None:
    module = spmdir.parse(EXAMPLE.read_text())
    if outlined:
        spmdir.run_passes(module, "outline-layers")
    part = excerpt(module, ["layers.1.*"] if outlined else ["%layers.1.*", "%6", "%8", "%9"])
    ir.verify(part)
    (function,) = ir.functions(part)
    takes = [(text_name(value), sharding_of(value)) for value in function.args]
    assert [name for name, _ in takes] == ["%4", "%layers.1.a", "%layers.1.b"]
    assert [str(sharding) for _, sharding in takes] == ["", "tp: S(1)", "tp: S(0)"]
    names = [op.name for op in function.body.block.ops]
    assert names == ["aten.mm", "aten.relu", "aten.mm", "aten.t", "spmd.all_reduce", "aten.add.Tensor", "func.return"]
    assert spmdir.print_ir(spmdir.parse(spmdir.print_ir(part))) == spmdir.print_ir(part)
    with pytest.raises(spmdir.SpmdirError, match=r"no value matches 'layers\.7\.\*'"):
        excerpt(module, ["layers.1", "layers.7.*"] if outlined else ["layers.7.*"])


def test_what_runs_again_elsewhere_stays_beside_the_op_that_names_it() -> None:
    text = EXAMPLE.read_text().partition("// |")[0]
    again = '  %again = aten.relu(%10) : tensor<4x8xf32> <tp: S(1)> attributes {spmd.recomputes = "11"}\n  return %14'
    module = spmdir.parse(text.replace("  return %14", again))
    outlined = spmdir.run_passes(module.clone(), "outline-layers")
    ir.verify(outlined)
    assert spmdir.print_ir(outlined).count("func.call") == 2
    assert unnamed(inline_layers(outlined)) == unnamed(module)


def test_a_forward_that_takes_its_layers_last_first_is_a_forward() -> None:
    text = EXAMPLE.read_text().partition("// |")[0]
    turned = re.sub(r"layers\.([0-2])", lambda found: f"layers.{2 - int(found[1])}", text)
    outlined = spmdir.run_passes(spmdir.parse(turned), "outline-layers")
    assert re.findall(r"func\.call @(\w+)", spmdir.print_ir(outlined)) == ["layers_forward"] * 3


def test_a_layer_that_another_call_needs_too_stays() -> None:
    outlined = spmdir.print_ir(spmdir.run_passes(spmdir.parse(EXAMPLE.read_text()), "outline-layers"))
    module = inline_layers(spmdir.parse(outlined.replace(' {spmd.layer = "layers.1"}', "", 1)))
    ir.verify(module)
    assert spmdir.print_ir(module).count("func.call") == 1


def test_shardings_of_outlined_programs_are_defined_once_by_names_that_differ() -> None:
    text = EXAMPLE.read_text().partition("// |")[0].replace("<tp = 2>", "<a = 2, b = 2, a_S0_b = 2>")
    text = text.replace("@mesh, tp: S(1)>", "@mesh, a: S(0), b: S(1)>").replace(
        "@mesh, tp: S(0)>", "@mesh, a_S0_b: S(1)>"
    )
    text = (
        re.sub("<tp: [^>]*>", "<>", text).replace(" spmd.all_reduce %", " aten.neg(%").replace(" on [tp] op sum", ")")
    )
    module = spmdir.run_passes(spmdir.parse(text), "outline-layers")
    printed = spmdir.print_ir(module)
    assert re.findall(r"^#\w+ = .*$", printed, re.MULTILINE) == [
        "#replicated = #spmd.sharding<@mesh>",
        "#a_S0_b_S1 = #spmd.sharding<@mesh, a: S(0), b: S(1)>",
        "#a_S0_b_S1_1 = #spmd.sharding<@mesh, a_S0_b: S(1)>",
    ]
    assert spmdir.print_ir(spmdir.parse(printed)) == printed


def test_passes_that_follow_each_other_see_the_program_inlined_and_who_looks_sees_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for name in ("inline", "outline_layers"):
        monkeypatch.setattr(layer_runner, name, counting(getattr(layer_runner, name), name, found))
    text = spmdir.print_ir(spmdir.run_passes(spmdir.parse(EXAMPLE.read_text()), "outline-layers"))
    steps = ("insert-reshard", "expand", "lower-reshard", "localize")
    apart, together = spmdir.parse(text), spmdir.parse(text)
    printed = [unnamed(spmdir.run_passes(apart, step)) for step in steps]
    assert found == ["inline", "outline_layers"] * 2
    found.clear()
    looked = []
    spmdir.run_passes(together, ",".join(steps))
    assert found == ["inline", "outline_layers"]
    spmdir.run_passes(spmdir.parse(text), ",".join(steps), after=lambda _, current: looked.append(unnamed(current())))
    assert looked == printed


def counting(function: Callable[..., None], name: str, calls: list[str]) -> Callable[..., None]:
    """Return `function`, which adds `name` to `calls` when it is called."""

    def counted(*arguments: object, **options: object) -> None:
        calls.append(name)
        function(*arguments, **options)

    return counted


def test_what_text_names_in_a_layer_is_found_in_the_first_of_its_layers() -> None:
    text = EXAMPLE.read_text().partition("// |")[0]
    module = spmdir.run_passes(spmdir.parse(text), "outline-layers")
    found = names_in_layers(spmdir.parse(spmdir.print_ir(module)))
    assert (found["%a"], found["%b.t"], found["%x"]) == ("%layers.0.a", "%layers.0.b.t", "%x")
    (function,) = ir.functions(excerpt(module, ["%b.t"]))
    assert [text_name(op.results[0]) for op in function.body.block.ops if op.results] == ["%layers.0.b.t"]
    assert names_in_layers(spmdir.parse(text)) == {}


def test_a_layer_that_nothing_calls_is_no_part_of_the_program() -> None:
    text = EXAMPLE.read_text().partition("// |")[0]
    whole, part = spmdir.parse(text), spmdir.print_ir(spmdir.run_passes(spmdir.parse(text), "outline-layers"))
    layer = part[part.index("func.func private") : part.index("func.func @main")]
    head, _, main = text.partition("func.func")
    definitions = part[part.index("#") : part.index("func.func")]
    uncalled = spmdir.parse(f"{head}{definitions}{layer}func.func{main}")
    assert spmdir.print_ir(inline_layers(uncalled)) == spmdir.print_ir(whole)
    assert str(spmdir.report.comm_report(uncalled)) == str(spmdir.report.comm_report(whole))


def test_a_summary_counts_layers_between_which_messages_are_in_flight() -> None:
    weights = [
        f"%h.{layer}.w: tensor<4x8xf32> {{spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}}" for layer in range(7)
    ]
    start = "spmd.all_gather_start %h.{}.w on [dp] dim 0 : !spmd.pending<tensor<8x8xf32>> <>"
    body = [f"  %p0 = {start.format(0)}"]
    for layer in range(6):
        body += [
            f"  %p{layer + 1} = {start.format(layer + 1)}",
            f"  %w{layer} = spmd.wait %p{layer} : tensor<8x8xf32> <>",
            f"  %x{layer + 1} = aten.mm(%x{layer}, %w{layer}) : tensor<8x8xf32> <>",
        ]
    body += ["  %w6 = spmd.wait %p6 : tensor<8x8xf32> <>", "  return %x6, %w6 : tensor<8x8xf32>, tensor<8x8xf32>"]
    replicated = "tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}"
    arguments = ", ".join([f"%x0: {replicated}", *weights])
    head = f'func.func @main({arguments}) -> ({replicated}, {replicated}) attributes {{spmd.stage = "local"}} {{'
    module = spmdir.parse("\n".join(["spmd.mesh @mesh <dp = 2>", "", head, *body, "}"]))
    found = str(summary(module, Pipeline()))
    assert "@h_forward x 5, 3 ops each" in found
    assert "a rank sends" in found
    assert "func.call" not in spmdir.print_ir(spmdir.run_passes(module, "outline-layers"))
