// A lane per request. Only those that are in sight are drawn, and have an element that can be named and clicked.

import { segmentAt } from "./model.js";
import { bar, cross, demotion, firstToken, level, promotion } from "./paint.js";
import { runsOf } from "./runs.js";
import { duration } from "./scale.js";
import { queueName, stateOf } from "./states.js";
import { Surface } from "./surface.js";

export const LANE = 22; // pixels, marks included
const MARK = 7; // width of a demotion's or promotion's mark
const MARKS = 4; // room above and below the bars
const INCOMPLETE = new Set(["error", "abort", "refused"]);

export class Lanes {
  #list;
  #spacer;
  #surface;
  #options = new Map(); // by the lane's key
  #lanes = [];

  /** list: the listbox, which scrolls; canvas: stays in its place there */
  constructor(list, canvas, onScroll) {
    this.#list = list;
    this.#spacer = list.querySelector(".spacer");
    this.#surface = new Surface(canvas);
    list.addEventListener("scroll", onScroll, { passive: true });
  }

  /** Lanes above the first that is in sight and stays may come and go: that one keeps its place. */
  set lanes(lanes) {
    const before = this.#lanes;
    if (lanes.length === before.length && lanes.every((lane, i) => lane === before[i])) return;
    const [scrolled, places] = [this.#list.scrollTop, new Map(lanes.map((lane, i) => [lane.key, i]))];
    const first = Math.floor(scrolled / LANE);
    const kept = before.slice(first).findIndex((lane) => places.has(lane.key));
    this.#lanes = lanes;
    this.#spacer.style.height = `${lanes.length * LANE}px`;
    if (scrolled > 0 && kept >= 0) {
      const lane = before[first + kept];
      this.#list.scrollTop = scrolled + (places.get(lane.key) - first - kept) * LANE;
    }
  }

  get height() {
    return this.#list.clientHeight;
  }

  /** The lane at a place, relative to the visible part of the list; null below the last. */
  at(y) {
    return this.#lanes[Math.floor((this.#list.scrollTop + y) / LANE)] ?? null;
  }

  reveal(lane) {
    const top = this.#lanes.indexOf(lane) * LANE;
    const list = this.#list;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + LANE > list.scrollTop + list.clientHeight) list.scrollTop = top + LANE - list.clientHeight;
  }

  scrollBy(pixels) {
    this.#list.scrollTop += pixels;
  }

  /** chosen: a lane or null; ahead: ids of those who ran in its place */
  draw(scale, marks, chosen, ahead) {
    const first = Math.floor(this.#list.scrollTop / LANE);
    const last = Math.min(this.#lanes.length, Math.ceil((this.#list.scrollTop + this.height) / LANE));
    const seen = this.#lanes.slice(first, last);
    this.#label(seen, first, chosen, ahead);
    const palette = this.#surface.begin(scale.width, this.height);
    const context = this.#surface.context;
    seen.forEach((lane, i) => {
      const top = (first + i) * LANE - this.#list.scrollTop;
      if (lane === chosen || ahead.has(lane.id)) {
        context.fillStyle = lane === chosen ? palette.chosen : palette.ahead;
        context.fillRect(0, top, scale.width, LANE);
      }
      context.fillStyle = palette.line;
      context.fillRect(0, top + LANE - 1, scale.width, 1);
    });
    context.fillStyle = palette.line;
    for (const { x } of marks) context.fillRect(Math.round(x), 0, 1, this.height);
    seen.forEach((lane, i) => this.#bars(palette, scale, lane, (first + i) * LANE - this.#list.scrollTop));
  }

  #bars(palette, scale, lane, top) {
    const context = this.#surface.context;
    const inside = (at) => at >= scale.from && at <= scale.to;
    for (const run of runsOf(lane, scale)) {
      bar(context, palette, run.state, run.x, run.end, top + MARKS, LANE - 2 * MARKS - 1);
      level(context, palette, run.state, queueName(run.level), run.x, run.end, top + (LANE - 1) / 2);
    }
    for (const x of marksOf(lane.demotions, scale)) demotion(context, palette, x, top + LANE - 1);
    for (const x of marksOf(lane.promotions, scale)) promotion(context, palette, x, top);
    if (lane.firstToken !== null && inside(lane.firstToken)) {
      firstToken(context, palette, scale.x(lane.firstToken), top + 1, LANE - 3);
    }
    if (INCOMPLETE.has(lane.finish) && inside(lane.end)) cross(context, palette, scale.x(lane.end) + 2, top + LANE / 2);
  }

  #label(seen, first, chosen, ahead) {
    const kept = new Set(seen.map((lane) => lane.key));
    for (const [key, option] of this.#options) {
      if (!kept.has(key)) {
        option.remove();
        this.#options.delete(key);
      }
    }
    seen.forEach((lane, i) => {
      const option = this.#options.get(lane.key) ?? this.#option(lane);
      if (option.textContent !== lane.name) option.textContent = option.title = lane.name;
      option.style.top = `${(first + i) * LANE}px`;
      option.setAttribute("aria-posinset", first + i + 1);
      option.setAttribute("aria-setsize", this.#lanes.length);
      option.setAttribute("aria-selected", lane === chosen);
      option.setAttribute("aria-label", described(lane, ahead));
      option.classList.toggle("ahead", ahead.has(lane.id));
    });
    const named = chosen && this.#options.get(chosen.key);
    if (named) this.#list.setAttribute("aria-activedescendant", named.id);
    else this.#list.removeAttribute("aria-activedescendant");
  }

  #option(lane) {
    const option = document.createElement("div");
    option.role = "option";
    option.id = `lane-${lane.key}`;
    option.className = "lane";
    this.#spacer.append(option);
    this.#options.set(lane.key, option);
    return option;
  }
}

/** Where marks go, pixels: of those that would cover each other, the first. */
export function marksOf(changes, scale) {
  const places = [];
  for (const { at } of changes) {
    const x = scale.x(at);
    if (x >= 0 && x <= scale.width && !(x - places.at(-1) < MARK)) places.push(x);
  }
  return places;
}

/** A lane in words, for those who do not see it. */
function described(lane, ahead) {
  const parts = [`request ${lane.name}`, `${duration(lane.end - lane.start)} ${lane.finish ? "in all" : "so far"}`];
  if (lane.firstToken !== null) parts.push(`first token after ${duration(lane.firstToken - lane.start)}`);
  if (lane.demotions.length) parts.push(`demoted ${lane.demotions.length} times`);
  if (ahead.has(lane.id)) parts.push("ran in place of the chosen request");
  return parts.join(", ");
}

/** What is at a time of a lane: "req-7: decode in Q2, 0.31 s". */
export function readout(lane, at) {
  const segment = segmentAt(lane, at);
  if (!segment) return lane.name;
  const queue = segment.level == null ? "" : ` in ${queueName(segment.level)}`;
  return `${lane.name}: ${stateOf(segment.state).label}${queue}, ${duration(segment.end - segment.start)}`;
}
