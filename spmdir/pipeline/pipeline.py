"""`Pipeline`, an immutable list of passes with their options, topology, costs and plug-ins, and `run_passes`.

The text of a pipeline is `pass,pass{option=value list=a,b}`, with or without `builtin.module(…)` around.
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
from spmdir.core.collector import collector_paused
from spmdir.core.errors import ParseError, require_type, shown
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
"""The passes that take a decided program to that of one rank, in the standard pipeline."""

SCHEDULED = STANDARD.replace("propagate", "propagate{overlap=messages}") + ",schedule{spare=25}"
"""The pipeline of programs that run on real ranks: the standard one, decided for the messages that a schedule shares,
then the schedule of what a rank does. At the begin of a backward activations take most memory, and without any to spare
each gradient would be sent alone, and waited for at once."""

_EXPECTED = "pass names, as in 'propagate,insert-reshard', or a Pipeline"
_PATHS = many(PATH, "paths of .rewrites files")
_PLUGINS = many(instance(str, os.PathLike, Plugin, expected=""), "a list of paths, names of packages and Plugins")
_AROUND = re.compile(r"\s*builtin\.module\s*\((.*)\)\s*", re.DOTALL)
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
    key, value = option
    return f"{key}={value}" if value and not re.search(r"[\s\"]|,$|,[\w-]+=", value) else f'{key}="{value}"'


def parse_steps(text: str | tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the steps that the text of a pipeline spells; steps as they are.

    Raises:
        ParseError: the text is not a pipeline.
    """
    if isinstance(text, tuple) and all(isinstance(step, Step) for step in text):
        return text
    require_type("pipeline", text, str, _EXPECTED)
    assert not isinstance(text, tuple)
    around = _AROUND.fullmatch(text)
    inside = around[1] if around else text
    steps, end = [], 0
    while end < len(inside.rstrip()):
        step = _STEP.match(inside, end)
        if step is None:
            raise ParseError(f"{shown(inside[end:].strip())} is not a pipeline; expected `pass,pass{{option=value}}`")
        steps.append(Step(step[1], _options(step[2] or "", step[1])))
        end = step.end()
    return tuple(steps)


def _options(text: str, name: str) -> tuple[tuple[str, str], ...]:
    options, end = {}, 0
    while end < len(text.rstrip()):
        option = _OPTION.match(text, end)
        if option is None:
            raise ParseError(
                f"{shown(text[end:].strip())} is not an option of pass '{name}'; expected `key=value key=value`"
            )
        if option[1] in options:
            raise ParseError(f"option '{option[1]}' of pass '{name}' is given twice; give it once")
        options[option[1]] = next((value for value in option.group(2, 3) if value is not None), "true")
        end = option.end()
    return tuple(options.items())


