"""Sharding plans: the shardings of a model's arguments, parameters, buffers and activations, also as TOML.

The text of a plan is, for example:

    keep = ["tp"]
    out_shardings = ["dp: S(0)", "?"]

    [shardings]
    "input:*" = "dp: S(0)"
    "model.layers.*.mlp.up_proj.weight" = "tp: S(0)"

    [activations]
    "model.layers.*.mlp" = { inputs = "tp: R", outputs = "tp: S(1), dp: ?" }
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import attrs

from spmdir.core.errors import Location, ParseError, ShardingError, SpmdirError, did_you_mean, shown, wrong_argument
from spmdir.core.html_text import ShownAsText
from spmdir.core.mesh import Mesh
from spmdir.core.placement.pipeline_axis import PipelineAxis, read_pipeline_axis
from spmdir.core.placement.sharding import Sharding, ShardingLike, as_sharding
from spmdir.core.toml_text import located_key, place_of, read_toml

INPUTS = "input:*"
"""The key of every argument that is not part of a step's state."""

_KEYS = ("keep", "out_shardings", "shardings", "activations", "pipeline")
_SIDES = ("inputs", "outputs")

_OPEN = "?"
"""The text of a sharding that the compiler decides."""

_FROM_THE_END = re.compile(r"\(\s*-([0-9]+)(?=\s*[,)])")
"""A dimension that counts from the end, as in `S(-1)`."""

_IN_BRACKETS = re.compile(r"\([^()]*\)")

RANKS = range(9)
"""The possible ranks of an activation."""


@attrs.frozen
class Layout:
    """The sharding of an activation. It may count dimensions from the end: `tp: S(-1)`.

    Attributes:
        text: the text of the sharding; the compiler decides axes with `?`.
    """

    text: str

    def of_rank(self, rank: int) -> str:
        """Return the text of the sharding for a tensor of `rank` dimensions: `tp: S(-1)` for rank 3 is `tp: S(2)`."""
        return _FROM_THE_END.sub(lambda match: f"({rank - int(match[1])}", self.text)

    def check(self, mesh: Mesh) -> None:
        """Raise ShardingError or ParseError unless this is a sharding over axes of `mesh`."""
        as_sharding(self.of_rank(RANKS[-1]), mesh)  # the largest rank, because the rank is not known here


@attrs.frozen
class Activation:
    """The shardings of the inputs and outputs of a module. The compiler decides those that are not listed.

    Attributes:
        inputs: position or name of an argument of the module's forward → layout.
        outputs: position of an output, or its key in a dict → layout; "0" for a single tensor.
    """

    inputs: Mapping[str, Layout] = attrs.field(factory=dict)
    outputs: Mapping[str, Layout] = attrs.field(factory=dict)


