// Live memory over the step, and what holds it where one points.
views.push({ id: "memory", name: "Memory", show: (place) => {
  const HIGH = 220;
  const most = Math.max(1, ...tasks.map((task) => task.live));
  const peak = tasks.findIndex((task) => task.live === most);
  let at = Math.max(0, peak);
  const canvas = make("canvas", { tabindex: 0, role: "img", "aria-label": "Live memory; arrow keys go from op to op" });
  const holders = make("div", { "aria-live": "polite" });
  const draw = () => {
    const [context, width, height] = sized(canvas, HIGH);
    const x = (index) => index / Math.max(1, tasks.length - 1) * width;
    const y = (live) => height - 4 - live / most * (height - 30);
    context.beginPath();
    context.moveTo(0, height);
    tasks.forEach((task, index) => { context.lineTo(x(index), y(task.live)); });
    context.lineTo(width, height);
    context.fillStyle = theme("--mark");
    context.globalAlpha = 0.35;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = theme("--mark");
    context.stroke();
    context.fillStyle = theme("--quiet");
    context.fillText(`${bytes(most)} at ${tasks[peak]?.name ?? "the arguments"}`, 4, 14);
    context.strokeStyle = theme("--alarm");
    context.beginPath();
    context.moveTo(x(at), 20);
    context.lineTo(x(at), height);
    context.stroke();
  };
  const show = (place_) => {
    at = Math.max(0, Math.min(tasks.length - 1, place_));
    const live = data.buffers.filter(([, , , first, last]) => first <= at && at <= last).sort((a, b) => b[1] - a[1]);
    const kinds = new Map();
    for (const [, size, kind] of live) kinds.set(text(kind), (kinds.get(text(kind)) ?? 0) + size);
    const task = tasks[at];
    holders.replaceChildren(
      make("h2", {}, task ? `${bytes(task.live)} live at ${task.name} = ${task.op}, ${time(task.first)} after the start` : "Nothing runs."),
      table(["held for", "bytes"], [...kinds].sort((a, b) => b[1] - a[1]).map(([kind, size]) => [kind, bytes(size)]), [1]),
      make("h2", {}, `The largest of ${live.length} buffers`),
      table(["buffer", "bytes", "held for", "until"], live.slice(0, 12).map(([name, size, kind, , last]) =>
        [make("a", { href: `#graph/${encodeURIComponent(text(name))}` }, make("code", {}, text(name))), bytes(size), text(kind), make("code", {}, tasks[last].name)]), [1]));
    draw();
  };
  const keys = { ArrowRight: () => show(at + 1), ArrowLeft: () => show(at - 1), PageDown: () => show(at + Math.ceil(tasks.length / 20)),
    PageUp: () => show(at - Math.ceil(tasks.length / 20)), Home: () => show(0), End: () => show(tasks.length - 1) };
  canvas.addEventListener("keydown", (event) => { if (keys[event.key]) { event.preventDefault(); keys[event.key](); } });
  canvas.addEventListener("pointermove", (event) => show(Math.round(event.offsetX / canvas.clientWidth * (tasks.length - 1))));
  place.append(make("p", {}, make("button", { type: "button", click: () => show(peak) }, "Peak"),
    make("span", { class: "quiet" }, " Point at the picture, or use the arrow keys.")), canvas, holders);
  show(at);
  return draw;
} });
