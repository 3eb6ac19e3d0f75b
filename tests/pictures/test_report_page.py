"""The page of a program in a real browser: what it shows, by keyboard too, and that it needs nothing else."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir
from spmdir.explanation.decided_program import DecidedProgram
from spmdir.pictures.mesh_traffic import group_numbers
from spmdir.pictures.model_explorer import write_model_explorer
from spmdir.pictures.program_graph import program_graph
from spmdir.pictures.report_data import explain_costliest, report_data
from spmdir.pictures.report_page import page_of
from spmdir.pipeline.pipeline import Pipeline
from spmdir.pipeline.remaining_passes import localize
from spmdir.tools import spmd
from spmdir.tools.spmd_report import format_of
from tests.explanation.test_explain import LAYERS as TWO_LAYERS

HOSTILE = "</script><img src=x onerror=document.title=1>"
LAYERS = 4


def program() -> str:
    """Return an MLP of equal layers that is not decided, with a module of a hostile name."""
    names = [f"%layers.{at}.{side}.weight" for at in range(LAYERS) for side in ("up", "down")]
    shardings = {"up": "tp: S(1)", "down": "tp: S(0)"}
    arguments = [
        f"{name}: tensor<512x512xf32> {{spmd.sharding = #spmd.sharding<@mesh, {shardings[name.split('.')[2]]}>}}"
        for name in names
    ]
    lines, last = [], "%x"
    for at in range(LAYERS):
        for side in ("up", "down"):
            op = f"%{side}_{at} = aten.mm({last}, %layers.{at}.{side}.weight) : tensor<64x512xf32>"
            lines.append(f'{op} loc("layers.{at}.{side}"("model.py":{at + 1}:1))')
            last = f"%{side}_{at}"
    lines.append(f'%y = aten.neg({last}) : tensor<64x512xf32> loc("{HOSTILE}"("model.py":9:1))')
    x = "%x: tensor<64x512xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}"
    return (
        "spmd.mesh @mesh <dp = 2, tp = 2>\n"
        f"func.func @main({', '.join([x, *arguments])}) -> tensor<64x512xf32> {{\n  "
        + "\n  ".join(lines)
        + "\n  return %y : tensor<64x512xf32>\n}\n"
    )


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return report_data(spmdir.parse(program()), Pipeline(), 1)


@pytest.fixture(scope="module")
def page(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_of(data, f"mlp {HOSTILE}"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("there is no chromium with chromedriver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,800"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture
def opened(browser: Any, page: Path) -> Callable[[str], Any]:
    """Return a function that opens the page at a view, anew."""

    def at(view: str) -> Any:
        browser.get("about:blank")
        browser.get(f"{page.as_uri()}#{view}")
        return browser

    return at


VIEWS = ("overview", "layers", "graph", "mesh", "timeline", "memory", "lines", "passes")


def words(browser: Any) -> str:
    return browser.find_element("id", "panel").text


def test_each_view_shows_in_both_schemes_without_an_error_or_a_request(opened: Callable[[str], Any], page: Path):
    browser = opened("overview")
    browser.get_log("performance")
    browser.get_log("browser")
    grounds = set()
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        for view in VIEWS:
            browser = opened(view)
            assert words(browser), view
        grounds.add(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert len(grounds) == 2
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"}
    assert asked - {page.as_uri(), "data:,", "about:blank"} == set()


def test_a_page_is_no_wider_than_a_phone(opened: Callable[[str], Any]):
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    opened("overview").execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    for view in VIEWS:
        browser = opened(view)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360, view
        tab = browser.find_element("id", f"tab-{view}").rect
        assert 0 <= tab["x"] <= 360 - tab["width"], view
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_tabs_timeline_and_memory_work_by_keyboard(opened: Callable[[str], Any]):
    from selenium.webdriver.common.keys import Keys

    browser = opened("overview")
    browser.find_element("id", "tab-overview").send_keys(Keys.ARROW_LEFT)
    assert browser.current_url.endswith("#passes")
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert browser.current_url.endswith("#layers")
    canvas = opened("timeline").find_element("css selector", "canvas")
    canvas.send_keys("+", Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert "aten.mm" in browser.find_element("id", "tip").text
    canvas = opened("memory").find_element("css selector", "canvas")
    peak = words(browser)
    canvas.send_keys(Keys.HOME)
    assert "live at" in peak and words(browser) != peak


def test_search_finds_values_and_leads_to_their_graph(opened: Callable[[str], Any]):
    browser = opened("overview")
    browser.find_element("id", "search").send_keys("down_2")
    found = browser.find_elements("css selector", ".found button")
    assert found[0].text == "%down_2 = aten.mm"
    found[0].click()
    chosen = browser.find_element("css selector", ".node.chosen")
    assert chosen.get_attribute("data-name") == "%down_2"
    assert "layers.2.down" in browser.find_element("id", "tip").text


def test_long_names_keep_their_end_and_times_of_nothing_their_unit(opened: Callable[[str], Any]):
    weight = "{name: '%model.layers.0.down.weight', type: '8xf32'}"
    shown = opened("graph").execute_script(f"return [named({weight}, 12), named({weight}, 30), time(1e-5), time(1)]")
    assert shown == ["…down.weight", "%model.layers.0.down.weight 8…", "< 1 ns", "1 us"]


def test_equal_layers_are_one_entry_with_its_collectives(opened: Callable[[str], Any]):
    text = words(opened("layers"))
    # What the first one reads is no sum of the one before, and the second one holds more where the rank holds most.
    assert f"2 … {LAYERS - 1} × {LAYERS - 2}" in text
    assert "all_reduce [tp] × 1" in text


def test_the_layers_that_are_one_entry_are_one_row_of_the_table_by_layer(data: dict[str, Any]):
    rows = spmdir.report.cost_table(spmdir.parse(program()), by="layer", rows=None).rows
    tabled = {row.layers for row in rows if row.layers > 1}
    assert {len(paths) for paths in data["equal_modules"]} == tabled == {LAYERS - 2}


def test_a_hostile_name_is_text(opened: Callable[[str], Any]):
    browser = opened("layers")
    assert HOSTILE.split(".")[0] in words(browser)
    assert browser.title == f"mlp {HOSTILE}"
    assert browser.find_element("css selector", "h1").text == f"mlp {HOSTILE}"
    assert browser.find_elements("css selector", "img") == []


def test_lines_passes_and_groups_are_those_of_the_reports(opened: Callable[[str], Any], data: dict[str, Any]):
    text = words(opened("lines"))
    assert "model.py:1" in text and "strategy" in text and "next best" in text
    assert "propagate" in words(opened("passes"))
    report = spmdir.report.schedule_report(spmdir.parse(program()))
    assert data["seconds"] == pytest.approx(report.seconds)
    assert sum(task[5] for task in data["tasks"]) == pytest.approx(report.seconds * 1e6, rel=1e-3)
    sizes = [size for _, size, _, first, last in data["buffers"] if first <= _peak(data) <= last]
    assert sum(sizes) == pytest.approx(report.peak_bytes, rel=1e-6)


def test_the_mesh_lights_the_groups_of_what_has_the_focus(opened: Callable[[str], Any], data: dict[str, Any]):
    from selenium.webdriver.common.keys import Keys

    browser = opened("mesh")
    tip = browser.find_element("id", "tip")
    lit = lambda: [one.text for one in browser.find_elements("css selector", "svg.mesh .lit")]  # noqa: E731
    assert lit() == ["0", "1"] and "Rank 0 (dp 0, tp 0) talks to 1 along [tp]" in tip.text
    browser.find_element("css selector", "svg.mesh").send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert lit() == ["2", "3"] and "Rank 3 (dp 1, tp 1) talks to 2 along [tp]: sends 229.4 kB" in tip.text
    browser.find_elements("css selector", ".pick")[1].send_keys("")
    kind, _, count, *_ = data["collectives"][data["groups"][0]["shares"][0]]
    assert f"in {count} {kind}, which take" in tip.text
    assert len(browser.find_elements("css selector", "svg.mesh .link")) == 2
    (along,) = data["groups"]
    assert along["bytes"] == sum(row[3] for row in data["collectives"]) == sum(task[3] for task in data["tasks"])


def test_ranks_are_numbered_by_the_groups_that_a_mesh_says():
    mesh = spmdir.Mesh({"a": 2, "b": 4, "c": 2}, intra_node=("c",))
    for axes in (("a",), ("b",), ("a", "c"), ("b(2)2",), ("a", "b", "c")):
        numbers = group_numbers(mesh, axes)
        for rank in range(mesh.world_size):
            assert tuple(sorted(mesh.group(rank, axes))) == tuple(
                other for other in range(mesh.world_size) if numbers[other] == numbers[rank]
            )


def test_a_page_explains_one_of_equal_values_and_counts_those_that_it_is_asked_for():
    apart = DecidedProgram(spmdir.parse(TWO_LAYERS.format(0)), Pipeline())
    assert [one["name"] for one in explain_costliest(apart, None)] == ["%layers.0.w"]
    program_of_layers = DecidedProgram(spmdir.parse(program()), Pipeline())
    dearest = explain_costliest(program_of_layers, None)
    assert [one["seconds"] for one in dearest] == sorted((one["seconds"] for one in dearest), reverse=True)
    assert explain_costliest(program_of_layers, 0) == []
    assert explain_costliest(program_of_layers, 1)[0]["name"] == dearest[0]["name"]


def test_a_decided_program_that_keeps_what_was_annotated_is_explained():
    decided = spmdir.run_passes(spmdir.parse(program()), "propagate{origins=true}")
    (found,) = report_data(decided, Pipeline(), 1)["explanations"]
    assert "annotated tp: S(" in found["text"] and found["line"].startswith("model.py:")
    assert report_data(spmdir.run_passes(spmdir.parse(program()), "propagate"), Pipeline(), 1)["explanations"] == []


def test_ops_of_equal_layers_are_one_row(data: dict[str, Any]):
    rows = [row for row in data["dearest"] if row[1] == "aten.mm"]
    assert len(rows) == 2 and [row[-1] for row in rows] == [LAYERS, LAYERS]
    assert sum(row[3] * row[-1] for row in rows) == pytest.approx(sum(row[3] for row in rows) * LAYERS)
    assert [row[-1] for row in data["dearest"] if row[1] == "aten.neg"] == [1]


@pytest.mark.parametrize(
    ("output", "format"),
    [
        ("a.json", "json"),
        ("trace.json", "perfetto"),
        ("step.Trace.json", "perfetto"),
        ("step.perfetto.json", "perfetto"),
        ("a.pftrace", "perfetto"),
        ("mlp.explorer.json", "model-explorer"),
        ("a.html", "html"),
        ("a.txt", "text"),
        ("", "text"),
    ],
)
def test_the_name_of_the_output_chooses_a_format(output: str, format: str):
    assert format_of(output) == format


@pytest.mark.parametrize(
    ("output", "hint"), [("a.pdf", ""), ("a.cvs", "; did you mean '.csv'?"), ("b/c.tar.gz", ""), ("a.", "")]
)
def test_an_output_with_an_ending_of_no_format_is_an_error(output: str, hint: str):
    with pytest.raises(SpmdirError, match=re.escape(f".txt, or --format{hint}") + "$"):
        format_of(output)


def _peak(data: dict[str, Any]) -> int:
    return max(range(len(data["tasks"])), key=lambda at: data["tasks"][at][7])


def test_model_explorer_gets_a_graph_with_an_overlay_for_each_axis():
    (graph,) = json.loads(write_model_explorer(spmdir.parse(program()), Pipeline(), "mlp"))["graphs"]
    ids = {node["id"] for node in graph["nodes"]}
    assert all(edge["sourceNodeId"] in ids for node in graph["nodes"] for edge in node["incomingEdges"])
    assert "layers/0/up" in {node["namespace"] for node in graph["nodes"]}
    (overlay,) = graph["tasksData"]["edgeOverlaysDataListLeftPane"]
    assert [one["name"] for one in overlay["overlays"]] == ["dp", "tp"]
    labels = {edge["label"] for one in overlay["overlays"] for edge in one["edges"]}
    assert {"dp: S(0)", "tp: S(1)", "tp: P(sum)"} <= labels


def test_a_report_is_not_written_over_its_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    program, link = tmp_path / "in.mlir", tmp_path / "report.csv"
    program.write_text("spmd.mesh @mesh <dp = 2>\nfunc.func @f() {\n  return\n}\n")
    link.symlink_to(program)
    for output in (program, link):
        assert spmd.main(["report", str(program), "--format", "csv", "-o", str(output)]) == 1
        assert "it is the input file" in capsys.readouterr().err
    assert program.read_text().startswith("spmd.mesh")


def test_the_tool_writes_each_format(tmp_path: Path, data: dict[str, Any]):
    source = tmp_path / "mlp.mlir"
    source.write_text(program(), encoding="utf-8")
    for format, target in (("perfetto", "mlp.trace"), ("model-explorer", "mlp.json"), (None, "mlp.html")):
        chosen = [] if format is None else ["--format", format]
        assert spmd.main(["report", str(source), *chosen, "--reasons", "0", "-o", str(tmp_path / target)]) == 0
    trace = json.loads((tmp_path / "mlp.trace").read_text(encoding="utf-8"))
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == len(data["bars"])
    assert json.loads((tmp_path / "mlp.json").read_text(encoding="utf-8"))["label"] == "mlp.mlir"
    assert "<title>mlp.mlir</title>" in (tmp_path / "mlp.html").read_text(encoding="utf-8")


def test_a_program_whose_layers_are_functions_has_the_same_page():
    path = Path(__file__).parents[1] / "golden/outline-layers/equal_layers_become_calls_of_a_function.mlir"
    module = spmdir.parse(path.read_text(encoding="utf-8"))
    expected = report_data(module, Pipeline(), 1)
    text = spmdir.print_ir(spmdir.run_passes(module, "outline-layers"))
    assert text.count("func.call") == 3
    found = report_data(spmdir.parse(text), Pipeline(), 1)
    assert found["seconds"] == pytest.approx(expected["seconds"])
    assert len(found["nodes"]) == len(expected["nodes"])
    assert found["explanations"] == expected["explanations"] == []  # it is decided


def test_ops_that_the_program_of_a_rank_has_for_one_are_in_its_phase():
    text = """spmd.mesh @mesh <tp = 2>
