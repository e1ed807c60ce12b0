// The page: forms, runs as streams of events, sliders, links. It talks to its own server only, or plays recorded runs.
"use strict";

const recorded = window.RECORDED || null;
const NOT_RECORDED = "this page holds recorded runs only: install crocodil and start `crocodil play` to make your own";

const NUMBERS = { seed: "Seed", length: "Tokens", calls: "Calls" };
const VIEWS = {
  generate: { title: "Generate", hint: "All methods from one seed. Move the slider to see each call.",
              fields: ["seed", "length", "calls", "methods"] },
  complete: { title: "Complete", hint: "The model keeps what you give and fills the rest.",
              fields: ["prefix", "suffix", "seed", "length", "calls", "methods"] },
  autoencode: { title: "Autoencode", hint: "Your text from its own registers: few are coarse, all are fine.",
                fields: ["text", "calls"] },
  interpolate: { title: "Interpolate", hint: "Decode the registers between two texts.",
                 fields: ["first", "second", "steps", "calls"] },
  steer: { title: "Steer", hint: "Click a register to draw it again or to put noise on it; the text changes beneath.",
           fields: ["text", "seed", "length", "calls", "redraw_seed"] },
};
const LABELS = { ...NUMBERS, steps: "Steps", methods: "Methods", prefix: "Text before", suffix: "Text after", text: "Text",
                 first: "First text", second: "Second text", redraw_seed: "Seed of drawing again" };
const STEER_TEXT = "Text (empty: registers drawn from the prior by the seed)";
const TEXTS = new Set(["prefix", "suffix", "text", "first", "second"]);

let model, token = "", current = "generate";
const state = {};  // per view: form nodes, lanes, slider positions

// ---------------------------------------------------------------- requests

function readForm(view) {
  const values = { view, ...model.defaults[view] };
  for (const [name, input] of Object.entries(state[view].inputs)) {
    if (name === "methods") values.methods = [...input.querySelectorAll("input:checked")].map((box) => box.value);
    else if (TEXTS.has(name)) values[name] = input.value;
    else values[name] = input.value.trim() === "" ? null : Number(input.value);
  }
  return { ...values, ...state[view].extra };
}

function fillForm(view, values) {
  const { inputs, extra } = state[view];
  for (const [name, value] of Object.entries(values)) {
    if (name in extra) extra[name] = value;
    else if (name === "methods") for (const box of inputs.methods.querySelectorAll("input")) box.checked = value.includes(box.value);
    else if (name in inputs) inputs[name].value = value;
  }
  if (view === "steer") readModes();
  showExtra(view);
}

function faults(view, request) {
  const found = [];
  for (const [name, value] of Object.entries(request)) {
    if (TEXTS.has(name) && value.length > model.max_characters)
      found.push([name, `${value.length.toLocaleString("en")} characters are too many: at most ${model.max_characters.toLocaleString("en")} are taken`]);
    if (value === null) found.push([name, "give a number"]);
  }
  return found;
}

function showError(view, field, message) {
  const { inputs, errors, main } = state[view];
  (errors[field] || main).textContent = message;
  const input = inputs[field];
  if (input && errors[field]) { input.setAttribute("aria-invalid", "true"); input.focus?.(); }
}

function clearErrors(view) {
  const { inputs, errors, notes, main } = state[view];
  for (const node of [main, ...Object.values(errors), ...Object.values(notes)]) node.textContent = "";
  for (const input of Object.values(inputs)) input.removeAttribute("aria-invalid");
}

// ---------------------------------------------------------------- runs

