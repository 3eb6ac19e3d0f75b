"""Which ops a program may name: every op that torch registers is admitted, or rejected for a reason that is said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir
from spmdir.checking.rules.op_table import installed_version, parse_table, table_text, update_verdicts
from spmdir.core.admitted_ops import LISTED, NAMESPACES, SENTENCES, TABLE, why_not
from spmdir.core.errors import SpmdirWarning, UnsupportedError
from spmdir.dialects import ir
from spmdir.dialects.size_ops import SIZE_OPS
from spmdir.rules.rule_set import default
from spmdir.simulator.simulate import run_single
from spmdir.tools import spmd_run
from spmdir.torch_interop.schemas import torch_op

MESH = spmdir.Mesh({"dp": 2})


@pytest.fixture(scope="module")
def found() -> list[tuple[str, str]]:
    """Name of each op of torch, and why it is rejected; other tests of this process may have registered more."""
    code = (
        "import json; from spmdir.checking.rules.op_table import registered_ops; print(json.dumps([*registered_ops()]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [(name, reason) for name, reason in json.loads(done.stdout)]


def in_torch(name: str) -> bool:
    return name.partition(".")[0] in {*LISTED, *NAMESPACES}


def test_the_table_says_what_the_installed_torch_says(found: list[tuple[str, str]]):
    text = TABLE.read_text()
    assert table_text(update_verdicts(parse_table(text), installed_version(), iter(found))) == text


def test_every_registered_op_is_admitted_with_a_rule_or_as_pure_or_is_rejected_for_a_reason(
    found: list[tuple[str, str]],
):
    ruled, verdicts, counts = default().records, dict(found), Counter[str]()
    for name, reason in verdicts.items():
        if not in_torch(name):
            continue  # what a library has registered
        assert (why_not(name) is None) == (reason == ""), name
        assert reason == "" or reason.split(" ")[0] in SENTENCES, name
        counts[reason.split(" ")[0] or ("with a rule" if name in ruled else "pure")] += 1
    print(counts)
    assert [name for name in ruled if verdicts.get(name)] == []
    assert counts.total() > 3500
    assert counts["with a rule"] > 800
    assert 600 < counts["pure"] < 750  # each was looked at; look at more before admitting them
    assert counts["writes"] > 1400


def test_no_op_is_imported_or_run_by_reading_printing_and_verifying(found: list[tuple[str, str]]):
    """Nothing can run a torch op where torch is not imported."""
    code = """if True:
        import sys
        from spmdir.core.errors import SpmdirError
        from spmdir.dialects import ir
        from spmdir.dialects.aten import RejectedOp
        from spmdir.dialects.size_ops import SIZE_OPS
        names = [name for name in sys.stdin.read().split() if name not in SIZE_OPS]
        lines = [f"  %{n} = {name}(%x) : tensor<2xf32>" for n, name in enumerate(names)]
        head, end = "func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> {", "  return %x : tensor<2xf32>"
        text = "\\n".join([head, *lines, end, "}"])
        module = ir.parse(text, verify_module=False)
        assert ir.print_ir(module).count("\\n") > len(names) > 3500
        rejected = 0
        for op in ir.main_function(module).body.block.ops:
            try:
                op.verify(verify_nested_ops=False)
            except SpmdirError as error:
                rejected += 1
                assert isinstance(op, RejectedOp) and str(error), op.name
        print(rejected, "torch" in sys.modules)
    """
    names = {name: reason for name, reason in found if in_torch(name)}
    done = subprocess.run([sys.executable, "-c", code], input=" ".join(names), capture_output=True, text=True)
    rejected = sum(reason != "" and name not in SIZE_OPS for name, reason in names.items())
    assert (done.stderr, done.stdout.split()) == ("", [str(rejected), "False"])


NO_OPS = ["aten.save", "aten.warn", "aten.manual_seed", "aten.name", "aten.mm.__init__", "aten.mm.overloads",
          "aten.__class__", "prim.Print", "higher_order.cond"]  # fmt: skip


@pytest.mark.parametrize("name", NO_OPS)
def test_what_the_dispatcher_does_not_know_is_no_op(name: str):
    assert why_not(name) is not None
    with pytest.raises(UnsupportedError, match="has no op"):
        torch_op(name)


def program(call: str) -> str:
    return f"""\
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {{
  %0 = {call} : tensor<4xf32>
  return %0 : tensor<4xf32>
}}
"""


def test_a_program_that_names_a_file_leaves_it_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    victim, text = tmp_path / "victim.bin", tmp_path / "in.mlir"
    victim.write_bytes(b"precious")
    for filename in (victim, tmp_path / "made.bin"):
        text.write_text(program(f'aten.from_file() {{filename = "{filename}", shared = true, size = 4, dtype = f32}}'))
        assert spmd_run.main([str(text)]) == 1
        assert capsys.readouterr().err.startswith(
            f"{text}:4:3: error: 'aten.from_file': opens the file in its argument"
        )
    assert (victim.read_bytes(), sorted(path.name for path in tmp_path.iterdir())) == (
        b"precious",
        ["in.mlir", "victim.bin"],
    )


WRITING = ["aten.relu_(%x)", "aten.add_.Tensor(%x, %y)", "aten.copy_(%x, %y)", "aten.set_.source_Tensor(%x, %y)",
           "aten.add.out(%x, %y, %x)", "aten.resize_(%x) {size = [4]}", "prims.copy_to(%x, %y)",
           "aten._copy_from(%x, %y)",
           '_c10d_functional.all_reduce(%x) {reduce_op = "sum", group_name = "0"}']  # fmt: skip


@pytest.mark.parametrize("call", WRITING)
def test_an_op_that_writes_or_communicates_is_not_emitted_from_a_module_that_nobody_verified(call: str):
    module = ir.parse(program(call), verify_module=False)
    x = torch.ones(4)
    with pytest.raises(UnsupportedError, match=call.partition("(")[0]) as caught:
        run_single(module, [x, torch.zeros(4)])
    assert caught.value.location is not None
    assert torch.equal(x, torch.ones(4))


@pytest.fixture(scope="module")
def library():
    lib = torch.library.Library("admission", "DEF")
    calls: list[str] = []

    def define(schema: str, kernel):
        name = schema.partition("(")[0]
        lib.define(schema)
        lib.impl(name, lambda *args: (calls.append(name), kernel(*args))[1], "CompositeExplicitAutograd")

    define("double(Tensor x) -> Tensor", lambda x: x * 2)
    define("spoil(Tensor(a!) x) -> Tensor(a!)", lambda x: x.mul_(2))
    define("load(str path) -> Tensor", lambda path: torch.ones(4))
    define("size(Tensor x) -> int", lambda x: 4)
    define("reduce(Tensor x, str group_name) -> Tensor", lambda x, _: x)
    yield calls
    lib._destroy()


def test_a_pure_op_of_a_library_runs_replicated_with_a_warning(library: list[str]):
    module = ir.parse(program("admission.double(%x)"))
    with pytest.warns(SpmdirWarning, match="'admission.double' has no rule, so it runs replicated"):
        (y,) = spmdir.simulate(module, [torch.ones(4), torch.ones(4)])
    assert torch.equal(y, torch.full((4,), 2.0))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("admission.spoil(%x)", "writes its operand 'x'; expected a functional op"),
        ('admission.load() {path = "secret"}', "opens the file in its argument 'path'"),
        ("admission.size(%x)", "returns no tensor"),
        ('admission.reduce(%x) {group_name = "0"}', "communicates between ranks"),
    ],
)
@pytest.mark.filterwarnings("ignore::spmdir.core.errors.SpmdirWarning")
def test_an_op_of_a_library_is_judged_by_its_schema_before_it_runs(library: list[str], call: str, reason: str):
    library.clear()
    module = ir.parse(program(call))
    with pytest.raises(UnsupportedError, match=f"'{call.partition('(')[0]}': {reason}") as caught:
        run_single(module, [torch.ones(4), torch.ones(4)])
    assert (caught.value.location is not None, library) == (True, [])


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [
        ("aten.from_file", ("secret", False, 4), "opens the file in its argument 'filename'"),
        ("aten.pin_memory", (...,), "chooses the device or memory of a tensor"),
        ("_c10d_functional.all_reduce", (..., "sum", "0"), "communicates between ranks"),
        ("aten._copy_from", (..., ...), "writes its operand 'dst'"),
    ],
)
def test_an_op_of_a_graph_is_judged_before_it_runs(name: str, args: tuple, reason: str):
    graph = make_fx(lambda x: x.cos())(torch.ones(4))
    namespace, op = name.split(".")
    cos = next(node for node in graph.graph.nodes if node.op == "call_function")
    with graph.graph.inserting_after(cos):
        target = getattr(getattr(torch.ops, namespace), op).default
        added = graph.graph.call_function(target, tuple(cos if arg is ... else arg for arg in args))
    added.meta = dict(cos.meta, stack_trace='  File "model.py", line 7, in forward\n')
    cos.replace_all_uses_with(added, delete_user_cb=lambda node: node.op == "output")
    with pytest.raises(UnsupportedError, match=f"calls {name}, which {reason}") as caught:
        spmdir.import_fx(fx.GraphModule(graph, graph.graph), MESH)
    assert str(caught.value.location) == "model.py:7:1"
