// Forms: the fields of each view, the sliders and the register strip.
"use strict";

// ---------------------------------------------------------------- autoencode and steer: more than fields

function registerStops() {
  if (recorded)
    return [
      ...new Set(
        recorded.runs.filter((one) => one.request.view === "autoencode").map((one) => one.request.registers),
      ),
    ].sort((a, b) => a - b);
  const stops = [];
  for (let count = 1; count < model.registers; count *= 2) stops.push(count);
  return [...stops, model.registers];
}

function addRegisterSlider(view, form) {
  const own = state[view],
    stops = registerStops();
  own.extra = { registers: model.defaults.autoencode.registers };
  const words = element("output", { id: "registers-shown" });
  const input = element("input", {
    type: "range",
    id: "autoencode-registers",
    min: "0",
    max: String(stops.length - 1),
    step: "1",
  });
  own.showExtra = () => {
    input.value = String(
      Math.max(
        0,
        stops.findLastIndex((stop) => stop <= own.extra.registers),
      ),
    );
    words.textContent = `${own.extra.registers} of ${model.registers}`;
    input.setAttribute("aria-valuetext", words.textContent);
  };
  input.addEventListener("input", () => {
    own.extra.registers = stops[Number(input.value)];
    own.showExtra();
    show(view);
  });
  input.addEventListener("change", () => {
    if (!own.lanes.get(String(own.extra.registers))?.text) run(view);
  });
  form.append(field(view, "registers", element("label", { for: input.id }, "Registers: ", words), input));
}

function addStrip(view, form) {
  const own = state[view];
  own.extra = { redrawn: [], noised: [], noise: 0.0 };
  own.modes = new Map();
  own.strip = element("div", { class: "strip", role: "group", "aria-label": "Registers" });
  const noise = element("input", {
    type: "range",
    id: "steer-noise",
    min: "0",
    max: "3",
    step: "0.1",
    value: "0",
    disabled: Boolean(recorded),
  });
  const words = element("output", {}, "0");
  noise.addEventListener("input", () => {
    own.extra.noise = Number(noise.value);
    showExtra(view);
  });
  noise.addEventListener("change", () => {
    if (own.extra.noised.length) steer();
  });
  form.append(
    field(view, "noise", element("label", { for: noise.id }, "Noise on noised registers: ", words), noise),
  );
  const again = element("button", {
    type: "button",
    text: "Draw the redrawn registers once more",
    onclick: () => {
      own.inputs.redraw_seed.value = Number(own.inputs.redraw_seed.value) + 1;
      steer();
    },
  });
  form.append(again);
  own.showExtra = () => {
    again.disabled = Boolean(recorded) || !own.extra.redrawn.length;
    noise.value = String(own.extra.noise);
    words.textContent = String(own.extra.noise);
    if (own.registers) drawStrip(own.strip, own.registers, own.modes, nextMode);
  };
}

// Click by click: held, drawn again (if the prior draws this register), noised, held.
function nextMode(number) {
  const own = state.steer,
    canDraw = number < Math.min(own.registers.drawable, own.registers.values.length);
  const modes = canDraw ? MODES : MODES.filter((mode) => mode !== "redrawn");
  own.modes.set(number, modes[(modes.indexOf(own.modes.get(number) || "held") + 1) % modes.length]);
  const having = (mode) =>
    [...own.modes]
      .filter(([, one]) => one === mode)
      .map(([index]) => index)
      .sort((a, b) => a - b);
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
  return element(
    "div",
    { class: TEXTS.has(name) ? "field wide" : "field" },
    label,
    input,
    own.notes[name],
    own.errors[name],
  );
}

