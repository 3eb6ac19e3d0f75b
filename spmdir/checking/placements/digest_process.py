"""Print the digests of placements in a separate process, for the law "processes".

Stdin has the file or module that declares the placements as `source`, and their `texts`, as JSON.
"""

from __future__ import annotations

import json
import sys

from spmdir.checking.placements.process_laws import digests
from spmdir.core.errors import SpmdirError
from spmdir.core.placement.base import parse_placement
from spmdir.plugins import load_plugin


def main() -> None:
    """Print the digests of the placements on stdin, or the error of each, as one line of JSON."""
    request = json.load(sys.stdin)
    load_plugin(request["source"])
    digests_of_texts: dict[str, dict[str, str]] = {}
    for text in request["texts"]:
        try:
            digests_of_texts[text] = digests(parse_placement(text))
        except SpmdirError as error:
            digests_of_texts[text] = {"error": error.message}
        except Exception as error:
            digests_of_texts[text] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(digests_of_texts))


if __name__ == "__main__":
    main()