async function run(view) {
  stop(view);
  clearErrors(view);
  const request = readForm(view);
  for (const [field, message] of faults(view, request)) return showError(view, field, message);
  const own = state[view];
  const controller = own.controller = new AbortController();
  if (view !== "autoencode" || own.source !== request.text + request.calls) own.lanes.clear();
  own.source = request.text + request.calls;
  own.follows = true;
  history.replaceState(null, "", link(view));
  setRunning(view, true, "starting");
  try {
    for await (const event of events(request, controller.signal)) {
      if (own.controller !== controller) return;
      receive(view, event);
    }
  } catch (error) {
    if (own.controller === controller && error.name !== "AbortError") showError(view, "", `the server does not answer: ${error.message}`);
  }
  if (own.controller === controller) setRunning(view, false, controller.signal.aborted ? "stopped" : own.status.textContent);
}

function stop(view) {
  const own = state[view];
  if (own.controller) own.controller.abort();
  if (own.isRunning) setRunning(view, false, "stopped");
}

function setRunning(view, isRunning, words) {
  const own = state[view];
  Object.assign(own, { isRunning });
  own.run.disabled = false;
  own.stop.disabled = !isRunning;
  own.status.textContent = words;
}

async function* events(request, signal) {
  if (recorded) {
    const key = canonical(request);
    const found = recorded.runs.find((one) => canonical(one.request) === key);
    yield* found ? found.events : [{ event: "error", field: "", error: NOT_RECORDED }];
    return;
  }
  const answer = await fetch("api/runs", { method: "POST", signal, headers: headers(), body: JSON.stringify(request) });
  if (!answer.ok) { yield await answer.json(); return; }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let buffer = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const messages = (buffer + value).split("\n\n");
    buffer = messages.pop();
    for (const message of messages) if (message.startsWith("data: ")) yield JSON.parse(message.slice(6));
  }
}

const canonical = (value) => JSON.stringify(value, (_, part) =>
  part && typeof part === "object" && !Array.isArray(part) ? Object.fromEntries(Object.entries(part).sort()) : part);

const headers = () => ({ "content-type": "application/json", ...(token ? { authorization: `Bearer ${token}` } : {}) });

function receive(view, event) {
  const own = state[view], lane = own.lanes.get(event.lane);
  if (event.event === "queue") own.status.textContent = event.ahead ? `waiting: ${event.ahead} before you` : "running";
  else if (event.event === "start") own.lanes.set(event.lane, newLane(event));
  else if (event.event === "drawing") drawing(own, lane, event);
  else if (event.event === "call") { addFrame(lane, event); own.status.textContent = "running"; }
  else if (event.event === "text") Object.assign(lane, { text: event.text, note: event.note, cer: event.cer, cost: event.cost });
  else if (event.event === "registers") { own.registers = event; return showExtra(view); }
  else if (event.event === "note") own.notes[event.field].textContent = event.text;
  else if (event.event === "error") { showError(view, event.field, event.error); own.status.textContent = ""; }
  else if (event.event === "done") own.status.textContent = "done";
  if (own.follows) own.slider.value = own.slider.max = String(Math.max(1, ...[...own.lanes.values()].map((one) => one.calls)));
  show(view);
}

function drawing(own, lane, event) {
  const words = `drawing registers: step ${event.step} of ${event.steps}`;
  if (lane && lane.frames.length === 1) lane.status = words;
  own.status.textContent = words;
}

// ---------------------------------------------------------------- showing

// The lanes on show: all, or the one that a second slider chooses.
function shownLanes(view) {
  const own = state[view];
  if (view === "autoencode") return [own.lanes.get(String(own.extra.registers))].filter(Boolean);
  if (view === "interpolate") return [own.lanes.get(own.mix.value)].filter(Boolean);
  return [...own.lanes.values()];
}

function show(view) {
  const own = state[view], lanes = shownLanes(view), call = Number(own.slider.value);
  drawTicks(own.ticks, lanes, call, Number(own.slider.max));
  own.slider.setAttribute("aria-valuetext", `call ${call} of ${own.slider.max}`);
  const names = lanes.map((lane) => lane.name);
  if (names.join() !== own.shown) { own.panes.replaceChildren(...lanes.map((lane) => pane(view, lane))); own.shown = names.join(); }
  lanes.forEach((lane, index) => showLane(view, lane, own.panes.children[index], call));
  if (view === "interpolate") own.mix.max = String(Math.max(1, Number(own.inputs.steps.value) - 1));
}

