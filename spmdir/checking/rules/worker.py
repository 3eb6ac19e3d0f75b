"""The main module of a worker process: it reads pickled jobs from stdin, and writes steps and answers to stdout."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from spmdir.checking.rules.call_checks import check_op
from spmdir.checking.rules.captured import capture, opinfo_names
from spmdir.checking.rules.report import OpReport
from spmdir.checking.rules.samples import all_samples
from spmdir.checking.rules.samples.sample import Sample
from spmdir.checking.rules.schema import check_schema
from spmdir.checking.rules.worker_options import Options, Setup
from spmdir.core.errors import SpmdirError, SpmdirErrors
from spmdir.plugins import extended_rules, load_plugins
from spmdir.rules import RuleSet
from spmdir.rules.rule_set import default


class Session:
    """The rules and samples of a worker. A job is (method name, *arguments) of this class."""

    def __init__(self, setup: Setup, say: Callable[[str], None]):
        """Load the plug-ins and samples of `setup`. Jobs describe each of their steps by `say`."""
        self.say = say
        self.rules: RuleSet = extended_rules(load_plugins(setup.plugins))
        self.samples_of_op: dict[str, list[Sample]] = {}
        plugin_samples = _samples_of(setup.samples) if setup.samples else []
        for sample in [*plugin_samples, *all_samples(default())]:
            self.samples_of_op.setdefault(sample.op, []).append(sample)

    def opinfos(self) -> tuple[list[str], str | None]:
        """Return the names of torch's OpInfos, and the reason if they cannot be loaded."""
        return opinfo_names()

    def capture(self, index: int, selected: frozenset[str] | None) -> list[tuple[str, str, bytes]]:
        """Return the calls in the samples of one OpInfo, see `captured.capture`."""
        self.say("running its OpInfo samples")
        return capture(index, selected)

    def check(self, op: str, captured: tuple[bytes, ...], options: Options) -> OpReport:
        """Check one op on the samples of this worker and on captured, pickled samples."""
        check_schema(op, self.rules)
        samples = [*self.samples_of_op.get(op, ()), *map(pickle.loads, captured)]
        return check_op(op, samples, self.rules, options, self.say)


def _samples_of(path: str) -> list[Sample]:
    """Return the samples of a Python file: the result of its function `samples`."""
    spec = spec_from_file_location("spmdir_samples", path)
    if spec is None or spec.loader is None:
        raise SpmdirError(f"'{path}' is not a Python file; expected a file FILE.py with samples: pass such a file")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return list(module.samples())
    except OSError as error:
        raise SpmdirError(
            f"cannot read samples from '{path}': {error.strerror}; expected a readable file: correct the path"
        ) from None
    except Exception as error:
        raise SpmdirError(
            f"the file of samples '{path}' failed: {type(error).__name__}: {error}; expected a file that Python "
            "can import: correct it"
        ) from None


def serve(session_of: Callable[[Any, Callable[[str], None]], Any]) -> None:
    """Answer jobs from stdin until it ends; `pool.Worker` describes the messages.

    Args:
        session_of: (setup, function that reports a step) → the object whose methods run jobs. The first job creates it,
            because creating it may fail.
    """
    # Output of native code must not mix with the answers.
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")

    def send(kind: str, value: Any) -> None:
        """Send a message to the parent process."""
        pickle.dump((kind, value), channel)
        channel.flush()

    source, session = sys.stdin.buffer, None
    setup = pickle.load(source)
    while True:
        try:
            method, *arguments = pickle.load(source)
        except EOFError:
            return
        try:
            if session is None:
                session = session_of(setup, lambda stage: send("stage", stage))
            send("answer", getattr(session, method)(*arguments))
        except SpmdirError as error:
            errors = error.errors if isinstance(error, SpmdirErrors) else [error]
            send("rejected", [(mistake.message, mistake.location) for mistake in errors])
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            send("failure", f"{type(error).__name__}: {error} ({os.path.basename(frame.filename)}:{frame.lineno})")


if __name__ == "__main__":
    serve(Session)
