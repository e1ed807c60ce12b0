// The page: tabs, links that hold a setting, and its start.
"use strict";

// ---------------------------------------------------------------- links and tabs

// A link holds the view and what differs from its defaults.
function link(view) {
  const values = Object.entries(readForm(view)).filter(
    ([name, value]) => name !== "view" && canonical(value) !== canonical(model.defaults[view][name]),
  );
  return `#${new URLSearchParams({ view, ...Object.fromEntries(values.map(([name, value]) => [name, JSON.stringify(value)])) })}`;
}

function openLink() {
  const values = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const view = Object.hasOwn(VIEWS, values.view ?? "") ? values.view : "generate";
  const known = {};
  for (const [name, text] of Object.entries(values)) {
    if (!Object.hasOwn(model.defaults[view], name)) continue;
    try {
      known[name] = JSON.parse(text);
    } catch {
      continue;
    }
    if (Array.isArray(model.defaults[view][name]) !== Array.isArray(known[name])) delete known[name];
  }
  fillForm(view, { ...model.defaults[view], ...known });
  select(view);
}

function select(view, focus = false) {
  current = view;
  for (const name of Object.keys(VIEWS)) {
    const tab = document.getElementById(`tab-${name}`),
      isChosen = name === view;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
    document.getElementById(`view-${name}`).hidden = !isChosen;
    if (isChosen && focus) tab.focus();
  }
  if (recorded && !state[view].lanes.size) run(view);
}

function buildTabs() {
  const names = Object.keys(VIEWS);
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) select(names[(names.indexOf(current) + step + names.length) % names.length], true);
  };
  document
    .getElementById("tabs")
    .append(
      ...names.map((name) =>
        element("button", {
          role: "tab",
          type: "button",
          id: `tab-${name}`,
          "aria-controls": `view-${name}`,
          text: VIEWS[name].title,
          onclick: () => select(name),
          onkeydown: move,
        }),
      ),
    );
}

function buildLegend() {
  const samples = { h: "░░", n: "new", k: "kept", a: "▒▒" };
  document
    .getElementById("legend")
    .append(
      ...Object.entries(model.states).map(([key, words]) =>
        element("li", {}, element("span", { class: `cell-${key}`, text: samples[key] }), words),
      ),
      element("li", {}, element("del", { text: "lost" }), "only in the text before"),
      element("li", {}, element("ins", { text: "added" }), "only in this text"),
    );
}

function takeToken() {
  const values = new URLSearchParams(location.hash.slice(1));
  if (values.has("token")) {
    // kept for this tab, and out of links
    sessionStorage.setItem("token", values.get("token"));
    values.delete("token");
    history.replaceState(null, "", `#${values}`);
  }
  return recorded ? "" : sessionStorage.getItem("token") || "";
}

async function start() {
  token = takeToken();
  const place = document.getElementById("model");
  if (recorded) model = recorded.about;
  else {
    const answer = await fetch("api/model", { headers: headers() });
    const content = await answer.json();
    if (!answer.ok) {
      place.textContent = content.error;
      return;
    }
    model = content;
  }
  place.textContent =
    `model ${model.name}, ${model.registers} registers, crocodil ${model.version}` +
    (recorded ? "; recorded runs" : "; nothing leaves this machine");
  buildTabs();
  Object.keys(VIEWS).forEach(buildView);
  buildLegend();
  openLink();
  window.addEventListener("hashchange", openLink);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(current);
    if (event.key === "Escape") stop(current);
  });
}

start();
