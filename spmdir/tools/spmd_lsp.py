"""`spmd-lsp`: the language server of programs, rules and rewrites."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from spmdir import __version__
from spmdir.core.errors import SpmdirError
from spmdir.tools.argument_parser import ArgumentParser
from spmdir.tools.command import run_tool

_DESCRIPTION = "Serve an editor as a language server for programs, rules and rewrites, over stdin and stdout."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv`, by default the arguments of the process, and return the exit status."""
    return run_tool(_main, argv)


def _main(argv: Sequence[str]) -> int:
    """Serve an editor until it ends the session."""
    options = argument_parser().parse(argv)
    if find_spec("pygls") is None:
        raise SpmdirError(
            "the package pygls is missing; expected it for the language server: run pip install 'spmdir[lsp]'"
        )
    from spmdir.language_server.server import language_server
    from spmdir.pipeline.pipeline import Pipeline

    pipeline = Pipeline(plugins=options.load_plugin, topology=options.topology, costs=options.costs)
    language_server(pipeline, __version__).start_io()
    return 0


def argument_parser() -> ArgumentParser:
    """Return the options of the tool."""
    parser = ArgumentParser("spmd-lsp", description=_DESCRIPTION)
    parser.add_plugins()
    parser.add_machine()
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