function pane(view, lane) {
  return element("section", { class: "lane", "aria-label": lane.label }, element("h2", { text: lane.label }), element("p", { class: "cost" }),
    element("pre", { tabindex: "0", role: "group", "aria-label": `text of ${lane.label}` }),
    element("div", { class: "buttons" },
      element("button", { type: "button", text: "Copy", onclick: (event) => copy(event.target, currentLane(view, lane.name).text) }),
      element("button", { type: "button", text: "Download", onclick: () => download(currentLane(view, lane.name).text, `${view}-${lane.name}.txt`) })));
}

const currentLane = (view, name) => state[view].lanes.get(name);

function showLane(view, lane, node, call) {
  const [, cost, pre, buttons] = node.children;
  const isLast = call >= lane.frames[lane.frames.length - 1].call;
  const more = isLast && lane.cer !== undefined ? `; character error rate ${lane.cer}` : "";
  cost.textContent = costLine(lane, call) + more + (lane.note ? ` (${lane.note})` : "");
  for (const button of buttons.children) button.disabled = lane.text === null;
  const before = view === "autoencode" ? state[view].inputs.text.value : view === "steer" ? state[view].before : null;
  if (lane.text !== null && isLast && before) drawDifference(pre, before, lane.text);
  else drawCanvas(pre, lane, call);
}

async function copy(button, text) {
  await navigator.clipboard.writeText(text);
  const words = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = words; }, 1200);
}

function download(text, name) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// ---------------------------------------------------------------- autoencode and steer: more than fields

function registerStops() {
  if (recorded) return [...new Set(recorded.runs.filter((one) => one.request.view === "autoencode").map((one) => one.request.registers))].sort((a, b) => a - b);
  const stops = [];
  for (let count = 1; count < model.registers; count *= 2) stops.push(count);
  return [...stops, model.registers];
}

function addRegisterSlider(view, form) {
  const own = state[view], stops = registerStops();
  own.extra = { registers: model.defaults.autoencode.registers };
  const words = element("output", { id: "registers-shown" });
  const input = element("input", { type: "range", id: "autoencode-registers", min: "0", max: String(stops.length - 1), step: "1" });
  own.showExtra = () => {
    input.value = String(Math.max(0, stops.findLastIndex((stop) => stop <= own.extra.registers)));
    words.textContent = `${own.extra.registers} of ${model.registers}`;
    input.setAttribute("aria-valuetext", words.textContent);
  };
  input.addEventListener("input", () => { own.extra.registers = stops[Number(input.value)]; own.showExtra(); show(view); });
  input.addEventListener("change", () => { if (!own.lanes.get(String(own.extra.registers))?.text) run(view); });
  form.append(field(view, "registers", element("label", { for: input.id }, "Registers: ", words), input));
}

function addStrip(view, form) {
  const own = state[view];
  own.extra = { redrawn: [], noised: [], noise: 0.0 };
  own.modes = new Map();
  own.strip = element("div", { class: "strip", role: "group", "aria-label": "Registers" });
  const noise = element("input", { type: "range", id: "steer-noise", min: "0", max: "3", step: "0.1", value: "0" });
  const words = element("output", {}, "0");
  noise.addEventListener("input", () => { own.extra.noise = Number(noise.value); showExtra(view); });
  noise.addEventListener("change", () => { if (own.extra.noised.length) steer(); });
  form.append(field(view, "noise", element("label", { for: noise.id }, "Noise on noised registers: ", words), noise));
  form.append(element("button", { type: "button", text: "Draw again", onclick: () => { own.inputs.redraw_seed.value = Number(own.inputs.redraw_seed.value) + 1; steer(); } }));
  own.showExtra = () => {
    noise.value = String(own.extra.noise);
    words.textContent = String(own.extra.noise);
    if (own.registers) drawStrip(own.strip, own.registers, own.modes, nextMode);
  };
}

