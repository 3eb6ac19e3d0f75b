"""What explains a value: plain values, and their text."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.byte_size import size_text
from spmdir.core.errors import Location, printable
from spmdir.core.html_text import ShownAsText
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.time_text import time_text

LISTED = 4
"""How many equal values are named, and how many at each end of a chain of values."""


@attrs.frozen
class Choice:
    """What an op does on one mesh axis, and what it would do next best.

    Attributes:
        axis: of the mesh.
        chosen: its strategy.
        other: the strategy that it gets if it may not have that one; empty if there is none.
        seconds: how long a step of a rank takes then, decided again; None if there is no other strategy.
        reasons: why there is no other.
        sought: which others count, as text; all if empty.
    """

    axis: str
    chosen: str
    other: str = ""
    seconds: float | None = None
    reasons: tuple[str, ...] = ()
    sought: str = ""

    def text(self, seconds: float) -> str:
        """Return the strategy, and the next best beside a step of so many `seconds`."""
        if self.seconds is None:
            return f"strategy {self.chosen}; no other{self.sought}{''.join(f'; {reason}' for reason in self.reasons)}"
        return f"strategy {self.chosen}; next best{self.sought} {self.other}: {_beside(self.seconds, seconds)}"


@attrs.frozen
class Source:
    """An annotation that a placement follows from.

    Attributes:
        name: what is annotated.
        placement: what the annotation says on the axis.
        through: the values between, in order.
        without: the placement on the axis that is decided if the annotation leaves the axis open.
        seconds: how long a step of a rank takes then.
    """

    name: str
    placement: str
    through: tuple[str, ...]
    without: str
    seconds: float

    def text(self, seconds: float) -> str:
        """Return where the annotation is, and what is decided without it beside a step of so many `seconds`."""
        through = f", through {_chain(self.through)}" if self.through else ""
        without = f"without it {self.without}: {_beside(self.seconds, seconds)}"
        return f"{self.name}, annotated {self.placement}{through}; {without}"


@attrs.frozen
class AxisReason:
    """Why a value is placed as it is on one mesh axis.

    Attributes:
        placement: as decided.
        choice: what the op that makes it does.
        sources: the annotations that it follows from, the nearest first.
    """

    placement: str
    choice: Choice
    sources: tuple[Source, ...]


@attrs.frozen
class UserReason:
    """Why an op takes a value as it does.

    Attributes:
        name: of its first result; of a result of the function, what it is.
        op: what it is, `result` for one of the function.
        location: of it in the source.
        choices: what it does on the axes that are resharded.
        times: how many equal ops of equal layers take it so.
    """

    name: str
    op: str
    location: Location | None
    choices: tuple[Choice, ...]
    times: int = 1


@attrs.frozen
class Delivery:
    """A sharding in which a value is taken: what is sent for it, once for all who take it so.

    Attributes:
        needs: the sharding.
        steps: collectives on the way, as text; none if the value is made so.
        wire_bytes: what the busiest rank sends on the way.
        seconds: what the way takes.
        users: who takes it so.
    """

    needs: str
    steps: tuple[str, ...]
    wire_bytes: float
    seconds: float
    users: tuple[UserReason, ...]

    def lines(self, seconds: float) -> list[str]:
        """Return the text, the alternatives beside a step of so many `seconds`."""
        sent = f"{', '.join(self.steps)}, {size_text(self.wire_bytes)} sent, {time_text(self.seconds)}"
        lines = [f"  used as <{self.needs}>: {sent}" if self.steps else "  used as it is"]
        for user in self.users:
            what = "" if user.op == "result" else f" = {user.op}{_place(user.location)}"
            lines.append(f"    by {user.name}{what}{f' × {user.times}' if user.times > 1 else ''}")
            lines += [f"      {choice.axis}: {choice.text(seconds)}" for choice in user.choices]
        return lines


@attrs.frozen
class Explanation(ShownAsText):
    """Why a value is sharded as it is, and why it is resharded.

    Attributes:
        name: of the value, as in the text.
        op: that makes it, or `argument`.
        location: of that in the source; None if it is not known.
        times: how many equal values of equal layers are decided together with it.
        meta: its global shape and element type.
        sharding: as decided.
        local_bytes: what the first rank has of it.
        axes: by mesh axis, why.
        deliveries: in which shardings it is taken, and by whom.
        seconds: how long a step of a rank takes.
        likewise: names of equal values of other layers, which are decided by themselves, but so too.
    """

    name: str
    op: str
    location: Location | None
    times: int
    meta: TensorMeta
    sharding: Sharding
    local_bytes: float
    axes: tuple[AxisReason, ...]
    deliveries: tuple[Delivery, ...]
    seconds: float
    likewise: tuple[str, ...] = ()

    def __str__(self) -> str:
        alike = f", one of {self.times} alike" if self.times > 1 else ""
        held = f"{size_text(self.local_bytes)} of {size_text(self.meta.bytes)}"
        lines = [f"{self.name} = {self.op} : {self.meta} <{self.sharding}>{_place(self.location)}{alike}"]
        if self.likewise:
            lines.append(f"  likewise {_listed(self.likewise)}; alternatives are those of the first")
        lines += [f"  a rank has {held}; objective {time_text(self.seconds)}"]
        for one in self.axes:
            lines += [f"  {one.choice.axis}: {one.placement}", f"    {one.choice.text(self.seconds)}"]
            lines += [f"    from {source.text(self.seconds)}" for source in one.sources]
            if not one.sources and one.placement != "R":
                lines.append("    from no annotation")
        return "\n".join([*lines, *(line for one in self.deliveries for line in one.lines(self.seconds))])


@attrs.frozen
class Explanations(ShownAsText):
    """Why the values that a question names are as they are.

    Attributes:
        values: those whose reshards take most time, longest first.
        left_out: how many more the question names, equal ones of equal layers counted once.
        differing: of a text that was decided, names of the values that came out otherwise when it was decided again.
    """

    values: tuple[Explanation, ...]
    left_out: int = 0
    differing: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = [f"{self.left_out} more; ask for them by name, or for more with --most"] if self.left_out else []
        if self.differing:
            named = _listed(self.differing)
            more.append(f"decided again, {named} came out otherwise than in the text; the above holds of that decision")
        return "\n\n".join([*map(str, self.values), *more])


def percent_text(before: float, after: float) -> str:
    """Return by how much a number grows; one that is rounded to nothing has no minus."""
    return f"{round(100 * (after / before - 1), 1) + 0.0:+.1f} %"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:LISTED])}{f' and {len(names) - LISTED} more' if len(names) > LISTED else ''}"


def _chain(names: Sequence[str]) -> str:
    """Return the names of values one after the other; of many, those at both ends."""
    left_out = len(names) - 2 * LISTED
    if left_out < 2:
        return ", ".join(names)
    return ", ".join([*names[:LISTED], f"{left_out} more", *names[-LISTED:]])


def _place(location: Location | None) -> str:
    return f"  {printable(location.file)}:{location.line}" if location is not None else ""


def _beside(seconds: float, now: float) -> str:
    return f"objective {time_text(seconds)}, {percent_text(now, seconds)}"
