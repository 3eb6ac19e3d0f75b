// The tree of modules, with what each takes, and the collectives of each; equal layers are one entry.
function layerTree() {
  const root = { name: "", path: "", inside: new Map(), us: 0, wire: 0, count: 0, ops: 0, kinds: new Map(), phases: new Map() };
  for (const task of tasks) {
    let at = root;
    const walked = [root];
    for (const part of task.path ? task.path.split(".") : ["no module"]) {
      const path = at.path ? `${at.path}.${part}` : part;
      if (!at.inside.has(part))
        at.inside.set(part, { name: part, path, inside: new Map(), us: 0, wire: 0, count: 0, ops: 0, kinds: new Map(), phases: new Map() });
      at = at.inside.get(part);
      walked.push(at);
    }
    for (const one of walked) {
      one.us += task.us;
      one.wire += task.wire;
      one.ops += 1;
      one.phases.set(task.phase, (one.phases.get(task.phase) ?? 0) + task.us);
      if (task.wire) {
        one.count += 1;
        const kind = `${task.op.replace("spmd.", "").replace("_start", "")} [${task.axes.join(", ")}]`;
        one.kinds.set(kind, (one.kinds.get(kind) ?? 0) + 1);
      }
    }
  }
  return root;
}

/** Path of a module → the number of its group of equal ones. */
const groupOf = new Map(data.equal_modules.flatMap((paths, group) => paths.map((path) => [path, group])));

/** Return groups of the children of a module: those that are equal are one. */
function folded(one) {
  const groups = new Map();
  for (const inner of [...one.inside.values()].sort((a, b) => byName(a.name, b.name))) {
    const group = groupOf.get(inner.path) ?? inner.path;
    groups.set(group, [...(groups.get(group) ?? []), inner]);
  }
  return [...groups.values()];
}

/** Return the names of equal modules: those that follow each other as the first and the last. */
function rangeText(all) {
  const runs = [];
  for (const name of all.map((one) => one.name)) {
    const [last, number] = [runs.at(-1), Number(name.match(/\d+$/))];
    if (last && number === last.number + 1) Object.assign(last, { number, name });
    else runs.push({ first: name, number, name });
  }
  return runs.map(({ first, name }) => first === name ? name : `${first} … ${name}`).join(", ");
}

function layerLine(all, total) {
  const [one, times] = [all[0], all.length];
  const name = times > 1 ? `${rangeText(all)} × ${times}` : one.name;
  const kinds = [...one.kinds].map(([kind, count]) => `${kind} × ${count}`);
  return [make("strong", {}, name), ` ${time(one.us * times)} `,
    make("span", { class: "bar", style: { width: `${Math.max(1, 90 * one.us * times / total)}px` } }),
    make("span", { class: "quiet" }, one.phases.size > 1
      ? ` ${[...one.phases].map(([phase, us]) => `${phase} ${time(us * times)}`).join(", ")},` : ""),
    make("span", { class: "quiet" }, ` ${one.ops} ops${times > 1 ? " each" : ""}`),
    one.count ? make("span", { class: "quiet" }, `, ${bytes(one.wire)} by ${kinds.join(", ")}`) : "",
    " ", make("a", { href: `#graph/${encodeURIComponent(one.path)}` }, "graph")];
}

function layerEntry(all, total, open) {
  const one = all[0];
  if (one.inside.size === 0) return make("div", { class: "leaf" }, ...layerLine(all, total));
  const entry = make("details", open ? { open: "" } : {}, make("summary", {}, ...layerLine(all, total)));
  const fill = () => {
    if (!entry.open || entry.childElementCount > 1) return;
    const groups = folded(one);
    entry.append(...groups.map((inner) => layerEntry(inner, total, groups.length < 4)));
  };
  entry.addEventListener("toggle", fill);
  fill();
  return entry;
}

views.push({ id: "layers", name: "Layers", show: (place) => {
  const root = layerTree();
  place.append(make("p", { class: "quiet" }, "Times are those of a rank, with what is exposed of communication."));
  place.append(...folded(root).map((all) => layerEntry(all, root.us || 1, true)));
} });