// Click by click: held, drawn again (if the prior draws this register), noised, held.
function nextMode(number) {
  const own = state.steer, canDraw = number < Math.min(own.registers.drawable, own.registers.values.length);
  const modes = canDraw ? MODES : MODES.filter((mode) => mode !== "redrawn");
  own.modes.set(number, modes[(modes.indexOf(own.modes.get(number) || "held") + 1) % modes.length]);
  const having = (mode) => [...own.modes].filter(([, one]) => one === mode).map(([index]) => index).sort((a, b) => a - b);
  Object.assign(own.extra, { redrawn: having("redrawn"), noised: having("noised") });
  if (own.extra.noised.length && !own.extra.noise) own.extra.noise = 1.0;
  steer();
}

function readModes() {
  const { extra, modes } = state.steer;
  modes.clear();
  extra.redrawn.forEach((number) => modes.set(number, "redrawn"));
  extra.noised.forEach((number) => modes.set(number, "noised"));
}

function steer() {
  const text = state.steer.lanes.get("steered")?.text;
  if (text) state.steer.before = text;
  showExtra("steer");
  run("steer");
}

const showExtra = (view) => state[view].showExtra?.();

// ---------------------------------------------------------------- forms

function field(view, name, label, input) {
  const own = state[view];
  own.errors[name] = element("p", { class: "error", id: `${view}-${name}-error`, role: "alert" });
  own.notes[name] = element("p", { class: "note" });
  input.setAttribute("aria-describedby", `${view}-${name}-error`);
  return element("div", { class: TEXTS.has(name) ? "field wide" : "field" }, label, input, own.notes[name], own.errors[name]);
}

function formField(view, name) {
  const id = `${view}-${name}`, words = view === "steer" && name === "text" ? STEER_TEXT : LABELS[name];
  let input;
  if (name === "methods") {
    const boxes = Object.entries(model.methods).map(([method, about]) =>
      element("label", {}, element("input", { type: "checkbox", value: method, checked: true }), ` ${about}`));
    input = element("fieldset", { id }, element("legend", { text: words }), ...boxes);
  } else if (TEXTS.has(name)) input = element("textarea", { id, spellcheck: "false", autocomplete: "off" });
  else input = element("input", { id, type: "number", min: "0", step: "1", autocomplete: "off" });
  state[view].inputs[name] = input;
  if (recorded) for (const one of [input, ...input.querySelectorAll("input")]) one.disabled = true;
  return field(view, name, name === "methods" ? "" : element("label", { for: id, text: words }), input);
}

function buildView(view) {
  const own = state[view] = { inputs: {}, errors: {}, notes: {}, extra: {}, lanes: new Map(), shown: "", follows: true, before: null };
  const form = element("form", { novalidate: true, onsubmit: (event) => { event.preventDefault(); run(view); } });
  form.append(...VIEWS[view].fields.map((name) => formField(view, name)));
  if (view === "autoencode") addRegisterSlider(view, form);
  if (view === "steer") addStrip(view, form);
  own.main = element("p", { class: "error", role: "alert" });
  own.status = element("span", { role: "status" });
  own.run = element("button", { type: "button", class: "main", text: "Run", onclick: () => { own.before = null; run(view); } });
  own.stop = element("button", { type: "button", text: "Stop", disabled: true, onclick: () => stop(view) });
  const share = element("button", { type: "button", text: "Copy link", onclick: (event) => copy(event.target, new URL(link(view), location.href).href) });
  own.slider = element("input", { type: "range", id: `${view}-call`, min: "0", max: "1", step: "1", value: "1" });
  own.slider.addEventListener("input", () => { own.follows = own.slider.value === own.slider.max; show(view); });
  own.ticks = element("div", { class: "ticks", "aria-hidden": "true" });
  own.panes = element("div", { class: "lanes", "aria-live": "off" });
  const panel = element("div", { role: "tabpanel", id: `view-${view}`, "aria-labelledby": `tab-${view}`, hidden: true },
    element("p", { class: "hint", text: VIEWS[view].hint }), recordedMenu(view), form,
    element("div", { class: "buttons" }, own.run, own.stop, share, own.status), own.main);
  if (own.strip) panel.append(own.strip);
  if (view === "interpolate") panel.append(mixSlider(view));
  panel.append(element("div", { class: "slider" }, element("label", { for: own.slider.id, text: "Call" }), own.slider, own.ticks), own.panes);
  document.getElementById("views").append(panel);
  fillForm(view, model.defaults[view]);
}

