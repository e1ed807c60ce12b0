// Requests and runs: what a view asks for, the stream of events that answers, and what is shown of it.
// The page talks to its own server only, or plays recorded runs.
"use strict";

const recorded = window.RECORDED || null;
const NOT_RECORDED =
  "this page holds recorded runs only: install crocodil and start `crocodil play` to make your own";

const NUMBERS = { seed: "Seed", length: "Tokens", calls: "Calls" };
const VIEWS = {
  generate: {
    title: "Generate",
    hint: "All methods from one seed. Move the slider to see each call.",
    fields: ["seed", "length", "calls", "methods"],
  },
  complete: {
    title: "Complete",
    hint: "The model keeps what you give and fills the rest.",
    fields: ["prefix", "suffix", "seed", "length", "calls", "methods"],
  },
  autoencode: {
    title: "Autoencode",
    hint: "Your text from its own registers: few are coarse, all are fine.",
    fields: ["text", "calls"],
  },
  interpolate: {
    title: "Interpolate",
    hint: "Decode the registers between two texts.",
    fields: ["first", "second", "steps", "calls"],
  },
  steer: {
    title: "Steer",
    hint: "Click a register to draw it again or to put noise on it; the text changes beneath.",
    recordedHint: "Choose a run in which a register is drawn again, or has noise on it; the text changes beneath.",
    fields: ["text", "seed", "length", "calls", "redraw_seed"],
  },
};
const LABELS = {
  ...NUMBERS,
  steps: "Steps",
  methods: "Methods",
  prefix: "Text before",
  suffix: "Text after",
  text: "Text",
  first: "First text",
  second: "Second text",
  redraw_seed: "Seed for drawing again",
};
const STEER_TEXT = "Text (empty: registers drawn from the prior by the seed)";
const TEXTS = new Set(["prefix", "suffix", "text", "first", "second"]);

let model,
  token = "",
  current = "generate";
const state = {}; // per view: form nodes, lanes, slider positions

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
    else if (name === "methods")
      for (const box of inputs.methods.querySelectorAll("input")) box.checked = value.includes(box.value);
    else if (name in inputs) inputs[name].value = value;
  }
  if (view === "steer") readModes();
  showExtra(view);
}

function faults(view, request) {
  const found = [];
  for (const [name, value] of Object.entries(request)) {
    if (TEXTS.has(name) && value.length > model.max_characters)
      found.push([
        name,
        `${value.length.toLocaleString("en")} characters are too many: at most ${model.max_characters.toLocaleString("en")} are taken`,
      ]);
    if (value === null) found.push([name, "give a number"]);
  }
  return found;
}

function showError(view, field, message) {
  const { inputs, errors, main } = state[view];
  (errors[field] || main).textContent = message;
  const input = inputs[field];
  if (input && errors[field]) {
    input.setAttribute("aria-invalid", "true");
    input.focus?.();
  }
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
  const controller = (own.controller = new AbortController());
  if (view !== "autoencode" || own.source !== request.text + request.calls) own.lanes.clear();
  own.source = request.text + request.calls;
  own.original = request.text;
  own.follows = true;
  history.replaceState(null, "", link(view));
  setRunning(view, true, "starting");
  try {
    for await (const event of events(request, controller.signal)) {
      if (own.controller !== controller) return;
      receive(view, event);
    }
  } catch (error) {
    if (own.controller === controller && error.name !== "AbortError")
      showError(view, "", `the server does not answer: ${error.message}`);
  }
  if (own.controller === controller)
    setRunning(view, false, controller.signal.aborted ? "stopped" : own.status.textContent);
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
  const answer = await fetch("api/runs", {
    method: "POST",
    signal,
    headers: headers(),
    body: JSON.stringify(request),
  });
  if (!answer.ok) {
    yield await answer.json();
    return;
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let buffer = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const messages = (buffer + value).split("\n\n");
    buffer = messages.pop();
    for (const message of messages) if (message.startsWith("data: ")) yield JSON.parse(message.slice(6));
  }
}

const canonical = (value) =>
  JSON.stringify(value, (_, part) =>
    part && typeof part === "object" && !Array.isArray(part)
      ? Object.fromEntries(Object.entries(part).sort())
      : part,
  );

