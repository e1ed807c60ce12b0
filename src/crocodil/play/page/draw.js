// What the page draws: canvases of tokens, differences, register strips. All text is set as text, never as markup.
"use strict";

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "text") node.textContent = value;
    else if (key in node && typeof value !== "string") node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

// ---------------------------------------------------------------- lanes: one text, call by call

// A frame is {call, cells: [[text, state, call of the last change, confidence]], cost, refresh}; frame 0 is before the first call.
function newLane(event) {
  const cells = event.cells.map(([, text, state]) => [text, state, 0, null]);
  return {
    name: event.lane,
    label: event.label,
    calls: event.calls,
    text: null,
    note: "",
    status: "waits",
    frames: [{ call: 0, cells, cost: null, refresh: false }],
  };
}

function addFrame(lane, event) {
  const last = lane.frames[lane.frames.length - 1];
  const older = { n: "k", a: "h" };
  const cells = last.cells.map(([text, state, call, confidence]) => [
    text,
    older[state] || state,
    call,
    confidence,
  ]);
  for (const [position, text, state, confidence] of event.cells)
    cells[position - 1] = [text, state, event.call, confidence];
  lane.frames.push({ call: event.call, cells, cost: event.cost, refresh: event.refresh });
}

function frameAt(lane, call) {
  let found = lane.frames[0];
  for (const frame of lane.frames) if (frame.call <= call) found = frame;
  return found;
}

const isHidden = (state) => state === "h" || state === "a";

// Once the text is known, a hidden token takes the room of the final one, so the picture does not jump.
function placeholder(state, final) {
  const block = state === "a" ? "▒" : "░";
  if (final === null || final === undefined) return block;
  const parts = final.split("\n").map((line) => line.replace(/[^\t]/gu, block));
  return parts.length > 1 ? `${parts[0]}${block}\n${parts.slice(1).join("\n")}` : parts[0] || block;
}

function drawCanvas(node, lane, call) {
  const frame = frameAt(lane, call);
  const finals = lane.text === null ? null : lane.frames[lane.frames.length - 1].cells;
  const spans = frame.cells.map(([text, state, changed, confidence], index) => {
    const span = document.createElement("span");
    if (isHidden(state))
      span.textContent = finals ? placeholder(state, finals[index][0]) : state === "a" ? "▒▒" : "░░";
    else span.textContent = text === null ? "·" : text;
    span.className = text === null && !isHidden(state) ? `end cell-${state}` : `cell-${state}`;
    span.title = describe(index + 1, text, state, changed, confidence);
    return span;
  });
  node.replaceChildren(...spans);
}

function describe(position, text, state, changed, confidence) {
  const what = isHidden(state) ? "hidden" : text === null ? "end of text" : JSON.stringify(text);
  const when = changed ? `, since call ${changed}` : isHidden(state) ? "" : ", given";
  const sure = confidence === null ? "" : `, confidence ${confidence}%`;
  return `position ${position}: ${what}${state === "a" ? " again" : ""}${when}${sure}`;
}

const lastCall = (lane) => lane.frames[lane.frames.length - 1].call;

// The calls that a lane has, or will have: decoding ends early when nothing is hidden any more.
const callsOf = (lane) => (lane.text === null ? lane.calls : lastCall(lane));

function costLine(lane, call) {
  const frame = frameAt(lane, call);
  if (!frame.cost) return lane.status;
  const { nfe, flop_nfe, seconds } = frame.cost;
  const fresh = frame.refresh ? "; registers drawn again before this call" : "";
  const endedEarly = frame.call === callsOf(lane) && frame.call < lane.calls;
  const when = endedEarly
    ? `ended after ${frame.call} of ${lane.calls} calls, as nothing was hidden any more`
    : `call ${frame.call} of ${lane.calls}`;
  return `${when}: NFE ${nfe}, ${flop_nfe} by FLOPs, ${seconds} s${fresh}`;
}

function drawTicks(node, lanes, call, count) {
  const refreshes = new Set(lanes.flatMap((lane) => lane.frames.filter((f) => f.refresh).map((f) => f.call)));
  const made = Math.max(0, ...lanes.map(lastCall));
  node.replaceChildren(
    ...Array.from({ length: count }, (_, index) => {
      const tick = document.createElement("i");
      if (index + 1 <= Math.min(call, made)) tick.classList.add("done");
      if (refreshes.has(index + 1)) {
        tick.classList.add("refresh");
        tick.title = "registers drawn again";
      }
      return tick;
    }),
  );
}

// ---------------------------------------------------------------- differences

const words = (text) => text.match(/[\p{L}\p{N}_]+|\s|[^]/gu) || [];

// The parts of two texts as [kind, text], kind "same", "lost" or "added": a longest common subsequence of words.
function difference(before, after) {
  const [a, b] = [words(before), words(after)];
  if (a.length * b.length > 9e6)
    return before === after
      ? [["same", after]]
      : [
          ["lost", before],
          ["added", after],
        ];
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      longest[i * width + j] =
        a[i] === b[j]
          ? longest[(i + 1) * width + j + 1] + 1
          : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
  const parts = [];
  const add = (kind, word) => {
    const last = parts[parts.length - 1];
    if (last && last[0] === kind) last[1] += word;
    else parts.push([kind, word]);
  };
  let i = 0,
    j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      add("same", a[i]);
      i++;
      j++;
    } else if (i < a.length && (j === b.length || longest[(i + 1) * width + j] >= longest[i * width + j + 1]))
      add("lost", a[i++]);
    else add("added", b[j++]);
  }
  return parts;
}

function drawDifference(node, before, after) {
  const names = { same: "span", lost: "del", added: "ins" };
  const shown = (kind, text) => (kind === "same" ? text : text.replace(/\n/g, "↵\n"));
  node.replaceChildren(
    ...difference(before, after).map(([kind, text]) => element(names[kind], { text: shown(kind, text) })),
  );
}

// ---------------------------------------------------------------- registers

// One small picture per register: 4 rows of 8 numbers, warm above 0, cold below.
function drawRegister(canvas, values) {
  const style = getComputedStyle(document.documentElement);
  const [warm, cold] = [style.getPropertyValue("--warm"), style.getPropertyValue("--cold")];
  [canvas.width, canvas.height] = [8, 4];
  const context = canvas.getContext("2d");
  values.forEach((value, index) => {
    context.fillStyle = `rgba(${value > 0 ? warm : cold}, ${Math.min(1, Math.abs(value) / 20)})`;
    context.fillRect(index % 8, Math.floor(index / 8), 1, 1);
  });
}

const MODES = ["held", "redrawn", "noised"];

// `modes` maps the number of a register to one of MODES; `onclick` gets the number.
function drawStrip(node, event, modes, onclick) {
  const focused = [...node.children].indexOf(document.activeElement);
  node.replaceChildren(
    ...event.values.map((values, number) => {
      const mode = modes.get(number) || "held";
      const picture = element("canvas", { "aria-hidden": "true" });
      drawRegister(picture, values);
      const button = element(
        "button",
        {
          type: "button",
          class: mode,
          "aria-label": `register ${number + 1}: ${mode}`,
          onclick: () => onclick(number),
        },
        picture,
        `${number + 1} `,
        element("span", { text: mode }),
      );
      button.disabled = Boolean(window.RECORDED) || number >= event.used;
      return button;
    }),
  );
  if (focused >= 0) node.children[focused]?.focus();
}
