// Bars and marks, on lanes and in the legend alike.

import { stateOf, STATES } from "./states.js";

const LEVELS_SHOWN = new Set(["queued", "decode"]); // bars whose ground is even
const TILE = 6; // side of a pattern's tile, pixels

/** Colours of the theme that holds now, and patterns made of them. */
export class Palette {
  constructor(context, ratio = 1) {
    const probe = document.createElement("span"); // var() and light-dark() are resolved where a colour is used
    document.body.append(probe);
    const read = (name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    this.text = read("--text");
    this.quiet = read("--quiet");
    this.line = read("--line");
    this.panel = read("--panel");
    this.bad = read("--bad");
    this.chosen = read("--chosen");
    this.ahead = read("--ahead");
    this.colours = new Map(STATES.map(({ name }) => [name, read(`--state-${name}`)]));
    this.onDecode = read("--on-decode");
    this.device = read("--device");
    this.host = read("--host");
    this.batch = read("--batch");
    this.out = read("--state-swapping_out");
    this.in = read("--state-swapping_in");
    probe.remove();
    this.fills = new Map(
      STATES.map(({ name, pattern }) => [name, this.#fill(context, this.colours.get(name), pattern, ratio)]),
    );
  }

  #fill(context, colour, pattern, ratio) {
    if (pattern === null || pattern === "hollow") return colour;
    const tile = document.createElement("canvas");
    tile.width = tile.height = TILE * ratio;
    const on = tile.getContext("2d");
    on.scale(ratio, ratio);
    on.fillStyle = colour;
    on.fillRect(0, 0, TILE, TILE);
    on.strokeStyle = on.fillStyle = this.panel;
    on.lineWidth = 1.4;
    on.beginPath();
    if (pattern === "dots") {
      on.arc(TILE / 2, TILE / 2, 1.1, 0, 2 * Math.PI);
      on.fill();
    } else {
      const [left, right] = pattern === "rising" ? [TILE, 0] : [0, TILE];
      for (const shift of [-TILE, 0, TILE]) {
        on.moveTo(shift, left);
        on.lineTo(shift + TILE, right);
      }
      on.stroke();
    }
    const made = context.createPattern(tile, "repeat");
    made.setTransform(new DOMMatrix().scale(1 / ratio));
    return made;
  }
}

/** One bar. top, height: of its lane, less the room for marks */
export function bar(context, palette, name, x, end, top, height) {
  const state = stateOf(name);
  const own = Math.max(2, Math.round(height * state.height));
  const y = Math.round(top + (height - own) / 2);
  context.fillStyle = palette.fills.get(state.name);
  if (state.pattern === "hollow" && end - x >= 4 && own >= 5) {
    context.strokeStyle = palette.colours.get(state.name);
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, end - x - 1, own - 1);
  } else {
    context.fillRect(x, y, end - x, own);
  }
}

/** The queue's name in a bar that has room for it. */
export function level(context, palette, state, name, x, end, middle) {
  if (end - x < 24 || !name || !LEVELS_SHOWN.has(state)) return;
  context.font = "600 9px system-ui, sans-serif";
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = state === "decode" ? palette.onDecode : palette.text;
  context.fillText(name, x + 4, middle + 0.5);
}

/** A flag where the first token came: a line over the whole lane with a head. */
export function firstToken(context, palette, x, top, height) {
  context.fillStyle = palette.panel;
  context.fillRect(x - 2, top, 4, height);
  context.fillStyle = palette.text;
  context.fillRect(x - 1, top, 2, height);
  triangle(context, x - 1, top, 6, 7, "right");
}

/** A demotion points down, from under the bar; a promotion up. */
export function demotion(context, palette, x, bottom) {
  context.fillStyle = palette.text;
  triangle(context, x, bottom, 3.5, 4, "down");
}

export function promotion(context, palette, x, top) {
  context.fillStyle = palette.text;
  triangle(context, x, top, 3.5, 4, "up");
}

/** It ended without being complete. */
export function cross(context, palette, x, middle) {
  context.strokeStyle = palette.bad;
  context.lineWidth = 2;
  context.beginPath();
  context.moveTo(x, middle - 4);
  context.lineTo(x + 8, middle + 4);
  context.moveTo(x, middle + 4);
  context.lineTo(x + 8, middle - 4);
  context.stroke();
}

/** y: of its tip, or of its upper edge if it points to the right; width: half of it, or its length */
function triangle(context, x, y, width, height, to) {
  context.beginPath();
  if (to === "right") {
    context.moveTo(x, y);
    context.lineTo(x + width, y + height / 2);
    context.lineTo(x, y + height);
  } else {
    const base = to === "down" ? y - height : y + height;
    context.moveTo(x - width, base);
    context.lineTo(x + width, base);
    context.lineTo(x, y);
  }
  context.fill();
}