@attrs.frozen
class ShardingPlan(ShownAsText):
    """The shardings of a model on a mesh. Its `str` is the text of a plan file.

    Attributes:
        shardings: name or glob of parameters, buffers and arguments → sharding, as in `import_fx`. `input:*` matches
            the arguments that are not part of a step's state.
        out_shardings: one entry per output, None if the compiler decides it. None if it decides all outputs.
        activations: name or glob of modules → the layouts of their inputs and outputs.
        keep: axes along which the values in `shardings` are never gathered: all users of such a value, or of a view or
            cast of it, must take it in its placement along these axes. An entry `ep: *.experts.*` keeps only the values
            with such a name.
        pipeline: the mesh axis along which `parallelize` cuts a training step into stages; None for no such axis. The
            shardings are then over the other axes.
    """

    shardings: Mapping[str, ShardingLike | None] = attrs.field(factory=dict)
    out_shardings: tuple[ShardingLike | None, ...] | None = None
    activations: Mapping[str, Activation] = attrs.field(factory=dict)
    keep: tuple[str, ...] = ()
    pipeline: PipelineAxis | None = None

    def kept_axes(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the axes along which the value with these names is never gathered."""
        entries = [entry.partition(":") for entry in self.keep]
        patterns = [(axis.strip(), pattern.strip() or "*") for axis, _, pattern in entries]
        return tuple(axis for axis, pattern in patterns if any(fnmatchcase(name, pattern) for name in names))

    def with_inputs(self, first_input: int, count: int) -> ShardingPlan:
        """Return this plan with `input:*` restricted to the `count` arguments from `first_input` on."""
        renamed = {INPUTS: f"input:{first_input}-{first_input + count - 1}"}
        return attrs.evolve(self, shardings={renamed.get(key, key): value for key, value in self.shardings.items()})

    def updated_with(self, later: ShardingPlan) -> ShardingPlan:
        """Return the union of this plan and `later`; entries of `later` take precedence."""
        return ShardingPlan(
            {**self.shardings, **later.shardings},
            self.out_shardings if later.out_shardings is None else later.out_shardings,
            {**self.activations, **later.activations},
            tuple(dict.fromkeys([*self.keep, *later.keep])),
            later.pipeline or self.pipeline,
        )

    def __str__(self) -> str:
        """Return the plan as TOML, which `read_plan` reads."""
        lines = [f"keep = {json.dumps(self.keep)}"] if self.keep else []
        if self.out_shardings is not None:
            outputs = [_OPEN if entry is None else _text(entry) for entry in self.out_shardings]
            lines.append(f"out_shardings = {json.dumps(outputs)}")
        if self.shardings:
            lines += ["", "[shardings]"]
            lines += [f"{json.dumps(name)} = {json.dumps(_text(entry))}" for name, entry in self.shardings.items()]
        if self.activations:
            lines += ["", "[activations]"]
            lines += [f"{json.dumps(name)} = {_activation_text(entry)}" for name, entry in self.activations.items()]
        if self.pipeline is not None:
            lines += ["", "[pipeline]", str(self.pipeline)]
        return "\n".join(lines).strip("\n") + "\n"


def _text(sharding: ShardingLike | None) -> str:
    """Return the text of a sharding in a plan; `_OPEN` if the search chooses it."""
    if sharding is None:
        return _OPEN
    if isinstance(sharding, Mapping):
        return ", ".join(f"{axis}: {placement}" for axis, placement in sharding.items())
    return str(sharding)


def _activation_text(activation: Activation) -> str:
    """Return the entry of a module in [activations]."""
    sides = [(side, getattr(activation, side)) for side in _SIDES]
    return "{ " + ", ".join(f"{side} = {_layouts_text(layouts)}" for side, layouts in sides if layouts) + " }"


def _layouts_text(layouts: Mapping[str, Layout]) -> str:
    """Return the layouts of the inputs or outputs of a module: a table, or one text."""
    if list(layouts) == ["0"]:
        return json.dumps(layouts["0"].text)
    entries = [f"{json.dumps(key)} = {json.dumps(layout.text)}" for key, layout in layouts.items()]
    return "{ " + ", ".join(entries) + " }"


def as_plan(value: Any, mesh: Mesh) -> ShardingPlan:
    """Convert a plan argument of the Python API for a program: a plan, its text, or a dict of shardings.

    None is the plan that leaves all shardings to the compiler.

    Raises:
        ShardingError, ParseError: it is none of these. Recipes and styles are not accepted, because they need a model.
    """
    if value is None:
        return ShardingPlan()
    if isinstance(value, ShardingPlan):
        return value
    if isinstance(value, str) and is_plan_text(value):
        return read_plan(value, "plan", mesh)
    if isinstance(value, Mapping):
        return ShardingPlan(value)
    if isinstance(value, str):
        raise ShardingError(
            f"plan is {shown(value)}; expected a plan or its text; to use a recipe, call "
            f"spmdir.placement.sharding_plan(model, mesh, {value!r})"
        )
    expected = 'a dict, as in {"x": "dp: S(0)"}, a recipe, a plan or its text'
    raise wrong_argument("plan", value, expected)


def is_plan_text(text: str) -> bool:
    """Return whether `text` is the text of a plan, not the name of a recipe or a path."""
    text = _IN_BRACKETS.sub("", text)  # a recipe may have options there, as in pp(schedule=zbv)
    return "=" in text or "[" in text or not text.strip()


def read_plan(text: str, file: str, mesh: Mesh) -> ShardingPlan:
    """Parse the text of a plan for `mesh`.

    Raises:
        ParseError, ShardingError: the text is not a plan, or a sharding does not fit the mesh; located.
    """
    document = read_toml(text, file)
    pipeline = None
    if "pipeline" in document:
        table = _table(document, "pipeline", text, file)
        pipeline = read_pipeline_axis(table, partial(place_of, text, file))
        mesh = pipeline.other_axes(mesh) if pipeline.axis in mesh.sizes else mesh
    for key in document:
        if key not in _KEYS:
            allowed = ", ".join(_KEYS)
            raise ParseError(
                f"unknown key '{key}'; expected {allowed}{did_you_mean(key, _KEYS)}", place_of(text, file, key)
            )
    keep, outputs = document.get("keep", []), document.get("out_shardings")
    if not isinstance(keep, list) or not all(isinstance(axis, str) for axis in keep):
        raise ParseError("'keep' is not a list of axes; write [\"tp\"]", place_of(text, file, "keep"))
    for axis in keep:
        _with_location(
            partial(mesh.require, axis.partition(":")[0].strip()), partial(place_of, text, file, "keep", axis)
        )
    if outputs is not None and not isinstance(outputs, list):
        raise ParseError(
            "'out_shardings' is not a list; write [\"dp: S(0)\", …]", place_of(text, file, "out_shardings")
        )
    return ShardingPlan(
        {
            located_key(text, file, name): _sharding(value, mesh, partial(place_of, text, file, name, value))
            for name, value in _flat(_table(document, "shardings", text, file))
        },
        None if outputs is None else tuple(
            _sharding(value, mesh, partial(place_of, text, file, "out_shardings", value)) for value in outputs
        ),
        {
            located_key(text, file, name): _activation(value, mesh, partial(place_of, text, file, name))
            for name, value in _modules(_table(document, "activations", text, file))
        },
        tuple(keep),
        pipeline,
    )  # fmt: skip


def _table(document: Mapping[str, Any], name: str, text: str, file: str) -> Mapping[str, Any]:
    """Return the table `name` of a plan; empty if the plan does not have it. Raise ParseError if it is not a table."""
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise ParseError(
            f"'{name}' is not a table; expected the TOML table [{name}]: write its entries below the line [{name}]",
            place_of(text, file, name),
        )
    return table


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) pairs. TOML parses an unquoted `a.b = …` as nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _modules(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, table) of each module: a table with `inputs` or `outputs`."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value and not value.keys() & set(_SIDES):
            yield from _modules(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _activation(value: Any, mesh: Mesh, place: Callable[..., Location]) -> Activation:
    """Read the entry of a module in [activations].

    Args:
        place: () → the location of the key; (text) → the location of this value of the entry.
    """
    if not isinstance(value, Mapping) or not value or value.keys() - set(_SIDES):
        raise ParseError(
            'invalid entry in [activations]; expected { inputs = "tp: R", outputs = "tp: S(-1)" }',
            place(),
        )
    return Activation(*(_layouts(value.get(side, {}), mesh, place) for side in _SIDES))


def _layouts(value: Any, mesh: Mesh, place: Callable[..., Location]) -> dict[str, Layout]:
    """Read the layouts of the inputs or outputs of a module: a table, a list, or one text.

    Layouts that are `?` are omitted. For `place`, see `_activation`.
    """
    if isinstance(value, Mapping):
        entries = value
    else:
        entries = dict(enumerate(value if isinstance(value, list) else [value]))
    layouts: dict[str, Layout] = {}
    for key, text in entries.items():
        if text == _OPEN:
            continue
        if not isinstance(text, str):
            raise ParseError(f'{text!r} is not a layout; expected text such as "dp: S(0), tp: S(-1)"', place())
        layouts[str(key)] = layout = Layout(text)
        _with_location(partial(layout.check, mesh), partial(place, text))
    return layouts


def _sharding(value: Any, mesh: Mesh, place: Callable[[], Location]) -> Sharding | None:
    """Read a sharding; None if the search chooses it."""
    if not isinstance(value, str):
        raise ParseError(f'{value!r} is not a sharding; expected text such as "dp: S(0), tp: R"', place())
    return None if value == _OPEN else _with_location(partial(as_sharding, value, mesh), place)


def _with_location(read: Callable[[], Any], place: Callable[[], Location]) -> Any:
    """Call `read`; give its errors the location that `place` returns."""
    try:
        return read()
    except SpmdirError as error:
        raise error.at(place()) from None
