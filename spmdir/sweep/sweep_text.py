"""The result of a sweep as text, JSON, CSV and HTML."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

from spmdir.core.byte_size import size_text
from spmdir.report.op_sums import table
from spmdir.sweep.sweep import Setting, Sweep

MAX_ROWS = 20
"""The number of settings of the printed table."""

_CHART_WIDTH, _CHART_HEIGHT = 60, 12
"""The size of the chart in characters."""

_MEMORY = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer state": "optimizer",
    "activations": "activations",
}
"""Kind of memory → its column; `other` has the rest."""

_HEADER = (
    "mesh", "recipe", "micro-batches", "recompute", "regather", "step s", "exposed s", "idle s",
    "tokens/s/rank", "MFU", "peak GB", *_MEMORY.values(), "other", "certificate",
)  # fmt: skip


def sweep_text(sweep: Sweep, most: int = MAX_ROWS) -> str:
    """Return the table of a sweep, a chart of time and memory, and the reasons for skipped candidates.

    Args:
        most: the number of settings in the table.
    """
    fitting = [setting for setting in sweep.settings if setting.fits]
    shown = fitting[:most]
    lines = [_heading(sweep), *_table(sweep, shown)]
    if len(fitting) > len(shown):
        lines.append(f"… {len(fitting) - len(shown)} more that fit")
    if len(sweep.pareto) > 1:
        lines += _chart(sweep)
    too_large = len(sweep.settings) - len(fitting)
    if not fitting:
        smallest = sorted(sweep.settings, key=lambda setting: setting.costs.peak_bytes)[:3]
        lines += ["nothing fits; the settings with the least memory:", *_table(sweep, smallest)]
    elif too_large:
        lines.append(f"{too_large} settings do not fit")
    for reason, count in Counter(skipped.reason for skipped in sweep.skipped).most_common():
        examples = [str(skipped.candidate) for skipped in sweep.skipped if skipped.reason == reason][:3]
        lines.append(f"skipped {', '.join(examples)}{', …' if count > len(examples) else ''}: {reason}")
    return "\n".join(lines) + "\n"


def _table(sweep: Sweep, settings: Sequence[Setting]) -> list[str]:
    """Return the lines of a table of settings; none without settings."""
    if not settings:
        return []
    columns = _columns(sweep)
    return table([columns, *(_cells(sweep, setting) for setting in settings)], range(5, len(columns)))


def _heading(sweep: Sweep) -> str:
    """Return the line that describes the request."""
    request = sweep.request
    limit = f"at most {size_text(request.memory)} a rank" if request.memory < math.inf else "no memory limit"
    return (
        f"{request.workload.name}: {sweep.parameters / 1e9:.4g} billion parameters, {request.samples} samples of "
        f"{request.workload.sequence} tokens a step, {request.ranks} ranks of {request.machine}, {limit}"
    )


def _cells(sweep: Sweep, setting: Setting) -> tuple[str, ...]:
    texts = {column: _format(value) for column, value in record(sweep, setting).items() if column != "certificate"}
    texts["certificate"] = "-" if setting.gap is None else f"{setting.gap:.2%}"
    return tuple(texts[column] for column in _columns(sweep))


def _columns(sweep: Sweep) -> tuple[str, ...]:
    """Return the columns of the table. Without stages, no accelerator waits for others."""
    has_stages = any(setting.candidate.stages > 1 for setting in sweep.settings)
    return tuple(column for column in _HEADER if has_stages or column != "idle s")


def _format(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def record(sweep: Sweep, setting: Setting) -> dict[str, Any]:
    """Return column → value of a setting. Times are in seconds, memory in GB, MFU and certificate are fractions of 1.

    The certificate is None if it was not proved.
    """
    costs, layers = setting.costs, sweep.request.layers
    memory = {column: max(costs.memory.get(kind, 0.0), 0.0) / 1e9 for kind, column in _MEMORY.items()}
    values = (
        setting.candidate.shape,
        setting.candidate.recipe,
        str(setting.micro_batches),
        f"{setting.recomputed} of {layers}" if setting.recomputed else "none",
        "yes" if setting.regathers else "no",
        costs.seconds,
        costs.exposed_seconds,
        costs.idle_seconds,
        sweep.tokens_per_second(setting),
        sweep.utilisation(setting),
        costs.peak_bytes / 1e9,
        *memory.values(),
        costs.peak_bytes / 1e9 - sum(memory.values()),
        None if setting.gap is None else round(setting.gap, 6),
    )
    return dict(zip(_HEADER, values, strict=True))


def sweep_json(sweep: Sweep) -> str:
    """Return all settings, with the candidates that were skipped, as JSON."""
    settings = [
        {**record(sweep, setting), "fits": setting.fits, "pareto": setting in sweep.pareto}
        for setting in sweep.settings
    ]
    skipped = [
        {"mesh": entry.candidate.shape, "recipe": entry.candidate.recipe, "reason": entry.reason}
        for entry in sweep.skipped
    ]
    return json.dumps({"settings": settings, "skipped": skipped}, indent=2) + "\n"


def sweep_csv(sweep: Sweep) -> str:
    """Return all settings as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*_HEADER, "fits"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**record(sweep, setting), "fits": setting.fits} for setting in sweep.settings)
    return text.getvalue()


