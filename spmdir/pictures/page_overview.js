// What runs when, what a step takes and sends, and the ops that take longest.
views.push({ id: "overview", name: "Overview", show: (place) => {
  const draw = views.find((view) => view.id === "timeline").show(place);
  place.append(make("dl", {}, ...data.summary.map(([label, value]) =>
    make("div", {}, make("dt", {}, label), make("dd", {}, ...breakable(value))))));
  place.append(make("h2", {}, "Collectives, the most exposed first"), data.collectives.length
    ? table(["collective", "axes", "count", "sent", "time", "exposed"],
      data.collectives.map(([kind, axes, count, sent, seconds, exposed]) => [
        kind, make("span", {}, ...axes.map((axis) => chip(axis, axis))), count, bytes(sent), time(seconds * 1e6),
        time(exposed * 1e6)]), [2, 3, 4, 5])
    : make("p", {}, "None."));
  const most = data.dearest[0]?.[3] ?? 1;
  place.append(make("h2", {}, "Ops that take longest"), table(["value", "op", "line", "time", "", "sent", "bound by"],
    data.dearest.map(([name, kind, line, seconds, sent, bound, , count]) => [
      make("span", {}, make("a", { href: `#graph/${encodeURIComponent(name)}` }, make("code", {}, name)), count > 1 ? ` × ${count}` : ""),
      make("code", {}, kind),
      make("code", {}, line), time(seconds * 1e6),
      make("span", { class: "bar", style: { width: `${80 * seconds / most}px` } }), sent ? bytes(sent) : "", bound,
    ]), [3, 5]));
  return draw;
} });
