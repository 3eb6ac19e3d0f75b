"""The pipeline axis of a plan: the mesh axis along which ranks hold different stages of a model.

In the text of a plan:

    [pipeline]
    axis = "pp"
    schedule = "zbv"
    at = ["layers.2", "layers.4", "layers.6"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import attrs

from spmdir.core.errors import Location, ParseError, ShardingError, did_you_mean
from spmdir.core.mesh import Mesh

ScheduleKind = Literal["gpipe", "1f1b", "zb", "zbv", "search"]
"""The kinds of orders of a pipelined step."""

SCHEDULES: tuple[ScheduleKind, ...] = get_args(ScheduleKind)

_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "axis": (lambda value: isinstance(value, str), "the name of a mesh axis"),
    "schedule": (lambda value: value in SCHEDULES, f"one of {', '.join(SCHEDULES)}"),
    "stages": (lambda value: type(value) is int and value >= 0, "a number of stages"),
    "at": (
        lambda value: isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value),
        'a list of modules, as in ["layers.2", "layers.4"]',
    ),
}


@attrs.frozen
class PipelineAxis:
    """The mesh axis along which a model is cut into stages. No tensor is sharded over it.

    Attributes:
        axis: its name.
        schedule: the kind of the order in which ranks run their stages.
        stages: the number of stages; 0 for one on each rank, or two for `zbv`.
        at: the modules with which stages begin; () to balance the stages by modelled time.
    """

    axis: str = "pp"
    schedule: ScheduleKind = "1f1b"
    stages: int = 0
    at: tuple[str, ...] = attrs.field(default=(), converter=tuple)

    def __attrs_post_init__(self) -> None:
        for field, value in attrs.asdict(self).items():
            is_valid, expected = _KINDS[field]
            if not is_valid(value):
                raise ShardingError(f"the pipeline axis has {field}={value!r}; expected {expected}")

    def other_axes(self, mesh: Mesh) -> Mesh:
        """Return the mesh of the ranks of one stage. Without another axis, it has an axis of one rank.

        Raises:
            ShardingError: the mesh does not have the pipeline axis.
        """
        mesh.require(self.axis)
        axes = {axis: size for axis, size in mesh.axes if axis != self.axis} or {f"{self.axis}_stage": 1}
        intra_node = mesh.intra_node and tuple(axis for axis in mesh.intra_node if axis in axes)
        return Mesh(axes, mesh.name, intra_node)

    def __str__(self) -> str:
        lists = {"at": f"[{', '.join(map(_quoted, self.at))}]"} if self.at else {}
        numbers = {"stages": str(self.stages)} if self.stages else {}
        entries = {"axis": _quoted(self.axis), "schedule": _quoted(self.schedule), **numbers, **lists}
        return "\n".join(f"{key} = {text}" for key, text in entries.items())


def _quoted(text: str) -> str:
    return f'"{text}"'


def read_pipeline_axis(table: Mapping[str, Any], place: Callable[[str], Location | None]) -> PipelineAxis:
    """Return the pipeline axis with the fields of `table`.

    Args:
        place: name of a field → its location, for errors.

    Raises:
        ParseError: a field is unknown, or has a wrong value; located.
    """
    for key in table:
        if key not in _KINDS:
            raise ParseError(
                f"unknown option '{key}' of a pipeline axis; expected {', '.join(_KINDS)}{did_you_mean(key, _KINDS)}"
                + ("; training_step(…, accumulate=N) sets the micro-batches" if key in ("micro", "accumulate") else ""),
                place(key),
            )
        if not _KINDS[key][0](table[key]):
            raise ParseError(
                f"the pipeline axis has {key}={table[key]!r}; expected {_KINDS[key][1]}",
                place(key),
            )
    return PipelineAxis(**table)