const headers = () => ({
  "content-type": "application/json",
  ...(token ? { authorization: `Bearer ${token}` } : {}),
});

function receive(view, event) {
  const own = state[view],
    lane = own.lanes.get(event.lane);
  if (event.event === "queue")
    own.status.textContent = event.ahead ? `waiting: ${event.ahead} before you` : "running";
  else if (event.event === "start") own.lanes.set(event.lane, newLane(event));
  else if (event.event === "drawing") drawing(own, lane, event);
  else if (event.event === "call") {
    addFrame(lane, event);
    own.status.textContent = "running";
  } else if (event.event === "text")
    Object.assign(lane, { text: event.text, note: event.note, cer: event.cer, cost: event.cost });
  else if (event.event === "registers") {
    own.registers = event;
    return showExtra(view);
  } else if (event.event === "note") {
    own.notes[event.field].textContent = event.text;
    if (event.field === "text") own.original = [...own.original].slice(0, event.kept).join("");
  } else if (event.event === "error") {
    showError(view, event.field, event.error);
    own.status.textContent = "";
  } else if (event.event === "done") own.status.textContent = "done";
  show(view);
}

function drawing(own, lane, event) {
  if (lane && lane.frames.length === 1) lane.status = `drawing registers: step ${event.step} of ${event.steps}`;
  if (event.step === 1) own.status.textContent = "drawing registers";
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
  const own = state[view],
    lanes = shownLanes(view);
  for (const slider of own.sliders) slider.hidden = !own.lanes.size; // there is nothing to move through before the first run
  if (lanes.length) own.slider.max = String(Math.max(1, ...lanes.map(callsOf)));
  if (own.follows) own.slider.value = own.slider.max;
  const call = Number(own.slider.value);
  drawTicks(own.ticks, lanes, call, Number(own.slider.max));
  own.slider.setAttribute("aria-valuetext", `call ${call} of ${own.slider.max}`);
  const names = lanes.map((lane) => lane.name);
  if (names.join() !== own.shown) {
    own.panes.replaceChildren(...lanes.map((lane) => pane(view, lane)));
    own.shown = names.join();
  }
  lanes.forEach((lane, index) => showLane(view, lane, own.panes.children[index], call));
  if (view === "interpolate") {
    own.mix.max = String(Math.max(1, Number(own.inputs.steps.value) - 1));
    own.mix.setAttribute("aria-valuetext", lanes.length ? lanes[0].label : "not decoded yet");
  }
}

function pane(view, lane) {
  return element(
    "section",
    { class: "lane", "aria-label": lane.label },
    element("h2", { text: lane.label }),
    element("p", { class: "cost" }),
    element("pre", { tabindex: "0", role: "group", "aria-label": `text of ${lane.label}` }),
    element(
      "div",
      { class: "buttons" },
      element("button", {
        type: "button",
        text: "Copy",
        onclick: (event) => copy(event.target, currentLane(view, lane.name).text),
      }),
      element("button", {
        type: "button",
        text: "Download",
        onclick: () => download(currentLane(view, lane.name).text, `${view}-${lane.name}.txt`),
      }),
    ),
  );
}

const currentLane = (view, name) => state[view].lanes.get(name);

function showLane(view, lane, node, call) {
  const [, cost, pre, buttons] = node.children;
  const isLast = call >= lastCall(lane);
  const more = isLast && lane.cer !== undefined ? `; character error rate ${lane.cer}` : "";
  cost.textContent = costLine(lane, call) + more + (lane.note ? ` (${lane.note})` : "");
  for (const button of buttons.children) button.disabled = lane.text === null;
  const before = view === "autoencode" ? state[view].original : view === "steer" ? state[view].before : null;
  if (lane.text !== null && isLast && before) drawDifference(pre, before, lane.text);
  else drawCanvas(pre, lane, call);
}

async function copy(button, text) {
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else copyFromField(text); // plain HTTP from another machine has no clipboard
  const words = (button.dataset.words ??= button.textContent);
  button.textContent = "Copied";
  setTimeout(() => {
    button.textContent = words;
  }, 1200);
}

function copyFromField(text) {
  const field = element("textarea", { text });
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

function download(text, name) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
