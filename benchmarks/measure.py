"""What the benchmarks share: cold processes, CPU time, and tables with a target and a verdict."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import attrs


@attrs.frozen
class Row:
    """One measured figure.

    Attributes:
        what: its name.
        value: the figure.
        target: the most that it should be; None if it is only shown.
        at_least: the target is the least instead.
        form: how figures print, as in `str.format`.
        detail: where the figure comes from.
    """

    what: str
    value: float
    target: float | None = None
    at_least: bool = False
    form: str = "{:.2f}"
    detail: str = ""

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        met = self.value >= self.target if self.at_least else self.value <= self.target
        return "met" if met else "MISSED"


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Print figures, targets and verdicts, one row a line."""
    cells = [("", "measured", "target", "verdict", "")]
    for row in rows:
        target = "" if row.target is None else ("≥ " if row.at_least else "≤ ") + row.form.format(row.target)
        cells.append((row.what, row.form.format(row.value), target, row.verdict, row.detail))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}")
    for cell in cells:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(cell, widths, strict=True)).rstrip())
    print(flush=True)


def cold(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`, a function of a module, in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def cold_in_both_orders(*calls: tuple[Any, ...]) -> list[list[Any]]:
    """For each (function, *arguments) its results in two cold processes: once in this order, once in reverse."""
    results: list[list[Any]] = [[] for _ in calls]
    for order in (range(len(calls)), reversed(range(len(calls)))):
        for index in order:
            results[index].append(cold(*calls[index]))
    return results


class Stopwatch:
    """CPU seconds of the process by stage: other processes on the machine change it less than the wall clock.

    What is garbage when it starts is collected before.
    """

    def __init__(self) -> None:
        gc.collect()
        self.seconds: dict[str, float] = {}
        self._last = time.process_time()

    def lap(self, stage: str) -> None:
        """The time since the last lap was spent on `stage`."""
        now = time.process_time()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = time.process_time()


def peak_memory() -> float:
    """The largest resident size that this process had so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """An argparse type: `a,b` → [kind("a"), kind("b")]."""

    def parse(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]

    return parse


def options(doc: str | None) -> argparse.ArgumentParser:
    """An argument parser that describes itself by the first line of `doc`."""
    return argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
