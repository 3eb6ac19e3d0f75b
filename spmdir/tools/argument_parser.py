"""The parser of command lines that all tools share: common options, the types of their values, errors with hints."""

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
    """Prints a completion script for a shell, and ends the tool."""

    def __call__(self, parser: argparse.ArgumentParser, *values: Any) -> NoReturn:
        assert isinstance(parser, ArgumentParser)
        from spmdir.tools.shell_completion import completion_script  # 30 ms, and only completion needs it

        print(completion_script(parser.with_subcommands(), parser.passes, values[1]))
        parser.exit()


class ArgumentParser(argparse.ArgumentParser):
    """An argument parser whose errors are SpmdirErrors that name the nearest option.

    It has the options that several tools share: each `add_` method is the one place where an option is described.
    """

    passes: Sequence[str] = ()
    """The passes of a tool that accepts each pass as a flag."""

    def __init__(self, prog: str, is_whole: bool = True, add_help: bool = True, **options: Any):
        """Make a parser; a whole one, which is not a part or a subcommand, has `--version` and `--print-completion`."""
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
        """Return a parser that has the options of all subcommands, from which completion scripts are made."""
        return self

    def add_input(self, name: str = "input", is_optional: bool = False, about: str = "") -> None:
        """Add the positional argument that names a program."""
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
            help="Load a .rules or .rewrites file, a .py file or module, which is executed, or an installed plug-in. "
            "The option may be repeated.",
        )

    def add_color(self) -> None:
        """Add the option for coloured output; see `in_colour`."""
        explained = "Colour the output; auto, the default, does so on a terminal unless NO_COLOR is set."
        self.add_argument("--color", choices=("auto", "always", "never"), default="auto", help=explained)

    def add_machine(self) -> None:
        """Add the options that choose the machine that costs are modelled for."""
        explained = (
            "Model costs for this machine, a preset or a .toml file (default: what the program was decided for)."
        )
        self.add_argument("--topology", metavar="NAME", help=explained)
        explained = "Take measured times from FILE where it has them, instead of modelled ones."
        self.add_argument("--costs", metavar="FILE", help=explained)

    def add_pipeline(self) -> None:
        """Add the options that choose the passes which a program at any stage still needs."""
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
            passes: names of passes, which are flags too.
            moved: options that another command has, and that command.
        """
        self.passes = passes
        options, unknown = self.parse_known_intermixed_args(argv)
        if unknown:
            name, known = unknown[0].partition("=")[0], [*self._option_string_actions, *(f"--{one}" for one in passes)]
            hint = f"; use `{moved[name]}`" if moved and name in moved else did_you_mean(name, known)
            self.error(f"unknown option '{name}'{hint}")
        return options

    def error(self, message: str) -> NoReturn:
        raise SpmdirError(f"{message}; see {self.prog} --help")


def pipeline_of(options: argparse.Namespace) -> Pipeline:
    """Return the pipeline that the options of `add_pipeline` and `add_machine` choose."""
    from spmdir.pipeline.pipeline import STANDARD, Pipeline  # which --help does without

    topology, costs = (getattr(options, name, None) for name in ("topology", "costs"))
    return Pipeline(options.pass_pipeline or STANDARD, plugins=options.load_plugin, topology=topology, costs=costs)


def mesh_axes(text: str) -> list[tuple[str, int]]:
    """Return name and size of each mesh axis in `dp=2,tp=4` or `2x4`, whose axes are a, b, …

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
    """Return the number of each size in `s0=8,s1=5`; for argparse.

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


def count(of: str, least: int, most: int) -> Callable[[str], int]:
    """Return a function for argparse that reads a number of `of`, an integer from `least` to `most`.

    It raises ArgumentTypeError for any other text.
    """

    def read(text: str) -> int:
        try:
            number = integer(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            expected = f"expected a number from {least} to {most}"
            raise argparse.ArgumentTypeError(f"invalid number of {of} {shown(text)}; {expected}")
        return number

    return read