def _chart(sweep: Sweep) -> list[str]:
    """Return a chart of step time over peak memory. `*` marks settings on the Pareto front, `.` all others."""
    settings, front = sweep.settings, set(map(id, sweep.pareto))
    times, sizes = [setting.costs.seconds for setting in settings], [setting.costs.peak_bytes for setting in settings]
    grid = [[" "] * _CHART_WIDTH for _ in range(_CHART_HEIGHT)]
    for setting in sorted(settings, key=lambda setting: id(setting) in front):
        column = _cell(setting.costs.peak_bytes, min(sizes), max(sizes), _CHART_WIDTH)
        line = _CHART_HEIGHT - 1 - _cell(setting.costs.seconds, min(times), max(times), _CHART_HEIGHT)
        grid[line][column] = "*" if id(setting) in front else "."
    labels = [f"{max(times):.4g} s", *[""] * (_CHART_HEIGHT - 2), f"{min(times):.4g} s"]
    left = max(map(len, labels))
    lines = [f"{label:>{left}} |{''.join(line)}".rstrip() for label, line in zip(labels, grid, strict=True)]
    first, last = size_text(min(sizes)), size_text(max(sizes))
    lines.append(" " * left + " +" + "-" * _CHART_WIDTH)
    lines.append(f"{' ' * left}  {first}{last:>{_CHART_WIDTH - len(first)}}")
    return ["", "step time over peak memory; * has no setting that is both faster and smaller", *lines, ""]


def _cell(value: float, least: float, most: float, cells: int) -> int:
    return round((value - least) / (most - least) * (cells - 1)) if most > least else 0


def sweep_html(sweep: Sweep) -> str:
    """Return a page with the chart and the table, which needs no network."""
    settings = sweep.settings
    times, sizes = [setting.costs.seconds for setting in settings], [setting.costs.peak_bytes for setting in settings]
    front = set(map(id, sweep.pareto))
    points = [
        f'<circle class="{"front" if id(setting) in front else "point"}" r="5" '
        f'cx="{60 + _cell(setting.costs.peak_bytes, min(sizes), max(sizes), 640)}" '
        f'cy="{20 + _cell(max(times) - setting.costs.seconds + min(times), min(times), max(times), 320)}">'
        f"<title>{escape(f'{setting.candidate}: {setting.costs.seconds:.4g} s')}</title></circle>"
        for setting in settings
    ]
    body = "".join(
        f"<tr{'' if setting.fits else ' class=large'}>{_html_cells(_cells(sweep, setting))}</tr>"
        for setting in settings
    )
    head = "".join(f"<th>{name}</th>" for name in _columns(sweep))
    axis = f"peak memory, {size_text(min(sizes))} to {size_text(max(sizes))}" if settings else ""
    title = escape(sweep.request.workload.name)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>{escape(_heading(sweep))}</p>"
        f'<svg viewBox="0 0 760 400" role="img" aria-label="step time over peak memory">'
        f'<text x="60" y="390">{axis}</text><text x="60" y="14">step time, seconds</text>{"".join(points)}</svg>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></html>\n"
    )


def _html_cells(cells: tuple[str, ...]) -> str:
    return "".join(f"<td>{escape(cell)}</td>" for cell in cells)


_STYLE = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right}"
    "td:nth-child(-n+5),th:nth-child(-n+5){text-align:left}.large{color:#999}.point{fill:#9ab}.front{fill:#c40}"
    "svg{max-width:760px;border:1px solid #ddd}"
)


def plan_file(sweep: Sweep, setting: Setting) -> str:
    """Return the plan of a setting as a plan file. Comments contain the mesh and all that a plan cannot contain."""
    mesh = setting.candidate.mesh
    lines = [
        f"# {sweep.request.workload.name}: {setting.candidate.recipe} on {sweep.request.ranks} ranks",
        f"# mesh: {setting.candidate.shape}; axes inside a node: {', '.join(mesh.intra_node or ()) or 'none'}",
        f"# micro-batches: {setting.micro_batches}; recompute {setting.recomputed} of {sweep.request.layers} layers; "
        f"{'gather weights again for the backward' if setting.regathers else 'hold gathered weights'}",
        f"# modelled: {setting.costs.seconds:.4g} s a step, {size_text(setting.costs.peak_bytes)} a rank",
        "",
    ]
    return "\n".join(lines) + str(sweep.plan(setting))
