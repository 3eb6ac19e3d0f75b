// Tabs, each with a link, and the search.
let redraw = null;

/** Show the view that the address names: #view or #view/what. */
function open() {
  const [id, ...rest] = location.hash.slice(1).split("/");
  const view = views.find((one) => one.id === id) ?? views[0];
  let asked = rest.join("/");
  try { asked = decodeURIComponent(asked); } catch { asked = ""; }
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.id === `tab-${view.id}`;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) tab.scrollIntoView({ block: "nearest", inline: "center" });
  }
  const place = make("section", { role: "tabpanel", "aria-labelledby": `tab-${view.id}`, id: "panel" });
  document.querySelector("main").replaceChildren(place);
  tell("");
  redraw = view.show(place, asked) ?? null;
}

function find(words) {
  const sought = words.trim().toLowerCase();
  if (!sought) return open();
  const found = nodes.filter((one) => `${one.name} ${one.op} ${one.path} ${one.line}`.toLowerCase().includes(sought));
  const list = make("ul", { class: "found" }, ...found.slice(0, 100).map((one) => make("li", {},
    make("button", { type: "button", click: () => { location.hash = `graph/${encodeURIComponent(one.name)}`; open(); } },
      make("code", {}, `${one.name} = ${one.op}`)), " ", ...chips(one.sharding), make("span", { class: "quiet" }, ` ${one.path} ${one.line}`))));
  document.querySelector("main").replaceChildren(make("h2", { role: "status" }, `${found.length} found`), list);
}

function start() {
  const bar = document.querySelector("nav");
  bar.append(...views.map((view) => make("button", {
    type: "button", role: "tab", id: `tab-${view.id}`, "aria-controls": "panel",
    click: () => { if (location.hash === `#${view.id}`) open(); else location.hash = view.id; },
  }, view.name)));
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const tabs = [...bar.children];
    const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
    next.focus();
    next.click();
  });
  document.getElementById("search").addEventListener("input", (event) => find(event.target.value));
  addEventListener("hashchange", open);
  addEventListener("resize", () => redraw?.());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw?.());
  open();
}
start();
