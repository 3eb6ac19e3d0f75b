"""Windows: outputs over a size, halos of a block, and what torch's arguments mean."""

import pytest

from spmdir.rules.shapes.window_geometry import Window, WindowShape, numbers, paddings, window


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation", "expected"),
    [(8, 3, 1, 1, 1, 8), (8, 3, 1, 0, 1, 6), (8, 2, 2, 0, 1, 4), (7, 2, 2, 0, 1, 3), (8, 3, 1, 2, 2, 8),
     (1, 3, 1, 0, 1, 0)],
)  # fmt: skip
def test_outputs_are_counted(size: int, kernel: int, stride: int, padding: int, dilation: int, expected: int):
    assert WindowShape(kernel, stride, padding, dilation).steps(size) == expected


@pytest.mark.parametrize(
    ("size", "output", "shape", "expected"),
    [
        (8, 8, WindowShape(3, 1, 1, 1), Window(2, 1, before=1, after=1, stride=1)),
        (8, 4, WindowShape(2, 2, 0, 1), Window(2, 0, before=0, after=0, stride=2)),
        (8, 4, WindowShape(3, 2, 1, 1), Window(2, 1, before=1, after=0, stride=2)),
        (8, 8, WindowShape(3, 1, 2, 2), Window(2, 2, before=2, after=2, stride=1)),
        (8, 6, WindowShape(3, 1, 0, 1), None),  # 8 inputs in blocks are no blocks of 6 outputs
        (9, 4, WindowShape(2, 2, 0, 1), None),
        (8, 5, WindowShape(3, 1, 1, 1), None),
    ],
)
def test_a_block_needs_halos_where_blocks_correspond(
    size: int, output: int, shape: WindowShape, expected: Window | None
):
    assert window(2, size, output, shape) == expected


def test_a_rank_must_have_the_halos_of_its_neighbours():
    assert Window(1, 2, before=2, after=5, stride=2).least == 3
    assert Window(1, 0, before=0, after=0, stride=2).least == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, (3, 3)), ((3,), (3, 3)), ((3, 4), (3, 4)), (None, (1, 1)), ((), (1, 1)), ((1, 2, 3), None), ("same", None),
     (True, None)],
)  # fmt: skip
def test_an_argument_lists_a_number_for_each_dimension(value: object, expected: tuple[int, ...] | None):
    assert numbers(value, 2, (1, 1)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "kernel", "expected"),
    [("valid", (3, 5), (0, 0)), ("same", (3, 5), (1, 2)), ("same", (4, 3), None), (1, (3, 5), (1, 1)),
     (None, (3, 5), (0, 0))],
)  # fmt: skip
def test_paddings_are_those_in_front(value: object, kernel: tuple[int, ...], expected: tuple[int, ...] | None):
    assert paddings(value, kernel, (1, 1)) == expected  # type: ignore[arg-type]
