"""Pictures of tensors: each rank is drawn on the elements that the placements give it, and nowhere else."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import spmdir
from spmdir.core.placement.sharding import as_sharding
from spmdir.dialects import ir
from spmdir.simulator.distribution import distribute

MESH = spmdir.Mesh({"dp": 2, "tp": 4})


@settings(max_examples=60)
@given(
    shape=st.lists(st.integers(1, 13), min_size=0, max_size=3).map(tuple),
    placements=st.tuples(*[st.sampled_from(["R", "S", "Cyclic", "ZigZag", "Strided", "P(sum)"])] * 2),
    dims=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    tp_first=st.booleans(),
)
def test_each_rank_is_drawn_on_the_elements_that_it_holds(
    shape: tuple[int, ...], placements: tuple[str, str], dims: tuple[int, int], tp_first: bool
):
    entries = []
    for axis, name, dim in zip(MESH.axis_names, placements, dims, strict=True):
        if name in ("S", "Cyclic", "ZigZag", "Strided"):
            if not shape:
                continue
            more = {"Cyclic": ", 2", "Strided": ", 2"}.get(name, "")
            entries.append(f"{axis}: {name}({dim % len(shape)}{more})")
        elif name != "R":
            entries.append(f"{axis}: {name}")
    text = ", ".join(entries[::-1] if tp_first else entries)
    meta = spmdir.placement.TensorMeta(shape, "f32")
    try:
        exact = as_sharding(text.replace("P(sum)", "R"), MESH)
        held = distribute(torch.arange(1.0, meta.numel + 1).reshape(shape), exact, MESH, torch.zeros_like)
        exact.check_shape(MESH, shape)
    except spmdir.SpmdirError:
        reject()
    tiling = spmdir.report.visualize(meta, MESH, sharding=text).tiling(64)
    elements = torch.arange(1.0, meta.numel + 1).reshape(shape)
    part = elements[tuple(slice(None) if dim in tiling.dims else tiling.position[dim] for dim in range(len(shape)))]
    for rank in range(8):
        drawn = set()
        for tile in tiling.tiles:
            if rank in tiling.holders[tile.holder]:
                cut = [
                    slice(pieces[first][0], pieces[end - 1][1])
                    for pieces, (first, end) in ((tiling.rows, tile.rows), (tiling.columns, tile.columns))
                ]
                drawn |= set(part[tuple(cut[2 - part.dim() :])].flatten().tolist())
        assert drawn == set(held[rank].flatten().tolist()) & set(part.flatten().tolist())
    assert bool(tiling.mixed) == ("P(sum)" in text)


def test_no_two_rectangles_overlap_and_none_could_be_joined_with_the_next():
    tiling = spmdir.report.visualize("12x16xf32 <dp: Cyclic(1, 2), tp: S(1)>", MESH).tiling(64)
    cells = [cell for tile in tiling.tiles for cell in itertools.product(range(*tile.rows), range(*tile.columns))]
    assert len(cells) == len(set(cells)) == len(tiling.rows) * len(tiling.columns)
    assert len(tiling.tiles) == 8


def test_a_placement_of_a_plug_in_is_drawn_by_what_it_says():
    assert "┌" in str(spmdir.report.visualize("10xf32 <tp: Padded(0)>", MESH))
    quantised = spmdir.report.visualize("16xf32 <tp: Quantised>", MESH)
    assert "* tp: Quantised" in str(quantised)


def test_a_value_of_the_ir_knows_its_sharding_and_mesh():
    module = spmdir.parse(
        "spmd.mesh @mesh <dp = 2, tp = 4>\n"
        "func.func @main(%x: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<8x4xf32> {\n"
        "  %y = aten.neg(%x) : tensor<8x4xf32>\n  return %y : tensor<8x4xf32>\n}\n"
    )
    function = ir.main_function(module)
    assert str(spmdir.report.visualize(function.args[0])).startswith("8x4xf32 <dp: S(0)> on <dp = 2, tp = 4>")
    result = next(iter(function.body.block.ops)).results[0]
    with pytest.raises(spmdir.errors.UnsupportedError, match="tensor has no sharding"):
        spmdir.report.visualize(result)
    assert "<tp: S(1)>" in str(spmdir.report.visualize(result, sharding="tp: S(1)"))


def test_svg_is_one_element_without_addresses_and_has_a_tooltip_for_each_rectangle():
    picture = spmdir.report.visualize("8x12xf32 <dp: S(0), tp: S(1)>", MESH)
    root = ET.fromstring(picture.svg())
    assert len(root.findall(".//{*}title")) == len(root.findall(".//{*}rect")) == 8
    assert "href" not in picture.svg() and "url(" not in picture.svg()
    assert picture._repr_html_() == picture.svg()


def test_colours_are_escapes_around_the_same_characters():
    picture = spmdir.report.visualize("8x12xf32 <dp: S(0)>", MESH)
    plain = picture.text()
    assert "\x1b" not in plain and re.sub("\x1b\\[[0-9;]*m", "", picture.text(color=True)) == plain


@pytest.mark.parametrize(
    ("what", "given", "message"),
    [
        ("8x4xf32 <dp: S(2)>", {}, "shards dimension 2 of a tensor of rank 2"),
        ("8x4xf32", {}, "tensor has no sharding"),
        ("8x4xf32 <dp: S(0)>", {"slices": {2: 0}}, "expected a dimension from 0 to 1"),
        ("8x4xf32 <dp: S(0)>", {"slices": {1: 4}}, "expected a position below 4"),
        ("8x4xf32 <xp: S(0)>", {}, "'xp' is not in mesh"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(what: str, given: dict[str, dict[int, int]], message: str):
    with pytest.raises(spmdir.SpmdirError, match=re.escape(message)):
        spmdir.report.visualize(what, MESH, **given)


def test_a_tensor_without_elements_says_so():
    picture = spmdir.report.visualize("0x4x0xf32 <dp: S(0)>", MESH)
    assert "no elements" in str(picture) and "<rect" not in picture.svg()
