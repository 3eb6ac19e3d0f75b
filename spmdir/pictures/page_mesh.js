// The mesh, and who talks to whom: the groups of ranks along the axes that something is sent on.
views.push({ id: "mesh", name: "Mesh", show: (place) => {
  place.append(make("p", {}, ...data.mesh.map((axis) => chip(`${axis.axis} = ${axis.size}`, axis.axis))));
  const most = Math.max(1, ...data.groups.map((one) => one.bytes));
  place.append(...data.groups.map((one) => make("section", {},
    make("h2", {}, ...(one.axes.length ? one.axes.map((axis) => chip(axis, axis)) : ["to and from the host"]),
      ` ${bytes(one.bytes)} a rank in ${one.count} messages `,
      make("span", { class: "bar", style: { width: `${120 * one.bytes / most}px`, background: color(one.axes[0] ?? "") } })),
    make("div", { style: { display: "flex", flexWrap: "wrap", gap: "0.4rem" } }, ...one.groups.map((ranks) =>
      make("span", { class: "chip mono", style: { borderColor: color(one.axes[0] ?? ""), whiteSpace: "normal" } }, ranks.slice(0, 64).join(" ")))))));
  if (!data.groups.length) place.append(make("p", {}, "Nothing is sent."));
} });
