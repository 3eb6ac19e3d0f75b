// The ops of one module: rows by depth, shardings in the colours of their axes.
const MOST_NODES = 300;
const [BOX, HIGH, GAP_X, GAP_Y] = [190, 50, 14, 34];

const inModule = (path, module) => path === module || (module !== "" && path.startsWith(`${module}.`));

/** Return the modules that there are, those above them too, with how many ops they have. */
function modules() {
  const found = new Map();
  for (const one of nodes) {
    if (one.op === "argument") continue;
    const parts = one.path ? one.path.split(".") : [];
    for (let end = 1; end <= parts.length; end += 1) {
      const path = parts.slice(0, end).join(".");
      found.set(path, (found.get(path) ?? 0) + 1);
    }
    if (!one.path) found.set("", (found.get("") ?? 0) + 1);
  }
  return [...found].sort((a, b) => byName(a[0], b[0]));
}

/** Return the ops of a module in a phase, at most MOST_NODES from `first` on, and the numbers of what they read. */
function chosenNodes(module, phase, first) {
  const all = nodes.flatMap((one, at) => one.op !== "argument" && one.phase === phase && inModule(one.path, module) ? [at] : []);
  const inside = all.slice(first, first + MOST_NODES);
  const known = new Set(inside);
  const outside = new Set(inside.flatMap((at) => nodes[at].operands).filter((at) => !known.has(at)));
  return { all, inside, outside: [...outside].sort((a, b) => a - b) };
}

/** Return number → [x, y]: each op is a row below what it reads, near the middle of that. */
function layout(inside, outside) {
  const depth = new Map(outside.map((at) => [at, 0]));
  for (const at of inside) depth.set(at, 1 + Math.max(0, ...nodes[at].operands.map((from) => depth.get(from) ?? 0)));
  for (const at of outside) {  // what is read stands right above its first reader
    const reader = inside.filter((one) => nodes[one].operands.includes(at)).map((one) => depth.get(one));
    depth.set(at, Math.max(0, Math.min(...reader) - 1));
  }
  const rows = [];
  for (const [at, row] of depth) (rows[row] ??= []).push(at);
  const places = new Map();
  for (const [row, members] of [...rows.entries()]) {
    const wanted = (at) => {
      const from = nodes[at].operands.map((one) => places.get(one)?.[0]).filter((x) => x !== undefined);
      return from.length ? from.reduce((sum, x) => sum + x, 0) / from.length : 0;
    };
    const sorted = (members ?? []).map((at) => [wanted(at), at]).sort((a, b) => a[0] - b[0]);
    sorted.forEach(([, at], column) => places.set(at, [column * (BOX + GAP_X), row * (HIGH + GAP_Y)]));
  }
  return places;
}

const short = (words, most) => words.length > most ? `${words.slice(0, most - 1)}…` : words;

/** Return a name and its type; of a long name the end, which tells it from those of its module. */
const named = (one, most) => one.name.length > most ? `…${one.name.slice(1 - most)}` : short(`${one.name} ${one.type}`, most);

function box(at, [x, y], outside) {
  const one = nodes[at];
  const stripes = (one.sharding ?? []).slice(0, 4).flatMap(([axis, placed], index, all) => [
    make("rect", { x: x + 6 + index * (BOX - 12) / all.length, y: y + 34, width: 4, height: 11, style: { fill: color(axis), stroke: "none" } }),
    make("text", { x: x + 13 + index * (BOX - 12) / all.length, y: y + 44, "font-size": 11 }, short(`${axis}:${placed}`, Math.floor(24 / all.length) - 1))]);
  return make("g", {
    class: outside ? "node outside" : "node", tabindex: 0, role: "img", "aria-label": describe(one), "data-name": one.name,
    focus: () => tell(describe(one)), mouseenter: () => tell(describe(one)),
  }, make("rect", { x, y, width: BOX, height: HIGH, rx: 5 }),
  make("text", { x: x + 6, y: y + 15 }, short(one.op.replace("aten.", "").replace("spmd.", ""), 23)),
  make("text", { x: x + 6, y: y + 29, opacity: 0.75 }, named(one, 23)), ...stripes);
}

function drawGraph(module, phase, first, wanted) {
  const { all, inside, outside } = chosenNodes(module, phase, first);
  const places = layout(inside, outside);
  const width = Math.max(BOX, ...[...places.values()].map(([x]) => x + BOX)) + 20;
  const height = Math.max(HIGH, ...[...places.values()].map(([, y]) => y + HIGH)) + 20;
  const edges = inside.flatMap((at) => nodes[at].operands.map((from) => {
    const [[x1, y1], [x2, y2]] = [places.get(from), places.get(at)];
    const [fromX, toX, fromY] = [x1 + BOX / 2, x2 + BOX / 2, y1 + HIGH];
    return make("path", { d: `M${fromX},${fromY} C${fromX},${fromY + 17} ${toX},${y2 - 17} ${toX},${y2}` });
  }));
  const outer = new Set(outside);
  const drawn = make("svg", { class: "graph", width, height, viewBox: `-10 -10 ${width} ${height}` },
    ...edges, ...[...places].map(([at, place]) => box(at, place, outer.has(at))));
  const found = wanted && [...drawn.querySelectorAll(".node")].find((one) => one.dataset.name === wanted);
  if (found) found.classList.add("chosen");
  return { drawn, found, count: all.length };
}

views.push({ id: "graph", name: "Graph", show: (place, words) => {
  const known = modules();
  const end = data.phases.find((one) => words.endsWith(`/${one}`));
  const [asked, wished] = end ? [words.slice(0, -end.length - 1), end] : [words, null];
  const at = nodes.findIndex((one) => one.name === asked);
  const first = known.find(([path]) => /\d/.test(path) && nodes.some((one) => one.path === path)) ?? known[0] ?? ["", 0];
  const module = asked && known.some(([path]) => path === asked) ? asked : at >= 0 ? nodes[at].path : first[0];
  const knownPhases = data.phases.filter((phase) => nodes.some((one) => one.op !== "argument" && one.phase === phase && inModule(one.path, module)));
  const phase = at >= 0 && !known.some(([path]) => path === asked) ? nodes[at].phase : wished ?? knownPhases[0] ?? data.phases[0];
  const before = at < 0 ? 0 : chosenNodes(module, phase, 0).all.indexOf(at);
  const start = Math.max(0, before - before % MOST_NODES);
  const { drawn, found, count } = drawGraph(module, phase, start, asked);
  const go = () => { location.hash = `graph/${encodeURIComponent(select.value)}/${phases.value}`; };
  const phases = make("select", { "aria-label": "Phase", change: go },
    ...(knownPhases.length ? knownPhases : data.phases).map((one) => make("option", { value: one, ...(one === phase ? { selected: "" } : {}) }, one)));
  const select = make("select", { "aria-label": "Module", change: go },
    ...known.map(([path, ops]) => make("option", { value: path, ...(path === module ? { selected: "" } : {}) }, `${path || "no module"} (${ops})`)));
  const part = count > MOST_NODES ? ` Ops ${start + 1} to ${Math.min(count, start + MOST_NODES)} of ${count}; choose a module below it, or search for a value.` : "";
  place.append(make("p", {}, select, " ", phases, make("span", { class: "quiet" }, part)),
    make("p", {}, ...data.mesh.map((axis) => chip(axis.axis, axis.axis))),
    make("div", { class: "wide", tabindex: 0, "aria-label": "Graph" }, drawn));
  if (found) { found.scrollIntoView({ block: "center", inline: "center" }); tell(describe(nodes[at])); }
} });