func.func @main(%parameters.w: tensor<64x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}, %i: tensor<4xi64>,
                %dy: tensor<4x8xf32>)
    -> (tensor<4x8xf32>, tensor<64x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) {
  %y = aten.embedding(%parameters.w, %i) : tensor<4x8xf32>
  %grad.parameters.w = aten.embedding_dense_backward(%dy, %i) {num_weights = 64, padding_idx = -1,
      scale_grad_by_freq = false} : tensor<64x8xf32>
  return %y, %grad.parameters.w : tensor<4x8xf32>, tensor<64x8xf32>
}
"""
    found = report_data(localize(spmdir.parse(text), Pipeline()), Pipeline(), 0)
    phase_of = {found["strings"][row[0]]: found["phases"][row[-1]] for row in found["nodes"]}
    made = {phase for name, phase in phase_of.items() if name.startswith("%grad.parameters.w")}
    assert len(phase_of) > 10
    assert made == {"backward"} and phase_of["%y"] == "forward"


def test_ops_that_name_no_module_belong_to_that_of_the_parameter_that_they_read():
    update = """  %lerp = aten.mul.Tensor(%layers.0.up.weight, %exp_avg.layers.0.up.weight) : tensor<512x512xf32>
  return"""
    text = (
        program()
        .replace("%layers", "%parameters.layers")
        .replace("  return", update.replace("%layers", "%parameters.layers"))
    )
    arguments = "%exp_avg.layers.0.up.weight: tensor<512x512xf32>, %step.0: tensor<f32>, "
    text = text.replace("func.func @main(", f"func.func @main({arguments}")
    for located, path in ((True, "layers.0.up"), (False, "layers.0")):
        module = spmdir.parse(text if located else re.sub(r' loc\(".*?"\(".*?":\d+:1\)\)', "", text))
        nodes = {node.name: node for node in program_graph(ir.main_function(module), ir.mesh(module))}
        told = {op.name: op.module for op in spmdir.report.cost_table(module, by="op").ops}
        assert told["%lerp"] == told["%exp_avg.layers.0.up.weight"] == path
        assert nodes["%exp_avg.layers.0.up.weight"].path == nodes["%lerp"].path == path
        assert nodes["%step.0"].path == told["%step.0"] == ""
        assert nodes["%down_1"].path == ("layers.1.down" if located else "layers.1")
