// What each pass changes: how often ops are there before and after, and lines of the text.
views.push({ id: "passes", name: "Passes", show: (place) => {
  if (!data.passes.length) place.append(make("p", {}, "No pass was left to run."));
  place.append(...data.passes.map((pass) => {
    const [gone, added] = pass.counts;
    const lines = (all, count, sign, kind) => all.length ? [make("pre", {}, ...all.map((line) =>
      make("span", { class: kind }, `${sign} ${line}\n`)), count > all.length ? `and ${count - all.length} more` : "")] : [];
    return make("details", {},
      make("summary", {}, make("strong", {}, pass.name), make("span", { class: "quiet" },
        gone || added ? ` ${gone} lines removed, ${added} added` : " changes nothing")),
      pass.kinds.length ? table(["op", "before", "after"], pass.kinds.map(([kind, before, after]) => [make("code", {}, kind), before, after]), [1, 2]) : "",
      ...lines(pass.removed, gone, "-", "removed"), ...lines(pass.added, added, "+", "added"));
  }));
} });
