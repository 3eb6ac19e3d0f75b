"""The process that law `processes` compares with: it prints the digests of placements that stdin names, as JSON."""

from __future__ import annotations

import json
import sys

from spmdir.checking.placements.process_laws import digests
from spmdir.core.errors import SpmdirError
from spmdir.core.placement.base import parse_placement
from spmdir.plugins import load_plugin


def main() -> None:
    """Print the digests of the placements that stdin asks for."""
    question = json.load(sys.stdin)
    load_plugin(question["source"])
    answers: dict[str, dict[str, str]] = {}
    for text in question["texts"]:
        try:
            answers[text] = digests(parse_placement(text))
        except SpmdirError as error:
            answers[text] = {"error": error.message}
        except Exception as error:
            answers[text] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
