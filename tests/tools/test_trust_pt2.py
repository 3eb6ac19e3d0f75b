"""A `.pt2` from a stranger runs no code: each place that torch would run code from is rejected by name."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from spmdir.tools import spmd_translate

SAMPLES, PROGRAM = "data/sample_inputs/model.pt", "models/model.json"
WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"
Edit = Callable[[Any], None]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.scale = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).reshape(-1) * self.scale.sum()


class Marking:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("model") / "model.pt2"
    dim = torch.export.Dim("rows", min=2, max=64)
    torch.export.save(torch.export.export(Model(), (torch.ones(6, 4),), dynamic_shapes=({0: dim},)), path)
    reader = torch._C.PyTorchFileReader(str(path))
    return {name: reader.get_record(name) for name in reader.get_all_records() if not name.startswith(".")}


def written(path: Path, members: Mapping[str, bytes]) -> str:
    writer = torch._C.PyTorchFileWriter(str(path))
    writer.set_min_version(6)
    for name, data in members.items():
        if name != "byteorder":
            writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    return str(path)


def edited(members: Mapping[str, bytes], member: str, edit: Edit) -> dict[str, bytes]:
    value = json.loads(members[member])
    edit(value)
    return {**members, member: json.dumps(value).encode()}


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def translated(path: str, *options: str) -> int:
    return spmd_translate.main(["--import-pt2", path, "--mesh", "dp=2", "-o", path + ".mlir", *options])


def rejected(path: str, marker: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert translated(path) == 1
    assert not marker.exists()
    assert not Path(path + ".mlir").exists()
    message = capsys.readouterr().err
    assert message.count("\n") == 1, message
    return message


def test_what_torch_saves_is_loaded_without_trust(members: dict[str, bytes], tmp_path: Path) -> None:
    assert translated(written(tmp_path / "model.pt2", members)) == 0


@pytest.mark.parametrize("member", [SAMPLES, "data/weights/model.pt", "data/constants/model.pt"])
def test_a_pickle_of_more_than_tensors_is_rejected_by_its_name(
    member: str, members: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "marker"
    path = written(tmp_path / "model.pt2", {**members, member: saved(((Marking(marker),), {}))})
    message = rejected(path, marker, capsys)
    assert member in message
    assert "mkdir" in message
    assert "--trust" in message


def test_trust_loads_what_runs_code(members: dict[str, bytes], tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    hostile = saved(((torch.ones(6, 4), Marking(marker)), {}))
    translated(written(tmp_path / "model.pt2", {**members, SAMPLES: hostile}), "--trust")
    assert marker.exists()


def payload(name: str, **changes: Any) -> Edit:
    return lambda config: config["config"][name].update(changes)


@pytest.mark.parametrize(
    ("config", "edit", "member"),
    [
        (WEIGHTS, payload("linear.weight", use_pickle=True, path_name="weight_9"), "data/weights/weight_9"),
        (CONSTANTS, payload("scale", use_pickle=True, path_name="tensor_9"), "data/constants/tensor_9"),
        (CONSTANTS, payload("scale", path_name="opaque_obj_0"), "data/constants/opaque_obj_0"),
        (CONSTANTS, payload("scale", path_name="custom_obj_0"), "data/constants/custom_obj_0"),
    ],
)
def test_a_pickled_weight_or_constant_is_rejected_by_its_name(
    config: str,
    edit: Edit,
    member: str,
    members: dict[str, bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    marker = tmp_path / "marker"
    hostile = {**edited(members, config, edit), member: saved(Marking(marker))}
    assert member in rejected(written(tmp_path / "model.pt2", hostile), marker, capsys)


def first_target(text: str) -> Edit:
    def edit(program: Any) -> None:
        program["graph_module"]["graph"]["nodes"][0]["target"] = text

    return edit


def arithmetic(target: str, *arguments: Any, times: int = 1) -> Edit:
    inputs = [{"name": name, "arg": arg, "kind": 1} for name, arg in zip("ab", arguments, strict=True)]

    def edit(program: Any) -> None:
        node = {"target": target, "inputs": inputs, "outputs": [], "metadata": {}}
        program["graph_module"]["graph"]["nodes"][:0] = [node] * times

    return edit


def expression(text: str) -> Edit:
    def edit(program: Any) -> None:
        sizes = [s for v in program["graph_module"]["graph"]["tensor_values"].values() for s in v["sizes"]]
        next(size["as_expr"] for size in sizes if "as_expr" in size)["expr_str"] = text

    return edit


def input_name(text: str) -> Edit:
    def edit(program: Any) -> None:
        graph, signature = program["graph_module"]["graph"], program["graph_module"]["signature"]
        name = graph["inputs"][-1]["as_tensor"]["name"]
        new = json.loads(json.dumps(program).replace(json.dumps(name), json.dumps(text)))
        assert graph and signature
        program.clear()
        program.update(new)

    return edit


def tree(text: str, which: str = "in_spec") -> Edit:
    def edit(program: Any) -> None:
        next(e for e in program["graph_module"]["module_call_graph"] if e["signature"])["signature"][which] = text

    return edit


def node(kind: str, context: str) -> str:
    return json.dumps([1, {"type": kind, "context": context, "children_spec": []}])


def leaf(*kinds: tuple[str, str]) -> str:
    """Return a tree of one leaf inside nodes of these types and contexts."""
    spec: Any = {"type": None, "context": None, "children_spec": []}
    for kind, context in reversed(kinds):
        spec = {"type": kind, "context": context, "children_spec": [spec]}
    return json.dumps([1, spec])


CACHE = ("transformers.cache_utils.DynamicCache", '[["key_cache"], [null]]')
FACTORY = json.dumps({"default_factory_module": "this", "default_factory_name": "s", "dict_context": ["a"]})


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        ([("transformers.modeling_outputs.BaseModelOutput", '["logits"]')], "logits"),
        ([("models.Out", '[["logits"], ["loss"]]')], "logits"),
        ([("models.Out", '["cache"]'), CACHE], "cache.key_cache"),
        ([("models.Opaque", '"of its own"')], None),
        ([("collections.defaultdict", FACTORY)], None),
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [[], ["--trust"]], ids=["untrusted", "trusted"])
def test_a_class_of_outputs_that_nothing_has_imported_names_the_results_by_its_fields(
    kinds: list[tuple[str, str]], name: str | None, options: list[str], members: dict[str, bytes], tmp_path: Path
) -> None:
    path = written(tmp_path / "model.pt2", edited(members, PROGRAM, tree(leaf(*kinds), "out_spec")))
    assert translated(path, *options) == 0
    assert re.findall('spmd.name = "(.*?)"', Path(path + ".mlir").read_text()) == ([name] if name else [])


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (expression("__import__('os').mkdir('MARKER')"), "arithmetic"),
        (expression("().__class__"), "arithmetic"),
        (expression("open('MARKER', 'w')"), "arithmetic"),
        (expression("Pow(Integer(9), Pow(Integer(9), Pow(Integer(9), Integer(99))))"), "arithmetic"),
        (expression("(" * 5000 + ")" * 5000), "arithmetic"),
        (first_target("torch.ops.load_library"), "an op"),
        (first_target("torch.hub.load"), "an op"),
        (first_target("_operator.call"), "an op"),
        (first_target("math.__loader__.load_module"), "an op"),
        (first_target("torch.ops.aten.mm.__init__"), "an op"),
        (first_target("#wrap:eval"), "an op"),
        (first_target("torch.ops.load_library.__self__.load_library"), "an op"),
        (first_target("torch.ops.import_module.__self__.import_module"), "an op"),
        (first_target("torch.ops.aten._dir.append"), "an op"),
        (arithmetic("_operator.lshift", {"as_int": 1}, {"as_int": 40_000_000_000}), "literal exponents"),
        (arithmetic("_operator.pow", {"as_int": 2}, {"as_sym_int": {"as_name": "sym_size_int"}}), "literal exponents"),
        (arithmetic("_operator.pow", *[{"as_int": 60}] * 2, times=3), "literal exponents"),
        (arithmetic("_operator.mul", {"as_int": 2}, {"as_int": 1 << 63}), "at most 64"),
        (input_name("x=__import__('os').mkdir('MARKER')"), "a name"),
        (tree(node("builtins.dict", '[{"__enum__": true, "fqn": "this:s", "name": "x"}]')), "a tree"),
        (lambda p: p["range_constraints"].update(u999999999={"min_val": 0, "max_val": 9}), "the name of a size"),
    ],
)
def test_text_that_torch_would_evaluate_import_or_execute_is_rejected(
    edit: Edit, part: str, members: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "marker"
    hostile = {k: v.replace(b"MARKER", str(marker).encode()) for k, v in edited(members, PROGRAM, edit).items()}
    message = rejected(written(tmp_path / "model.pt2", hostile), marker, capsys)
    assert f"expected {part}" in message
    assert "--trust" in message


def test_members_that_are_no_part_of_a_program_are_rejected(
    members: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "model.pt2", {**members, "data/aotinductor/model/model.so": b"\x7fELF"})
    assert "data/aotinductor/model/model.so" in rejected(path, tmp_path / "marker", capsys)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"config": {"w": {}}}'])
def test_malformed_metadata_names_its_member(
    data: bytes, members: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = "data/weights/model_weights_config.json"
    path = written(tmp_path / "model.pt2", {**members, member: data})
    assert f"the member '{member}' is malformed: " in rejected(path, tmp_path / "marker", capsys)


@pytest.mark.parametrize(
    ("names", "compression", "part"),
    [
        (["archive_format", PROGRAM, "extra/zeros"], zipfile.ZIP_DEFLATED, "without compression"),
        (["archive_format", PROGRAM, PROGRAM], zipfile.ZIP_STORED, "expected"),
        (["serialized_exported_program.json"], zipfile.ZIP_STORED, "--trust"),
    ],
)
def test_bombs_and_other_layouts_are_rejected(
    names: list[str], compression: int, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w", compression) as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)
        file.writestr("model/version", b"8.8")
        for name in names:
            file.writestr(f"model/{name}", b"0" * 1_000_000)
    assert part in rejected(str(path), tmp_path / "marker", capsys)
