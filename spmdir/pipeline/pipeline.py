"""`Pipeline`, an immutable list of passes with their options, topology, costs and plug-ins, and `run_passes`.

The text of a pipeline is `pass,pass{option=value list=a,b}`, or `builtin.module(pass,…)`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import attrs

from spmdir.core.arguments import CALLABLE, FLAG, PATH, Kind, accepts, instance, many
from spmdir.core.errors import ParseError, require_type, shown
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.progress import say
from spmdir.dialects.arguments import MODULE
from spmdir.pipeline.options import make_pass, pass_options
from spmdir.pipeline.pass_table import PASSES, PassTable
from spmdir.pipeline.plugin_set import PluginSet
from spmdir.plugins import Plugin, load_plugins
from spmdir.reshard.topology import Topology, find_topology, with_costs

if TYPE_CHECKING:
    from xdsl.context import Context
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.dialects.func import FuncOp
    from xdsl.passes import ModulePass

    from spmdir.dialects.context import IRContext
    from spmdir.reshard.collective_spec import CollectiveSpec
    from spmdir.rules.rule_set import RuleSet

STANDARD = "inline,propagate,expand,insert-reshard,lower-reshard,fuse-collectives,localize"
"""The standard pipeline, from an imported program to the program of one rank."""

PARTITIONING = STANDARD.partition("propagate,")[2]
"""The part of the standard pipeline from a decided program to the program of one rank."""

SCHEDULED = STANDARD.replace("propagate", "propagate{overlap=messages}") + ",schedule{spare=25}"
"""The pipeline for real ranks: the standard one, decided for messages that a schedule shares, and then the schedule.
`spare` is for the start of backward, where activations need the most memory. Without it, each gradient would be sent
alone, directly followed by its wait."""

_EXPECTED = "pass names, as in 'propagate,insert-reshard', or a Pipeline"
_PATHS = many(PATH, "paths of .rewrites files")
_PLUGINS = many(instance(str, os.PathLike, Plugin, expected=""), "a list of paths, names of packages and Plugins")
_WRAPPED = re.compile(r"\s*builtin\.module\s*\((.*)\)\s*", re.DOTALL)
_STEP = re.compile(r"\s*([\w-]+)\s*(?:\{([^{}]*)\}\s*)?(?:,|\Z)")
_VALUE = r"[^\s\",]*(?:,(?!\s|[\w-]+=)[^\s\",]*)*"
_OPTION = re.compile(rf"\s*([\w-]+)\s*(?:=\s*(?:\"([^\"]*)\"|({_VALUE})))?(?=[\s,]|\Z),?")


@attrs.frozen
class Step:
    """A pass of a pipeline, with its options as text."""

    name: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.name}{{{' '.join(map(_option_text, self.options))}}}" if self.options else self.name


def _option_text(option: tuple[str, str]) -> str:
    """Return the text of an option. A value with spaces, or that would be read as several options, is quoted."""
    key, value = option
    return f"{key}={value}" if value and not re.search(r"[\s\"]|,$|,[\w-]+=", value) else f'{key}="{value}"'


def parse_steps(text: str | tuple[Step, ...]) -> tuple[Step, ...]:
    """Parse the text of a pipeline. A tuple of steps is returned unchanged.

    Raises:
        ParseError: the text is not a pipeline.
    """
    if isinstance(text, tuple) and all(isinstance(step, Step) for step in text):
        return text
    require_type("pipeline", text, str, _EXPECTED)
    assert not isinstance(text, tuple)
    wrapped = _WRAPPED.fullmatch(text)
    body = wrapped[1] if wrapped else text
    steps, end = [], 0
    while end < len(body.rstrip()):
        step = _STEP.match(body, end)
        if step is None:
            raise ParseError(f"{shown(body[end:].strip())} is not a pipeline; expected `pass,pass{{option=value}}`")
        steps.append(Step(step[1], _parse_options(step[2] or "", step[1])))
        end = step.end()
    return tuple(steps)


def _parse_options(text: str, name: str) -> tuple[tuple[str, str], ...]:
    """Parse the options of the pass `name`, such as `effort=10 memory="60 GB"`, to (key, value) pairs.

    An option without a value, such as `certify`, has the value "true".
    """
    options, end = {}, 0
    while end < len(text.rstrip()):
        option = _OPTION.match(text, end)
        if option is None:
            raise ParseError(
                f"{shown(text[end:].strip())} is not an option of pass '{name}'; expected `key=value key=value`"
            )
        if option[1] in options:
            raise ParseError(f"option '{option[1]}' of pass '{name}' is set twice; expected one value")
        options[option[1]] = next((value for value in option.group(2, 3) if value is not None), "true")
        end = option.end()
    return tuple(options.items())


def _paths(value: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return one path or several as a tuple of texts; raise an error for another type."""
    paths = [value] if isinstance(value, (str, os.PathLike)) else value
    _PATHS.check("rewrites", paths)
    return tuple(os.fspath(path) for path in paths)


