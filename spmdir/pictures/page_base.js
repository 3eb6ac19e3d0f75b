"use strict";
// The data of the program, and what all views are made with. Texts get into the page by textContent alone.
const data = JSON.parse(document.getElementById("data").textContent);
const views = [];
const colors = new Map(data.mesh.map((axis) => [axis.axis, axis.color]));
const text = (number) => data.strings[number];
const node = ([name, op, type, sharding, axes, path, line, operands, phase]) =>
  ({ name: text(name), op: text(op), type: text(type), sharding, axes, path: text(path), line: text(line), operands,
    phase: data.phases[phase] });
const nodes = data.nodes.map(node);
const tasks = data.tasks.map(([name, op, path, wire, axes, us, first, live, phase]) =>
  ({ name: text(name), op: text(op), path: text(path), wire, axes, us, first, live, phase: data.phases[phase] }));

/** Make an element: attributes that are functions are listeners, children are elements or texts. */
function make(tag, attributes = {}, ...children) {
  const drawn = ["svg", "g", "rect", "path", "text", "title"].includes(tag);
  const made = drawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (name === "style") Object.assign(made.style, value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Make a table; cells of columns in `numbers` are aligned to the right. */
function table(head, rows, numbers = []) {
  const cell = (tag) => (value, at) => make(tag, numbers.includes(at) ? { class: "number" } : {}, value);
  return make("div", { class: "wide" }, make("table", {},
    make("thead", {}, make("tr", {}, ...head.map(cell("th")))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell("td")))))));
}

/** Return a text that may be broken behind underscores, dots and slashes, and nowhere else in a name. */
const breakable = (value) => String(value).split(/(?<=[_./])/).flatMap((part) => [part, make("wbr")]);

const color = (axis) => colors.get(axis.split("(")[0]) ?? "var(--quiet)";
const chip = (label, axis) => make("span", { class: "chip", style: { borderColor: color(axis) } }, label);
const chips = (sharding) => sharding === null ? ["not decided"] : sharding.length === 0 ? ["replicated"]
  : sharding.map(([axis, placed]) => chip(`${axis}: ${placed}`, axis));

/** Return a number with the first unit in which it is at least 1. */
function withUnit(value, units, step = 1000) {
  let at = 0;
  while (value >= step && at < units.length - 1) { value /= step; at += 1; }
  return `${Number(value.toPrecision(4))} ${units[at]}`;
}
const bytes = (value) => withUnit(value, ["B", "kB", "MB", "GB", "TB"]);
const time = (us) => us > 0 && us < 1e-3 ? "< 1 ns" : withUnit(us, ["us", "ms", "s"]);

/** Show what is pointed at, or has the focus. */
function tell(words) { document.getElementById("tip").textContent = words; }

const describe = (one) => [
  `${one.name} = ${one.op}${one.axes.length ? ` on [${one.axes.join(", ")}]` : ""} : ${one.type}`,
  `<${(one.sharding ?? []).map(([axis, placed]) => `${axis}: ${placed}`).join(", ")}>`,
  one.path, one.line,
].filter(Boolean).join("   ");

/** Order names so that layers.2 comes before layers.10. */
const byName = new Intl.Collator("en", { numeric: true }).compare;

/** Fit a canvas to its width and the pixels of the screen; return its context, width and height. */
function sized(canvas, height) {
  const width = canvas.clientWidth || 600;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = "12px ui-monospace, monospace";
  return [context, width, height];
}
const theme = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
