"""A pipelined step as a value: its stages with their functions, the names of its tensors, and its order.

Its text is the body of `spmd.pipeline`:

    over pp = 2 micro 2 {
      batch x, y
      state lr, parameters
      sums gradients, loss
      outputs add_7
      stage 0 at 0: F @stage0.forward, B @stage0.backward, U @stage0.update
      stage 1 at 1: F @stage1.forward, B @stage1.backward, U @stage1.update
      order
        0F0 0F0>1 0F1 0F1>1 1F0 1B0 1B0>0 0B0 1F1 1B1 1B1>0 0B1 0U0 1U0
    }
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import attrs

from spmdir.core.errors import ParseError
from spmdir.pipelined.actions import Action, Entry, Kind, parse_entry

LISTS = ("batch", "state", "sums", "outputs")
"""The lists of names of a step, as in its text."""

_HEADER = re.compile(r"\s*over\s+([A-Za-z_]\w*)\s*=\s*([0-9]{1,6})\s+micro\s+([0-9]{1,6})\s*\{", re.ASCII)
_STAGE = re.compile(r"stage\s+([0-9]{1,6})\s+at\s+([0-9]{1,6})\s*:\s*(.*)")
_FUNCTION = re.compile(r"([FIWBU])\s+@([A-Za-z_][\w.$]*)", re.ASCII)
_WIDTH = 110


@attrs.frozen
class Stage:
    """A stage of the model.

    Attributes:
        coordinate: its coordinate on the pipeline axis.
        functions: (kind, name of the function). There is a `U` for each round of the update.
    """

    coordinate: int
    functions: tuple[tuple[Kind, str], ...]


@attrs.frozen
class PipelinedStep:
    """A training step whose stages are on the coordinates of a pipeline axis.

    Attributes:
        axis: the name of the pipeline axis. The mesh of the module does not have it.
        ranks: the size of the axis.
        micro: the number of micro-batches.
        batch: the names of the inputs. Each is cut into micro-batches along its first dimension.
        state: the names of tensors that are kept from step to step, or their part before the first dot.
        sums: as `state`, for the tensors that are sums over micro-batches. They are 0 when a step starts.
        outputs: the names of the results of the step, each computed in an update.
        stages: the stages, in the order of the model.
        entries: the order; () if it is not decided.
    """

    axis: str
    ranks: int
    micro: int
    batch: tuple[str, ...]
    state: tuple[str, ...]
    sums: tuple[str, ...]
    outputs: tuple[str, ...]
    stages: tuple[Stage, ...]
    entries: tuple[Entry, ...] = ()

    @property
    def coordinates(self) -> tuple[int, ...]:
        """Return [stage], its coordinate."""
        return tuple(stage.coordinate for stage in self.stages)

    @property
    def is_split(self) -> bool:
        """Return whether backward is split into `I` and `W`."""
        return any(kind in "IW" for stage in self.stages for kind, _ in stage.functions)

    def is_sum(self, name: str) -> bool:
        """Return whether `name` is a sum over micro-batches."""
        return _is_listed(name, self.sums)

    def is_state(self, name: str) -> bool:
        """Return whether a stage keeps the tensor `name`: it is state, or a sum."""
        return _is_listed(name, self.state) or self.is_sum(name)

    def functions(self) -> Iterator[tuple[Action, str]]:
        """Yield (action, name of its function). Micro-batch 0 represents all micro-batches."""
        for number, stage in enumerate(self.stages):
            rounds = itertools.count()
            for kind, name in stage.functions:
                yield Action(number, kind, next(rounds) if kind == "U" else 0), name


def _is_listed(name: str, names: Sequence[str]) -> bool:
    return name in names or name.partition(".")[0] in names


def print_step(step: PipelinedStep) -> str:
    """Return the text of a step."""
    lines = [f"over {step.axis} = {step.ranks} micro {step.micro} {{"]
    for key in LISTS:
        if names := getattr(step, key):
            lines += _wrap(f"  {key} ", [f"{name}," for name in names[:-1]] + [names[-1]])
    for number, stage in enumerate(step.stages):
        functions = ", ".join(f"{kind} @{name}" for kind, name in stage.functions)
        lines.append(f"  stage {number} at {stage.coordinate}: {functions}")
    if step.entries:
        lines += ["  order", *_wrap("    ", list(map(str, step.entries)))]
    return "\n".join([*lines, "}"])


def _wrap(start: str, words: Sequence[str]) -> list[str]:
    """Return `start`, which ends in a space, and words, as lines of at most `_WIDTH` characters if possible.

    Later lines are indented by the length of `start`.
    """
    lines, line = [], start[:-1]
    for word in words:
        if len(line) + 1 + len(word) > _WIDTH and line.strip():
            lines.append(line)
            line = " " * (len(start) - 1)
        line += f" {word}"
    return [*lines, line]


class StepTextError(ParseError):
    """An error in the text of a step, at an offset of the text."""

    def __init__(self, message: str, offset: int):
        super().__init__(message)
        self.offset = offset


@attrs.frozen
class ParsedStep:
    """A step with the offsets of its parts in the text.

    Attributes:
        entries: [entry], its offset.
        stages: [stage], the offset of its line.
        end: the offset after the closing brace.
    """

    step: PipelinedStep
    entries: tuple[int, ...]
    stages: tuple[int, ...]
    end: int


def parse_step(text: str, start: int = 0) -> ParsedStep:
    """Parse the text of a step that begins at the offset `start` of `text`.

    Raises:
        StepTextError: the text is malformed.
    """
    header = _HEADER.match(text, start)
    if header is None:
        first_line = text[start:].strip().partition("\n")[0][:40]
        raise StepTextError(
            f"the step begins with '{first_line}'; expected the axis with its size, and the number of micro-batches, "
            "as in `over pp = 2 micro 4 {`",
            start,
        )
    end = text.find("}", header.end())
    if end < 0:
        raise StepTextError("'{' is not closed; expected '}' after the order", header.end() - 1)
    lists: dict[str, tuple[str, ...]] = dict.fromkeys(LISTS, ())
    stages: list[tuple[Stage, int]] = []
    entries: list[tuple[Entry, int]] = []
    clause = ""
    for line, offset in _lines(text, header.end(), end):
        word, _, rest = line.partition(" ")
        if word in LISTS:
            clause = word
            lists[clause] = _names(rest, offset)
        elif word == "stage":
            clause = word
            stages.append((_parse_stage(line, offset, len(stages)), offset))
        elif word == "order" or clause == "order":
            begin = offset + (len(word) if word == "order" else 0)
            clause = "order"
            entries += _parse_entries(line.removeprefix("order"), begin)
        elif clause in LISTS:
            lists[clause] += _names(line, offset)
        else:
            raise StepTextError(f"unknown clause '{word}'; expected one of {', '.join(LISTS)}, stage or order", offset)
    axis, ranks, micro = header.groups()
    step = PipelinedStep(
        axis,
        int(ranks),
        int(micro),
        **lists,
        stages=tuple(stage for stage, _ in stages),
        entries=tuple(entry for entry, _ in entries),
    )
    places = tuple(offset for _, offset in entries), tuple(offset for _, offset in stages)
    return ParsedStep(step, *places, end + 1)


def _lines(text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
    """Yield the lines between two offsets that are not empty, without comments, each with its offset."""
    offset = start
    for line in text[start:end].split("\n"):
        content = line.partition("//")[0]
        if content.strip():
            yield content.strip(), offset + len(content) - len(content.lstrip())
        offset += len(line) + 1


def _names(text: str, offset: int) -> tuple[str, ...]:
    """Return the names in a comma-separated list, which is at `offset` of the text."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if len(name.split()) > 1:
            raise StepTextError(f"found '{name}'; expected names of tensors, separated by commas", offset)
    return names