def _plugins(value: Sequence[str | os.PathLike[str] | Plugin]) -> PluginSet:
    """Return the plug-ins as a set, loaded if they are names or paths. A PluginSet is returned unchanged."""
    if isinstance(value, PluginSet):
        return value
    _PLUGINS.check("plugins", value)
    return PluginSet(load_plugins(value))


@attrs.frozen(init=False, repr=False)
class Pipeline:
    """An immutable list of passes with their options, topology, costs and plug-ins.

    `str(pipeline)` is its text, as `spmd-opt -p` reads it. Plug-ins are not part of the text.

    Attributes:
        steps: the passes. The constructor accepts them as text; by default, the standard pipeline.
        plugins: further passes, rules, rewrites and topologies. The constructor accepts Plugins, paths and names, as
            `load_plugin` does.
        topology: the machine for each pass with an unset option `topology`: a name, a TOML file, or a Topology.
        costs: a file of measured times for each pass with an unset option `costs`, and for reports.
        rewrites: `.rewrites` files for fuse-collectives, if its option `rewrites` is unset.

    Raises:
        SpmdirError: the text is malformed, a pass or an option is unknown or has a value of the wrong type, or a
            plug-in cannot be loaded.

    Example:
        >>> pipeline = spmdir.Pipeline("propagate{effort=10},insert-reshard,lower-reshard,localize", topology="h100x8")
        >>> print(pipeline)
        propagate{effort=10 topology=h100x8},insert-reshard,lower-reshard{topology=h100x8},localize
    """

    steps: tuple[Step, ...]
    plugins: PluginSet
    topology: Topology | str | None
    costs: str | os.PathLike[str] | None
    rewrites: tuple[str, ...]

    def __init__(
        self,
        steps: str | tuple[Step, ...] = STANDARD,
        *,
        plugins: Sequence[str | os.PathLike[str] | Plugin] = (),
        topology: Topology | str | None = None,
        costs: str | os.PathLike[str] | None = None,
        rewrites: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    ):
        parsed, files = parse_steps(steps), _paths(rewrites)
        loaded = _plugins(plugins).with_passes(step.name for step in parsed)
        if costs is not None:
            require_type("costs", costs, (str, os.PathLike), "the path of a file of measured times")
        costs_file = "" if costs is None else os.fspath(costs)
        # Read these files here, to raise their errors.
        with_costs(_find_topology(topology, topology, loaded), costs_file)
        _ = loaded.rewrites
        # The arguments are the defaults of options of the same names.
        topology_name = topology.name if isinstance(topology, Topology) else topology
        arguments = {"topology": topology_name or "", "costs": costs_file, "rewrites": ",".join(files)}
        defaults = {option: text for option, text in arguments.items() if text}
        completed = tuple(_with_defaults(step, defaults, loaded) for step in parsed)
        self.__attrs_init__(completed, loaded, topology, costs, files)  # type: ignore[attr-defined]  # made by attrs
        self.made()  # raises errors of options

    def __repr__(self) -> str:
        fields = {key: getattr(self, key) for key in ("plugins", "topology", "costs", "rewrites")}
        parts = [repr(str(self)), *(f"{key}={value!r}" for key, value in fields.items() if value)]
        return f"Pipeline({', '.join(parts)})"

    def __str__(self) -> str:
        return ",".join(map(str, self.steps))

    @property
    def passes(self) -> PassTable:
        """Pass name → its class or `module:class`. A pass of a plug-in replaces one with the same name."""
        return self.plugins.passes

    @property
    def rules(self) -> RuleSet:
        """Return the rules of the torch ops. They are also a context manager, and in force in its `with` block."""
        return self.plugins.rules

    @property
    def collectives(self) -> tuple[CollectiveSpec, ...]:
        """The collectives that the planner may choose."""
        return self.plugins.collectives

    def find_topology(self, topology: Topology | str | None) -> Topology:
        """Return the machine with a name or a TOML file. A Topology is returned unchanged. None is the default machine.

        Raises:
            SpmdirError: the name is unknown, or the file is malformed.
        """
        return _find_topology(topology, self.topology, self.plugins)

    @property
    def digest(self) -> str:
        """Return a digest of the steps, the topology and the plug-ins, which ranks compare."""
        parts = [str(self), repr(self.topology), *(plugin.digest for plugin in self.plugins)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def context(self) -> IRContext:
        """Return a fresh context with the rules, rewrites and conditions of this pipeline."""
        from spmdir.dialects import ir

        context = ir.context()
        context.pipeline, context.collectives = self, self.collectives
        context.rules, context.rewrites = self.rules, self.plugins.rewrites
        context.conditions.update(self.plugins.conditions)
        return context

    def made(self) -> list[ModulePass]:
        """Return a pass object for each step, with its options.

        Raises:
            ParseError: a pass or an option is unknown, or has a value of the wrong type.
        """
        return [self.resolved(make_pass(step.name, dict(step.options), self.passes)) for step in self.steps]

    def resolved(self, pass_: ModulePass) -> ModulePass:
        """Return `pass_`. If its option `topology` names a topology of the pipeline or a plug-in, it gets that one."""
        name = getattr(pass_, "topology", None)
        topology = _named_topologies(self.topology, self.plugins).get(name) if isinstance(name, str) else None
        return dataclasses.replace(pass_, topology=topology) if topology is not None else pass_  # type: ignore[call-arg]

    def with_steps(self, steps: tuple[Step, ...]) -> Pipeline:
        """Return this pipeline with other steps."""
        return attrs.evolve(self, steps=steps)

    def with_option(self, name: str, option: str, value: str) -> Pipeline:
        """Return the pipeline with `value` for an option of all passes `name`, if the option is unset."""
        return self.with_steps(
            tuple(
                Step(name, (*step.options, (option, value)))
                if step.name == name and option not in dict(step.options)
                else step
                for step in self.steps
            )
        )

    def through(self, name: str) -> Pipeline:
        """Return the steps up to and including the last pass `name`. Without such a pass, there are no steps."""
        return self.with_steps(self.steps[: self._end_of(name)])

    def after(self, name: str) -> Pipeline:
        """Return the steps after the last pass `name`. Without such a pass, these are all steps."""
        return self.with_steps(self.steps[self._end_of(name) :])

    def before(self, name: str) -> Pipeline:
        """Return the steps before the first pass `name`. Without such a pass, these are all steps."""
        return self.with_steps(tuple(itertools.takewhile(lambda step: step.name != name, self.steps)))

    def _end_of(self, name: str) -> int:
        """Return the number of steps up to the last pass `name`; 0 if there is none."""
        return max((index for index, step in enumerate(self.steps, 1) if step.name == name), default=0)


def _named_topologies(topology: object, plugins: PluginSet) -> dict[str, Topology]:
    """Return name → topology, for the topologies of plug-ins and of the pipeline. Presets are not included."""
    return {**plugins.topologies, **({topology.name: topology} if isinstance(topology, Topology) else {})}


def _find_topology(topology: Topology | str | None, pipeline_topology: object, plugins: PluginSet) -> Topology:
    """Return the topology of the pipeline or of a plug-in with a name, or else the preset or the file of that name."""
    named = _named_topologies(pipeline_topology, plugins).get(topology) if isinstance(topology, str) else None
    return named or find_topology(topology)


def _with_defaults(step: Step, defaults: Mapping[str, str], plugins: PluginSet) -> Step:
    """Return `step` with `defaults` for those of its options that are unset. Other defaults are not added."""
    if not defaults:
        return step
    option_names = pass_options(type(make_pass(step.name, dict(step.options), plugins.passes)))
    names_with_values = {key.replace("-", "_") for key, _ in step.options}
    added = [
        (option, text)
        for option, text in defaults.items()
        if option in option_names and option not in names_with_values
    ]
    return Step(step.name, (*step.options, *added))


@functools.cache
def _standard() -> Pipeline:
    return Pipeline()


def as_pipeline(value: Pipeline | str | None) -> Pipeline:
    """Return `value` as a Pipeline. None is the standard pipeline.

    Raises:
        SpmdirError: the value has another type, or its text is malformed.
    """
    if value is None:
        return _standard()
    return value if isinstance(value, Pipeline) else Pipeline(value)


PIPELINE = Kind(lambda value: value is None or isinstance(value, (str, Pipeline)), _EXPECTED)
"""The values that an argument `pipeline` of a public function accepts."""


def _is_context(value: object) -> bool:
    from xdsl.context import Context

    return isinstance(value, Context)


def _record(pass_: ModulePass, functions: Sequence[FuncOp]) -> None:
    """Record on `functions` that a pass of a plug-in ran, and write the stage that it produces."""
    from spmdir.dialects.stage import is_at_least, record_pass, write_stage
    from spmdir.dialects.stage_inference import stage_of

    for function in functions:
        record_pass(function, pass_.name)
        produced: str | None = getattr(pass_, "produces", None)
        if produced is not None and not is_at_least(stage_of(function), produced):
            write_stage(function, produced)


After: TypeAlias = "Callable[[str, Callable[[], ModuleOp]], None]"
"""A function that is called after each pass, with its name and a function that returns the current module."""


@accepts(
    module=MODULE,
    pipeline=PIPELINE,
    verify_each=FLAG,
    context=Kind(_is_context, "a context, as of spmdir.dialects.ir.context()").optional,
    after=CALLABLE,
)
def run_passes(
    module: ModuleOp,
    pipeline: Pipeline | str | None = None,
    verify_each: bool = False,
    *,
    context: Context | None = None,
    after: After = lambda name, module: None,
) -> ModuleOp:
    """Run `pipeline`, e.g. `"propagate,insert-reshard"` or `"propagate{effort=10}"`, on `module` in place.

    This changes the module, so a second call continues from the result of the first. To run two pipelines on one
    program, parse or import it twice, or pass `module.clone()`.

    Args:
        module: a module at any stage. After an error, its state is unspecified.
        pipeline: a Pipeline or its text; None for the standard pipeline.
        verify_each: verify the module after each pass, not only after the last one.
        context: an IR context; by default a new one with the rules of the pipeline.
        after: a function that is called after each pass, with its name and a function that returns the module.

    Returns: `module`.

    Raises:
        SpmdirError: a pass or option is unknown, or a pass rejects the module.

    Example:
        >>> module = spmdir.run_passes(spmdir.parse(text), "propagate,insert-reshard")
    """
    pipeline = as_pipeline(pipeline)
    steps = pipeline.made()
    if not steps:
        return module
    from spmdir.dialects import ir
    from spmdir.dialects.verifier import verify
    from spmdir.pipeline.layer_runner import LayerRunner

    context = context or pipeline.context()
    layers = LayerRunner(context, module)
    with collector_paused():
        for position, step in enumerate(steps, 1):
            say("{} ({} of {})", step.name, position, len(steps))
            layers.apply(step, steps[position:])
            if step.name not in PASSES:
                _record(step, ir.functions(module))
            if verify_each or position == len(steps):
                verify(module)
            after(step.name, layers.module)
    return module
