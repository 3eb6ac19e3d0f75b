// What runs when: the accelerator and each stream a row. Arrow keys move and zoom, as the wheel with Ctrl does.
views.push({ id: "timeline", name: "Timeline", show: (place) => {
  const end = data.seconds * 1e6 || 1;
  const [ROW, TOP] = [38, 22];
  let [from, to] = [0, end];
  let chosen = -1;
  const canvas = make("canvas", { tabindex: 0, role: "img", "aria-label": "Timeline; arrow keys choose ops, plus and minus zoom" });
  const x = (us, width) => (us - from) / (to - from) * width;
  const draw = () => {
    const [context, width, height] = sized(canvas, TOP + ROW * data.streams.length);
    context.fillStyle = theme("--quiet");
    for (let at = 0; at < 5; at += 1) context.fillText(time(from + (to - from) * at / 5), width * at / 5 + 3, 14);
    data.bars.forEach(([task, stream, first, last, waits], at) => {
      if (last < from || first > to) return;
      const left = Math.max(0, x(first, width));
      const wide = Math.max(0.6, Math.min(width, x(last, width)) - left);
      context.fillStyle = waits ? theme("--alarm") : stream ? color(data.streams[stream].split(/[, ]/)[0]) : theme("--mark");
      context.globalAlpha = waits ? 0.35 : 0.85;
      context.fillRect(left, TOP + ROW * stream + 14, wide, ROW - 16);
      context.globalAlpha = 1;
      if (at === chosen) { context.strokeStyle = theme("--text"); context.lineWidth = 2; context.strokeRect(left, TOP + ROW * stream + 13, Math.max(3, wide), ROW - 14); }
      if (wide > 70) { context.fillStyle = theme("--ground"); context.fillText(short(`${tasks[task].name} ${tasks[task].op}`, Math.floor(wide / 7.5)), left + 3, TOP + ROW * stream + 29); }
    });
    context.fillStyle = theme("--text");
    data.streams.forEach((name, at) => context.fillText(at ? `sends on ${name}` : name, 3, TOP + ROW * at + 11));
  };
  const explain = (at) => {
    const [task, stream, first, last, waits] = data.bars[at];
    const one = tasks[task];
    tell(`${waits ? "waits at " : ""}${one.name} = ${one.op}   ${time(last - first)} from ${time(first)} to ${time(last)}   ${data.streams[stream]}${one.wire ? `   ${bytes(one.wire)} sent` : ""}   ${one.path}`);
  };
  const choose = (at) => {
    chosen = Math.max(0, Math.min(data.bars.length - 1, at));
    const [, , first, last] = data.bars[chosen];
    if (first < from || last > to) { const half = (to - from) / 2; from = Math.max(0, first - half); to = from + 2 * half; }
    explain(chosen);
    draw();
  };
  const zoom = (factor, at = 0.5) => {
    const [middle, span] = [from + (to - from) * at, Math.min(end, Math.max(end / 1e5, (to - from) * factor))];
    from = Math.max(0, Math.min(end - span, middle - span * at));
    to = from + span;
    draw();
  };
  const move = (part) => { const step = (to - from) * part; from = Math.max(0, Math.min(end - (to - from), from + step)); to = from + Math.abs(step / part); draw(); };
  const keys = { ArrowRight: () => choose(chosen + 1), ArrowLeft: () => choose(chosen - 1), "+": () => zoom(0.5), "-": () => zoom(2),
    PageDown: () => move(0.5), PageUp: () => move(-0.5), Home: () => { [from, to] = [0, end]; draw(); } };
  canvas.addEventListener("keydown", (event) => { if (keys[event.key]) { event.preventDefault(); keys[event.key](); } });
  canvas.addEventListener("pointermove", (event) => {
    const us = from + event.offsetX / canvas.clientWidth * (to - from);
    const stream = Math.floor((event.offsetY - TOP) / ROW);
    const slack = (to - from) / canvas.clientWidth;
    const found = data.bars.findIndex(([, row, first, last]) => row === stream && first - slack <= us && us <= last + slack);
    if (found >= 0) explain(found);
  });
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey) { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX / canvas.clientWidth); }
  }, { passive: false });
  const button = (label, name, act) => make("button", { type: "button", "aria-label": name, click: act }, label);
  place.append(make("p", {}, button("+", "Zoom in", keys["+"]), " ", button("−", "Zoom out", keys["-"]), " ", button("←", "Earlier", keys.PageUp), " ",
    button("→", "Later", keys.PageDown), " ", button("all", "Show all", keys.Home),
    make("span", { class: "quiet" }, " Arrow keys go from op to op; red is standing still.")), canvas);
  draw();
  return draw;
} });
