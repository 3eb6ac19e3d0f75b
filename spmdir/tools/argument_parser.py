"""The command-line parser of all tools: shared options, types of values, and errors with hints."""

from __future__ import annotations

import argparse
import itertools
import string
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from spmdir import __version__
from spmdir.core.errors import ParseError, SpmdirError, did_you_mean, shown
from spmdir.core.number_text import integer

if TYPE_CHECKING:
    from spmdir.pipeline.pipeline import Pipeline

SHELLS = ("bash", "zsh", "tcsh")
"""The shells whose completion can be printed."""


class _PrintCompletion(argparse.Action):
    """Print a completion script for a shell, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *values: Any) -> NoReturn:
        """Print the script; `values` are the arguments of argparse: (namespace, name of the shell, option)."""
        assert isinstance(parser, ArgumentParser)
        from spmdir.tools.shell_completion import completion_script  # 30 ms, and only completion needs it

        print(completion_script(parser.with_subcommands(), parser.passes, values[1]))
        parser.exit()


class ArgumentParser(argparse.ArgumentParser):
    """An argument parser whose errors are SpmdirErrors that name the nearest option.

    Each `add_` method adds options that several tools share.
    """

    passes: Sequence[str] = ()
    """The passes of a tool that accepts each pass as a flag."""

    def __init__(self, prog: str, is_whole: bool = True, add_help: bool = True, **options: Any):
        """Create a parser.

        Args:
            prog: the command in usage and errors, such as `spmd report`.
            is_whole: whether the parser is for a whole tool, not for a subcommand. It then has the options `--version`
                and `--print-completion`.
            add_help: whether it has the option `--help`.
            options: further arguments of `argparse.ArgumentParser`.
        """
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, formatter_class=raw, allow_abbrev=False, add_help=False, **options)
        if add_help:
            self.add_argument("-h", "--help", action="help", help="Print this help and exit.")
        if is_whole:
            version = f"{prog} {__version__}"
            self.add_argument("--version", action="version", version=version, help="Print the version and exit.")
            self.add_argument(
                "--print-completion",
                action=_PrintCompletion,
                choices=SHELLS,
                help="Print a script that makes this shell complete the command line, and exit.",
            )

    def with_subcommands(self) -> ArgumentParser:
        """Return a parser with the options of all subcommands, for completion scripts."""
        return self

    def add_input(self, name: str = "input", is_optional: bool = False, about: str = "") -> None:
        """Add the positional argument for a program."""
        if is_optional:
            explained = "The program as IR text; - or no argument reads stdin."
            self.add_argument(name, nargs="?", default="-", help=explained)
        else:
            self.add_argument(name, help=f"The program{about} as IR text; - reads stdin.")

    def add_output(self) -> None:
        """Add the option that names an output file."""
        self.add_argument("-o", dest="output", metavar="FILE", help="Write the output to FILE instead of stdout.")

    def add_plugins(self) -> None:
        """Add the option that loads plug-ins."""
        self.add_argument_group("plug-ins").add_argument(
            "--load-plugin",
            action="append",
            default=[],
            metavar="PLUGIN",
            help="Load a .rules or .rewrites file, a .py file or module, or an installed plug-in. Python "
            "code is executed. The option may be repeated.",
        )

    def add_color(self) -> None:
        """Add the option for coloured output: see `in_colour`."""
        explained = "Colour the output; auto, the default, does so on a terminal unless NO_COLOR is set."
        self.add_argument("--color", choices=("auto", "always", "never"), default="auto", help=explained)

    def add_machine(self) -> None:
        """Add the options for the machine of modelled costs."""
        explained = "Model costs for this machine, a preset or a .toml file (default: the machine of propagate)."
        self.add_argument("--topology", metavar="NAME", help=explained)
        explained = "Use measured times from FILE in place of modelled ones, for the lines that FILE has."
        self.add_argument("--costs", metavar="FILE", help=explained)

    def add_pipeline(self) -> None:
        """Add the options for the pipeline of passes that a program at any stage still needs."""
        self.add_plugins()
        self.add_argument(
            "-p",
            "--pass-pipeline",
            metavar="PIPELINE",
            help="Run the passes of this pipeline that the program still needs, as in 'a,b{option=value}' "
            "(default: the standard pipeline).",
        )

    def parse(
        self, argv: Sequence[str], passes: Sequence[str] = (), moved: Mapping[str, str] | None = None
    ) -> argparse.Namespace:
        """Return the options in `argv`.

        Args:
            passes: names of passes, which are also flags.
            moved: option of another command → that command, for the hint of the error.
        """
        self.passes = passes
        options, unknown = self.parse_known_intermixed_args(argv)
        if unknown:
            name = unknown[0].partition("=")[0]
            option_names = [*self._option_string_actions, *(f"--{pass_name}" for pass_name in passes)]
            hint = f"; use `{moved[name]}`" if moved and name in moved else did_you_mean(name, option_names)
            self.error(f"unknown option '{name}'{hint}")
        return options

    def error(self, message: str) -> NoReturn:
        raise SpmdirError(f"{message}; see {self.prog} --help")


def pipeline_of(options: argparse.Namespace) -> Pipeline:
    """Return the pipeline for the options of `add_pipeline` and `add_machine`."""
    from spmdir.pipeline.pipeline import STANDARD, Pipeline  # --help does not need it

    topology, costs = (getattr(options, name, None) for name in ("topology", "costs"))
    return Pipeline(options.pass_pipeline or STANDARD, plugins=options.load_plugin, topology=topology, costs=costs)


def parse_mesh_axes(text: str) -> list[tuple[str, int]]:
    """Return the name and size of each mesh axis in `dp=2,tp=4`, or in `2x4` with the names a, b, …

    Raises:
        ParseError: the text is malformed.
    """
    parts = text.split(",") if "=" in text else text.replace("x", ",").split(",")
    axes: list[tuple[str, int]] = []
    for letter, part in zip(itertools.chain(string.ascii_lowercase, itertools.repeat("")), parts, strict=False):
        name, named, size = map(str.strip, part.rpartition("="))
        name = name if named else letter
        if not name.isidentifier() or not (size.isascii() and size.isdecimal()) or len(size) > 18:
            expected = "expected name=size, as in dp=2,tp=4, or sizes alone, as in 2x4"
            raise ParseError(f"{shown(part)} is not a mesh axis; {expected}")
        axes.append((name, int(size)))
    return axes


def parse_sizes(text: str) -> dict[str, int]:
    """Return the number of each symbolic size in `s0=8,s1=5`, for argparse.

    Raises:
        ArgumentTypeError: the text is malformed.
    """
    sizes: dict[str, int] = {}
    for part in filter(str.strip, text.split(",")):
        name, _, number = map(str.strip, part.partition("="))
        if not name.isidentifier() or not number.isdecimal() or len(number) > 18:
            raise argparse.ArgumentTypeError(f"'{part}' is not a size; expected name=number, as in s0=8,s1=5")
        sizes[name] = int(number)
    return sizes


def number_parser(noun: str, least: int, most: int) -> Callable[[str], int]:
    """Return a function for argparse that parses an integer from `least` to `most`.

    The function raises ArgumentTypeError for any other text.

    Args:
        noun: the counted things, such as "rows", for its errors.
    """

    def read(text: str) -> int:
        """Return the integer in `text`, which must be from `least` to `most`."""
        try:
            number = integer(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            expected = f"expected a number from {least} to {most}"
            raise argparse.ArgumentTypeError(f"invalid number of {noun} {shown(text)}; {expected}")
        return number

    return read