def _paths(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    paths = [given] if isinstance(given, (str, os.PathLike)) else given
    _PATHS.check("rewrites", paths)
    return tuple(os.fspath(path) for path in paths)


def _plugins(given: Sequence[str | os.PathLike[str] | Plugin]) -> PluginSet:
    if isinstance(given, PluginSet):
        return given
    _PLUGINS.check("plugins", given)
    return PluginSet(load_plugins(given))


@attrs.frozen(init=False, repr=False)
class Pipeline:
    """An immutable list of passes with their options, topology, costs and plug-ins.

    `str(pipeline)` is its text, as `spmd-opt -p` reads it. Plug-ins are not part of the text.

    Attributes:
        steps: the passes; the constructor takes them as text. The standard pipeline if left out.
        plugins: what passes, rules, rewrites and topologies there are beside those of spmdir; the constructor takes
            Plugins, and paths or names as for `load_plugin`.
        topology: the machine for each pass that has an option `topology` and is not given one: a name, a TOML file, or
            a Topology.
        costs: a file of measured times for each pass that has an option `costs` and is not given one, and for reports.
        rewrites: `.rewrites` files for fuse-collectives, unless it is given some.

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
        table = "" if costs is None else os.fspath(costs)
        _ = with_costs(_find_topology(topology, topology, loaded), table), loaded.rewrites  # errors of files come now
        machine = topology.name if isinstance(topology, Topology) else topology
        offered = {"topology": machine or "", "costs": table, "rewrites": ",".join(files)}
        offered = {option: text for option, text in offered.items() if text}
        completed = tuple(_completed(step, offered, loaded) for step in parsed)
        self.__attrs_init__(completed, loaded, topology, costs, files)  # type: ignore[attr-defined]  # made by attrs
        self.made()

    def __repr__(self) -> str:
        others = {key: getattr(self, key) for key in ("plugins", "topology", "costs", "rewrites")}
        given = [repr(str(self)), *(f"{key}={value!r}" for key, value in others.items() if value)]
        return f"Pipeline({', '.join(given)})"

    def __str__(self) -> str:
        return ",".join(map(str, self.steps))

    @property
    def passes(self) -> PassTable:
        """Pass name → class, or where to import it from; a plug-in's takes the place of one of the same name."""
        return self.plugins.passes

    @property
    def rules(self) -> RuleSet:
        """Return the rules of the torch ops; a context manager, in whose `with` block everything goes by them."""
        return self.plugins.rules

    @property
    def collectives(self) -> tuple[CollectiveSpec, ...]:
        """The collectives that the planner may choose."""
        return self.plugins.collectives

    def find_topology(self, topology: Topology | str | None) -> Topology:
        """Return a machine: a value as it is, by its name or its TOML file; the default one if None.

        Raises:
            SpmdirError: neither spmdir nor a plug-in has one of that name, or the file is malformed.
        """
        return _find_topology(topology, self.topology, self.plugins)

    @property
    def digest(self) -> str:
        """Return a digest of all that decides what the pipeline does; ranks compare it."""
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
        """Return the passes, each made from its options.

        Raises:
            ParseError: a pass or an option is unknown, or has a value of the wrong type.
        """
        return [self.resolved(make_pass(step.name, dict(step.options), self.passes)) for step in self.steps]

    def resolved(self, made: ModulePass) -> ModulePass:
        """Return a pass with its topology as a value, if this pipeline has one of that name."""
        named = getattr(made, "topology", None)
        found = _named_topologies(self.topology, self.plugins).get(named) if isinstance(named, str) else None
        return dataclasses.replace(made, topology=found) if found is not None else made  # type: ignore[call-arg]

    def with_steps(self, steps: tuple[Step, ...]) -> Pipeline:
        """Return the pipeline of `steps`, all else alike."""
        return attrs.evolve(self, steps=steps)

    def with_option(self, name: str, option: str, value: str) -> Pipeline:
        """Return the pipeline whose passes `name` have `value` for an option, unless they have one."""
        return self.with_steps(
            tuple(
                Step(name, (*step.options, (option, value)))
                if step.name == name and option not in dict(step.options)
                else step
                for step in self.steps
            )
        )

    def through(self, name: str) -> Pipeline:
        """Return the pipeline up to the last pass `name`, that one included; without steps if there is none."""
        return self.with_steps(self.steps[: self._end_of(name)])

    def after(self, name: str) -> Pipeline:
        """Return the pipeline of what follows the last pass `name`; all of it if there is none."""
        return self.with_steps(self.steps[self._end_of(name) :])

    def before(self, name: str) -> Pipeline:
        """Return the pipeline of what precedes the first pass `name`; all of it if there is none."""
        return self.with_steps(tuple(itertools.takewhile(lambda step: step.name != name, self.steps)))

    def _end_of(self, name: str) -> int:
        return max((index for index, step in enumerate(self.steps, 1) if step.name == name), default=0)


def _named_topologies(own: object, plugins: PluginSet) -> dict[str, Topology]:
    """Return the machines that a pipeline knows by name besides the presets: those of plug-ins, and its own."""
    return {**plugins.topologies, **({own.name: own} if isinstance(own, Topology) else {})}


def _find_topology(topology: Topology | str | None, own: object, plugins: PluginSet) -> Topology:
    named = _named_topologies(own, plugins).get(topology) if isinstance(topology, str) else None
    return named or find_topology(topology)


def _completed(step: Step, offered: Mapping[str, str], plugins: PluginSet) -> Step:
    """Return `step` with the `offered` values for the options that it has and gives no value."""
    if not offered:
        return step
    known = pass_options(type(make_pass(step.name, dict(step.options), plugins.passes)))
    given = {key.replace("-", "_") for key, _ in step.options}
    added = [(option, text) for option, text in offered.items() if option in known and option not in given]
    return Step(step.name, (*step.options, *added))


@functools.cache
def _standard() -> Pipeline:
    return Pipeline()


def as_pipeline(given: Pipeline | str | None) -> Pipeline:
    """Return `given` as a Pipeline; the standard one if it is None.

    Raises:
        SpmdirError: it is neither, or malformed text.
    """
    if given is None:
        return _standard()
    return given if isinstance(given, Pipeline) else Pipeline(given)


PIPELINE = Kind(lambda value: value is None or isinstance(value, (str, Pipeline)), _EXPECTED)
"""What an argument `pipeline` of a public function may be."""


def _is_context(value: object) -> bool:
    from xdsl.context import Context

    return isinstance(value, Context)


def _record(step: ModulePass, functions: Sequence[FuncOp]) -> None:
    """Write on `functions` that a pass of a plug-in has run, and the stage that its class states to produce."""
    from spmdir.dialects.observed_stage import stage_of
    from spmdir.dialects.stage import is_at_least, record_pass, write_stage

    for function in functions:
        record_pass(function, step.name)
        produced: str | None = getattr(step, "produces", None)
        if produced is not None and not is_at_least(stage_of(function), produced):
            write_stage(function, produced)


After: TypeAlias = "Callable[[str, Callable[[], ModuleOp]], None]"
"""Called after a pass with its name, and a function that returns the module as it is then."""


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

    The given module is changed, so a second call goes on from where the first one ended. To run two pipelines on one
    program, parse or import it twice, or pass `module.clone()`.

    Args:
        module: at any stage; it is changed, and is left in an unspecified state after an error.
        pipeline: a Pipeline or its text; the standard one if None.
        verify_each: verify the module after every pass, not only after the last one.
        context: an IR context to use instead of a fresh one with the rules of the pipeline.
        after: called after every pass with its name and a function without arguments, which returns the module.

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