function formField(view, name) {
  const id = `${view}-${name}`,
    words = view === "steer" && name === "text" ? STEER_TEXT : LABELS[name];
  let input;
  if (name === "methods") {
    const boxes = Object.entries(model.methods).map(([method, about]) =>
      element("label", {}, element("input", { type: "checkbox", value: method, checked: true }), about),
    );
    input = element("fieldset", { id }, element("legend", { text: words }), ...boxes);
  } else if (TEXTS.has(name)) input = element("textarea", { id, spellcheck: "false", autocomplete: "off" });
  else input = element("input", { id, type: "number", min: "0", step: "1", autocomplete: "off" });
  state[view].inputs[name] = input;
  if (recorded) for (const one of [input, ...input.querySelectorAll("input")]) one.disabled = true;
  return field(view, name, name === "methods" ? "" : element("label", { for: id, text: words }), input);
}

function buildView(view) {
  const own = (state[view] = {
    inputs: {},
    errors: {},
    notes: {},
    extra: {},
    lanes: new Map(),
    shown: "",
    follows: true,
    before: null,
  });
  const form = element("form", {
    novalidate: true,
    onsubmit: (event) => {
      event.preventDefault();
      run(view);
    },
  });
  form.append(...VIEWS[view].fields.map((name) => formField(view, name)));
  if (view === "autoencode") addRegisterSlider(view, form);
  if (view === "steer") addStrip(view, form);
  own.main = element("p", { class: "error", role: "alert" });
  own.status = element("span", { role: "status" });
  own.run = element("button", {
    type: "button",
    class: "main",
    text: "Run",
    onclick: () => {
      own.before = null;
      run(view);
    },
  });
  own.stop = element("button", { type: "button", text: "Stop", disabled: true, onclick: () => stop(view) });
  const share = element("button", {
    type: "button",
    text: "Copy link",
    onclick: (event) => copy(event.target, new URL(link(view), location.href).href),
  });
  own.slider = element("input", { type: "range", id: `${view}-call`, min: "0", max: "1", step: "1", value: "1" });
  own.slider.addEventListener("input", () => {
    own.follows = own.slider.value === own.slider.max;
    show(view);
  });
  own.ticks = element("div", { class: "ticks", "aria-hidden": "true" });
  own.panes = element("div", { class: "lanes", "aria-live": "off" });
  const panel = element(
    "div",
    { role: "tabpanel", id: `view-${view}`, "aria-labelledby": `tab-${view}`, hidden: true },
    element("p", { class: "hint", text: (recorded && VIEWS[view].recordedHint) || VIEWS[view].hint }),
    recordedMenu(view),
    form,
    element("div", { class: "buttons" }, own.run, own.stop, share, own.status),
    own.main,
  );
  if (own.strip) panel.append(own.strip);
  const calls = element(
    "div",
    { class: "slider", hidden: true },
    element("label", { for: own.slider.id, text: "Call" }),
    own.slider,
    own.ticks,
  );
  own.sliders = view === "interpolate" ? [mixSlider(view), calls] : [calls];
  panel.append(...own.sliders, own.panes);
  document.getElementById("views").append(panel);
  fillForm(view, model.defaults[view]);
}

function mixSlider(view) {
  const own = state[view];
  own.mix = element("input", { type: "range", id: "interpolate-mix", min: "0", max: "4", step: "1", value: "0" });
  own.mix.addEventListener("input", () => show(view));
  return element(
    "div",
    { class: "slider", hidden: true },
    element("label", { for: own.mix.id, text: "From the first text to the second" }),
    own.mix,
  );
}

// In a page of recorded runs, a menu takes the place of clicks on registers.
function recordedMenu(view) {
  if (!recorded || view !== "steer") return "";
  const runs = recorded.runs.filter((one) => one.request.view === view);
  const menu = element(
    "select",
    { id: `${view}-recorded` },
    ...runs.map((one, index) => element("option", { value: String(index), text: recordedName(one.request) })),
  );
  menu.addEventListener("change", () => {
    fillForm(view, runs[Number(menu.value)].request);
    steer();
  });
  return element("p", {}, element("label", { for: menu.id, text: "Recorded run: " }), menu);
}

function recordedName(request) {
  const steered = [
    ...request.redrawn.map((number) => `register ${number + 1} drawn again`),
    ...request.noised.map((number) => `register ${number + 1} with noise ${request.noise}`),
  ];
  return steered.join(", ") || "all registers held";
}
