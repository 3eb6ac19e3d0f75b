"""`spmd`: reports and checks of programs, rules and placements. Each subcommand is a module that is imported on use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType, ModuleType

from spmdir.core.errors import SpmdirError, did_you_mean
from spmdir.tools.argument_parser import ArgumentParser
from spmdir.tools.command import run_tool

SUBCOMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "report": "Print where a rank spends time and memory in one step.",
        "explain": "Explain the shardings and reshards of values, or show what another sharding would change.",
        "diff": "Compare two partitioned programs: time, bytes sent, memory, collectives and shardings.",
        "plan-model": "Compare the ways to train a model on a cluster: meshes, recipes, recomputation, micro-batches.",
        "pipeline": "Make or check the order of a pipeline-parallel step: time, lower bound, memory, diagram.",
        "plan-reshard": "Print the cheapest plan from one sharding to another, its cost and a lower bound.",
        "check-placement": "Check that the placements of plug-ins obey the laws of placements.",
        "check-rules": "Check sharding rules by running their ops on simulated ranks.",
    }
)
"""Subcommand → its description. Its module is `spmd_` and its name.

A module has `EXAMPLES`, the end of its help, `add_options(parser)`, and `run(options)`, which returns the exit status.
"""

_DESCRIPTION = "Answer questions about a program and about the rules and placements that it is partitioned with."
_EPILOG = "Each subcommand has its own options: see `spmd SUBCOMMAND --help`. To transform a program, use spmd-opt."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv`, by default the arguments of the process, and return the exit status."""
    return run_tool(_main, argv)


def _main(argv: Sequence[str]) -> int:
    """Run the subcommand that the first argument names, and return its exit status."""
    name = argv[0] if argv else ""
    if name in SUBCOMMANDS:
        return module_of(name).run(argument_parser(name).parse(argv[1:]))
    if name and not name.startswith("-"):
        problem = f"unknown subcommand '{name}'"
    else:
        argument_parser().parse(argv)
        problem = "no subcommand"
    expected = f"expected one of {', '.join(SUBCOMMANDS)}{did_you_mean(name, SUBCOMMANDS)}"
    raise SpmdirError(f"{problem}; {expected}; see spmd --help")


def module_of(name: str) -> ModuleType:
    """Return the module of a subcommand."""
    return import_module(f"spmdir.tools.spmd_{name.replace('-', '_')}")


def argument_parser(name: str = "") -> ArgumentParser:
    """Return the parser of a subcommand, or of the command itself."""
    if not name:
        return _CommandParser("spmd", usage="spmd SUBCOMMAND [options]", description=_DESCRIPTION, epilog=_epilog())
    module, prog = module_of(name), f"spmd {name}"
    parser = ArgumentParser(prog, is_whole=False, description=SUBCOMMANDS[name], epilog=module.EXAMPLES)
    module.add_options(parser)
    return parser


class _CommandParser(ArgumentParser):
    """The parser of the command itself. Subcommands have separate parsers, so that only the used one is imported."""

    def with_subcommands(self) -> ArgumentParser:
        """Add a parser for each subcommand, with its options, and return `self`.

        Completion scripts and the documentation need all options, so this imports the modules of all subcommands.
        """
        subparsers = self.add_subparsers()
        for name, sentence in SUBCOMMANDS.items():
            module_of(name).add_options(subparsers.add_parser(name, prog=f"spmd {name}", is_whole=False, help=sentence))
        return self


def _epilog() -> str:
    """Return the list of subcommands at the end of the help."""
    lines = [f"  {name:<17}{sentence}" for name, sentence in SUBCOMMANDS.items()]
    return "\n".join(["subcommands:", *lines, "", _EPILOG])


if __name__ == "__main__":
    raise SystemExit(main())
