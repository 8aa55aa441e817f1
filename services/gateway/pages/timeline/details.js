// The panel of the chosen request: its times, where they went, who ran in its place and why, all segments in numbers.

import { duration } from "./scale.js";
import { queueName, stateOf } from "./states.js";
import { displacers, reasons, timeByState } from "./summary.js";

const SHOWN = 200; // rows of the table before one asks for more
const NAMED = 12; // of those who ran in its place

export class Details {
  #panel;
  #linkTo;
  #shown = ""; // what of it would be seen to change

  /** linkTo: makes the address of a request's timeline of its id */
  constructor(panel, linkTo) {
    this.#panel = panel;
    this.#linkTo = linkTo;
  }

  /** lane: or null for none; segment: the one to point at, if any */
  show(lane, segment = null) {
    this.#panel.hidden = lane === null;
    const shown = lane && JSON.stringify([lane.request, segment && lane.segments.indexOf(segment)]);
    if (shown === this.#shown) return; // live: whoever reads it, or is at a link of it, is not disturbed
    this.#shown = shown;
    if (lane === null) return;
    this.#fill("name", [text(lane.name)]);
    this.#fill("facts", pairs(facts(lane)));
    this.#fill("states", rows(timeByState(lane).map((each) => this.#stateRow(each, lane))));
    const ahead = displacers(lane);
    this.#fill("ahead", ahead.slice(0, NAMED).map((each) => this.#aheadItem(each)));
    this.#part("ahead-none").hidden = ahead.length > 0;
    this.#part("ahead-more").textContent = ahead.length > NAMED ? `and ${ahead.length - NAMED} more` : "";
    this.#fill("reasons", reasons(lane).map(({ reason, seconds }) => item(`${reason} (${duration(seconds)})`)));
    this.#table(lane, segment, SHOWN);
  }

  #table(lane, segment, most) {
    const at = segment ? lane.segments.indexOf(segment) : 0;
    const first = Math.max(0, Math.min(at - most / 2, lane.segments.length - most));
    const shown = lane.segments.slice(first, first + most);
    this.#fill("segments", shown.map((each) => this.#segmentRow(each, lane, each === segment)));
    const rest = lane.segments.length - shown.length;
    const more = this.#part("more");
    more.hidden = rest === 0;
    more.textContent = `Show all ${lane.segments.length} segments`;
    more.onclick = () => this.#table(lane, segment, lane.segments.length);
    this.#panel.querySelector("tr.chosen")?.scrollIntoView({ block: "nearest" });
  }

  #stateRow({ state, seconds, times }, lane) {
    const share = seconds / Math.max(lane.end - lane.start, 1e-9);
    const cells = [stateOf(state).label, duration(seconds), `${(share * 100).toFixed(0)} %`, `${times}×`];
    return cells.map(text);
  }

  #aheadItem({ id, seconds, times }) {
    const entry = document.createElement("li");
    entry.append(this.#link(id), text(` ${duration(seconds)} in ${times} ${times === 1 ? "wait" : "waits"}`));
    return entry;
  }

  #segmentRow(segment, lane, chosen) {
    const queue = queueName(segment.level);
    const [row] = rows([
      [
        text((segment.start - lane.start).toFixed(3)),
        text(duration(segment.end - segment.start)),
        text(stateOf(segment.state).label + (queue && ` ${queue}`)),
        this.#why(segment),
      ],
    ]);
    row.classList.toggle("chosen", chosen);
    return row;
  }

  #why(segment) {
    const cell = document.createDocumentFragment();
    const { iterations, merged, reason, displacedBy } = segment;
    const said = [];
    if (iterations != null) said.push(`${iterations} ${iterations === 1 ? "iteration" : "iterations"}`);
    if (merged > 1) said.push(`${merged} such segments in one`);
    if (reason) said.push(reason);
    cell.append(said.join(", "));
    displacedBy.forEach((id, i) => cell.append(i ? ", " : said.length ? ": " : "", this.#link(id)));
    return cell;
  }

  #link(id) {
    const link = document.createElement("a");
    link.href = this.#linkTo(id);
    link.dataset.request = id;
    link.textContent = id;
    return link;
  }

  #part(name) {
    return this.#panel.querySelector(`[data-part="${name}"]`);
  }

  #fill(name, children) {
    this.#part(name).replaceChildren(...children);
  }
}

function facts(lane) {
  const { request } = lane;
  return [
    ["In all", duration(lane.end - lane.start) + (lane.finish ? "" : " so far")],
    ["First token", lane.firstToken === null ? "none yet" : `after ${duration(lane.firstToken - lane.start)}`],
    ["Ended", lane.finish ?? "not yet"],
    ["Tokens", `${request.prompt_tokens} + ${request.output_tokens}`],
    ["Demotions", steps(lane.demotions)],
    ["Promotions", steps(lane.promotions)],
    ["Pipeline", String(lane.pipeline)],
    ["Trace", request.trace_id ?? "none"],
  ];
}

/** "3: Q2, Q3, Q4", the queues that it went to */
function steps(marks) {
  if (marks.length === 0) return "0";
  const first = marks.slice(0, 8).map((mark) => queueName(mark.level));
  return `${marks.length}: to ${first.join(", ")}${marks.length > first.length ? ", …" : ""}`;
}

function pairs(list) {
  return list.flatMap(([name, value]) => [element("dt", [text(name)]), element("dd", [text(value)])]);
}

function rows(list) {
  return list.map((cells) => element("tr", cells.map((cell) => element("td", [cell]))));
}

function item(content) {
  return element("li", [text(content)]);
}

function element(kind, children) {
  const made = document.createElement(kind);
  made.append(...children);
  return made;
}

function text(content) {
  return document.createTextNode(content);
}