function mixSlider(view) {
  const own = state[view];
  own.mix = element("input", { type: "range", id: "interpolate-mix", min: "0", max: "4", step: "1", value: "0" });
  own.mix.addEventListener("input", () => show(view));
  return element("div", { class: "slider" }, element("label", { for: own.mix.id, text: "From the first text to the second" }), own.mix);
}

function recordedMenu(view) {
  const runs = recorded ? recorded.runs.filter((one) => one.request.view === view) : [];
  if (!recorded) return "";
  const menu = element("select", { id: `${view}-recorded` }, ...runs.map((one, index) => element("option", { value: String(index), text: recordedName(one.request) })));
  menu.addEventListener("change", () => { fillForm(view, runs[Number(menu.value)].request); run(view); });
  return element("p", {}, element("label", { for: menu.id, text: "Recorded run: " }), menu);
}

function recordedName(request) {
  const parts = { generate: `seed ${request.seed}`, complete: request.prefix, autoencode: `${request.registers} registers`,
                  interpolate: `${request.steps} steps` };
  const steered = [...(request.redrawn || []).map((number) => `register ${number + 1} drawn again`),
                   ...(request.noised || []).map((number) => `register ${number + 1} with noise ${request.noise}`)];
  return request.view === "steer" ? steered.join(", ") || "all registers held" : parts[request.view].trim();
}

// ---------------------------------------------------------------- links and tabs

// A link holds the view and what differs from its defaults.
function link(view) {
  const values = Object.entries(readForm(view)).filter(([name, value]) =>
    name !== "view" && canonical(value) !== canonical(model.defaults[view][name]));
  return `#${new URLSearchParams({ view, ...Object.fromEntries(values.map(([name, value]) => [name, JSON.stringify(value)])) })}`;
}

function openLink() {
  const values = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const view = values.view in VIEWS ? values.view : "generate";
  const known = {};
  for (const [name, text] of Object.entries(values)) {
    if (!(name in model.defaults[view])) continue;
    try { known[name] = JSON.parse(text); } catch { continue; }
    if (Array.isArray(model.defaults[view][name]) !== Array.isArray(known[name])) delete known[name];
  }
  fillForm(view, known);
  select(view);
}

function select(view, focus = false) {
  current = view;
  for (const name of Object.keys(VIEWS)) {
    const tab = document.getElementById(`tab-${name}`), isChosen = name === view;
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
  document.getElementById("tabs").append(...names.map((name) => element("button", { role: "tab", type: "button", id: `tab-${name}`,
    "aria-controls": `view-${name}`, text: VIEWS[name].title, onclick: () => select(name), onkeydown: move })));
}

function buildLegend() {
  const samples = { h: "░░", n: "new", k: "kept", a: "▒▒" };
  document.getElementById("legend").append(...Object.entries(model.states).map(([key, words]) =>
    element("li", {}, element("span", { class: `cell-${key}`, text: samples[key] }), words)));
}

function takeToken() {
  const values = new URLSearchParams(location.hash.slice(1));
  if (values.has("token")) {  // kept for this tab, and out of links
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
    if (!answer.ok) { place.textContent = content.error; return; }
    model = content;
  }
  place.textContent = `model ${model.name}, ${model.registers} registers, crocodil ${model.version}` + (recorded ? "; recorded runs" : "; nothing leaves this machine");
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