def _parse_stage(line: str, offset: int, number: int) -> Stage:
    """Parse the line of stage `number`, which is at `offset` of the text: `stage 1 at 0: F @forward, B @backward`."""
    match = _STAGE.fullmatch(line)
    if match is None or int(match[1]) != number:
        raise StepTextError(
            f"found '{line}'; expected `stage {number} at 0: F @forward, B @backward, U @update`", offset
        )
    functions: list[tuple[Kind, str]] = []
    for text in match[3].split(","):
        function = _FUNCTION.fullmatch(text.strip())
        if function is None:
            raise StepTextError(
                f"found '{text.strip()}'; expected the kind of an action, one of F, B, I, W and U, and a function, "
                "as in `F @forward`",
                offset,
            )
        functions.append((function[1], function[2]))  # type: ignore[arg-type]  # the pattern has the kinds
    return Stage(int(match[2]), tuple(functions))


def _parse_entries(text: str, offset: int) -> Iterator[tuple[Entry, int]]:
    """Yield the actions and messages of a line of the order, such as `0F0 0F0>1`, each with its offset in the text."""
    for match in re.finditer(r"\S+", text):
        entry = parse_entry(match[0])
        if entry is None:
            raise StepTextError(
                f"invalid entry '{match[0]}'; expected an action such as 0F0, or a message such as 0F0>1",
                offset + match.start(),
            )
        yield entry, offset + match.start()
