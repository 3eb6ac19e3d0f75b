// The mesh: each rank a cell, links between neighbours, and the groups that talk to each other along the chosen axes.
const [CELL, LINK, GAP] = [34, 12, 30];

/** Return rank → [x, y]: the last axis is a row, the one before it are the rows, the others are blocks side by side and below. */
function rankPlaces(drawn) {
  const sizes = data.mesh.map((axis) => axis.size);
  const [wide, high] = [sizes.at(-1) ?? 1, sizes.at(-2) ?? 1];
  const [block, across] = [wide * high, sizes.at(-3) ?? 1];
  const step = CELL + LINK;
  return Array.from({ length: drawn }, (_, rank) => {
    const [inside, outside] = [rank % block, Math.floor(rank / block)];
    return [(inside % wide) * step + (outside % across) * (wide * step + GAP),
      Math.floor(inside / wide) * step + Math.floor(outside / across) * (high * step + GAP)];
  });
}

/** Return lines between neighbours along each axis; those between nodes are dashed. */
function meshLinks(places) {
  const found = [];
  let stride = data.mesh.reduce((all, axis) => all * axis.size, 1);
  for (const [level, axis] of data.mesh.entries()) {
    stride /= axis.size;
    const [isRow, isBlock] = [level === data.mesh.length - 1, level < data.mesh.length - 2];
    let d = "";
    for (const [rank, [x, y]] of places.entries()) {
      if (isBlock && rank % stride) continue;  // blocks have one link, as all their ranks have the same
      if (Math.floor(rank / stride) % axis.size === axis.size - 1 || rank + stride >= places.length) continue;
      const [to, below] = places[rank + stride];
      d += below > y && !isRow ? `M${x + CELL / 2},${y + (isBlock ? below - y - GAP - LINK : CELL)}V${below}`
        : `M${x + (isBlock ? to - x - GAP - LINK : CELL)},${y + CELL / 2}H${to}`;
    }
    found.push(make("path", { d, class: axis.inside ? "link" : "link between", style: { stroke: axis.color } }));
  }
  return found;
}

const linkTexts = (group) => group.busy.flatMap((seconds, at) => seconds
  ? [`${data.links[at][0]} carry ${bytes(seconds * data.links[at][1])} in ${time(seconds * 1e6)}`] : []);

views.push({ id: "mesh", name: "Mesh", show: (place) => {
  const ranks = data.mesh.reduce((all, axis) => all * axis.size, 1);
  const places = rankPlaces(data.drawn);
  const extent = (side) => Math.max(...places.map((one) => one[side])) + CELL + 8;
  let [lit, rank] = [data.groups.findIndex((one) => one.axes.length), 0];
  const cells = places.map(([x, y], at) => make("g", { mouseenter: () => show(lit, at), click: () => show(lit, at) },
    make("rect", { x, y, width: CELL, height: CELL, rx: 4 }), make("text", { x: x + CELL / 2, y: y + CELL / 2 + 4 }, at)));
  const chosen = [];  // [button, group]
  const coordinates = (at) => {
    let left = at;
    return data.mesh.toReversed().map((axis) => { const one = left % axis.size; left = Math.floor(left / axis.size); return `${axis.axis} ${one}`; }).reverse().join(", ");
  };
  const show = (group, at, words = "") => {
    [lit, rank] = [group, Math.max(0, Math.min(cells.length - 1, at))];
    const one = data.groups[lit];
    const numbers = one?.groups ?? [];
    const paint = one ? color(one.axes[0] ?? "") : "none";
    cells.forEach((cell, index) => {
      const inside = numbers.length && numbers[index] === numbers[rank];
      cell.setAttribute("class", `${inside ? "lit" : "rank"}${index === rank ? " here" : ""}`);
      cell.firstChild.style.fill = numbers.length ? paint : "";
      cell.firstChild.style.fillOpacity = inside ? 1 : [0.12, 0.3][numbers[index] % 2];
    });
    chosen.forEach(([button, its]) => button.setAttribute("aria-pressed", its === lit));
    const peers = numbers.flatMap((number, index) => number === numbers[rank] && index !== rank ? [index] : []);
    const listed = peers.length > 32 ? `${peers.slice(0, 32).join(" ")} … (${peers.length})` : peers.join(" ");
    tell(!one ? `Rank ${rank} (${coordinates(rank)}).`
      : `Rank ${rank} (${coordinates(rank)}) talks to ${one.axes.length ? listed || "no other" : "its host"}`
        + `${one.axes.length ? ` along [${one.axes.join(", ")}]` : ""}: ${words || [`sends ${bytes(one.bytes)} a step in ${one.count} messages`, ...linkTexts(one)].join("; ")}.`);
  };
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: data.mesh.at(-1)?.size ?? 1, ArrowUp: -(data.mesh.at(-1)?.size ?? 1) };
  const drawn = make("svg", { width: extent(0), height: extent(1), viewBox: `-4 -4 ${extent(0)} ${extent(1)}`, class: "mesh", role: "img",
    tabindex: 0, "aria-label": "Mesh; arrow keys go from rank to rank",
    keydown: (event) => { if (steps[event.key]) { event.preventDefault(); show(lit, rank + steps[event.key]); } } }, ...meshLinks(places), ...cells);
  const pick = (group, label, words) => {
    const made = make("button", { type: "button", class: "pick", click: () => show(group, rank, words), focus: () => show(group, rank, words), mouseenter: () => show(group, rank, words) }, ...label);
    if (!words) chosen.push([made, group]);
    return made;
  };
  const most = Math.max(1, ...data.groups.map((one) => one.bytes));
  const rows = data.groups.flatMap((one, group) => [
    [pick(group, one.axes.length ? one.axes.map((axis) => chip(axis, axis)) : ["to and from the host"]), one.count, bytes(one.bytes),
      ...one.busy.map((seconds, at) => seconds ? `${bytes(seconds * data.links[at][1])} in ${time(seconds * 1e6)}` : ""),
      make("span", { class: "bar", style: { width: `${80 * one.bytes / most}px`, background: color(one.axes[0] ?? "") } })],
    ...one.shares.map((at) => {
      const [kind, axes, count, sent, seconds, exposed] = data.collectives[at];
      const words = `sends ${bytes(sent)} a step in ${count} ${kind}, which take ${time(seconds * 1e6)}, ${time(exposed * 1e6)} exposed`;
      return [make("span", { class: "leaf" }, pick(group, [kind], words)), count, bytes(sent), "", "", ""];
    })]);
  const node = data.mesh.filter((axis) => axis.inside).reduce((all, axis) => all * axis.size, 1);
  place.append(make("p", {}, ...data.mesh.map((axis) => chip(`${axis.axis} = ${axis.size}`, axis.axis)),
    make("span", { class: "quiet" }, ` ${ranks} ranks, ${node} in a node${places.length < ranks ? `, the first ${places.length} drawn` : ""}. ${ranks > node ? "Dashed links are between nodes. " : ""}Point at ranks and axes, or use the arrow keys.`)),
  make("div", { class: "wide" }, drawn),
  data.groups.length ? table(["along", "messages", "a rank sends", ...data.links.map(([kind]) => kind), ""], rows, [1, 2, 3, 4]) : make("p", {}, "Nothing is sent."));
  show(lit, 0);
} });
