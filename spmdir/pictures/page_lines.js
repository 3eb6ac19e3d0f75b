// The lines of source that take longest, and why the dearest reshards are there.
const sourceText = (one) => one.source.length ? [make("pre", {}, ...one.source.map(([number, words]) =>
  make("span", one.line.endsWith(`:${number}`) ? { class: "here" } : {}, `${String(number).padStart(5)}  ${words}\n`)))] : [];

/** Return a line whose end, where it has to be broken, stands under its beginning. */
function hanging(line) {
  const indent = line.length - line.trimStart().length + 2;
  return make("span", { style: { display: "block", paddingLeft: `${indent}ch`, textIndent: "-2ch" } }, line.trimStart());
}

views.push({ id: "lines", name: "Lines", show: (place) => {
  const explained = data.explanations.map((one, at) => make("details", at < 3 ? { open: "" } : {},
    make("summary", {}, make("a", { href: `#graph/${encodeURIComponent(one.name)}` }, make("code", {}, one.name)), make("span", { class: "quiet" }, ` ${time(one.seconds * 1e6)} of reshards ${one.line}`)),
    make("div", { class: "beside" }, make("pre", { class: "wrap" }, ...one.text.split("\n").map(hanging)), ...sourceText(one))));
  if (explained.length) place.append(make("h2", {}, "Why the dearest reshards are there"), ...explained);
  place.append(make("h2", {}, "Lines that take longest"));
  if (!data.lines.length) place.append(make("p", {}, "No op says which line it is from."));
  place.append(...data.lines.map((one, at) => make("details", at < 3 ? { open: "" } : {},
    make("summary", {}, make("code", {}, one.line), ` ${time(one.seconds * 1e6)}, ${(one.share * 100).toFixed(1)} % `,
      make("span", { class: "bar", style: { width: `${150 * one.share}px` } }),
      make("span", { class: "quiet" }, ` ${one.kinds.join(", ")}`)),
    ...sourceText(one),
    make("p", {}, ...one.values.flatMap((name) => [make("a", { href: `#graph/${encodeURIComponent(name)}` }, make("code", {}, name)), " "])))));
} });
