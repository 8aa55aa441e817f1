// The timeline page: what its buttons, fields, pointer and keys do.

import { setKey, storedKey } from "../api.js";
import { setUpTheme } from "../theme.js";
import { addressOf, readAddress, WINDOWS_S } from "./address.js";
import { Details } from "./details.js";
import { listen } from "./gestures.js";
import { load, problemOf, save } from "./loading.js";
import { findLane } from "./model.js";
import { Plot } from "./plot.js";
import { duration } from "./scale.js";

const LIVE_MS = 2000;
const element = (id) => document.getElementById(id);
const plot = new Plot(element("plot"));
const details = new Details(element("details"), (id) => addressOf({ request: id, seconds: shown.seconds }));
let shown = readAddress();
let model = null;
let loading = null; // AbortController of what is being asked for
let timer = null;

setUpTheme(element("theme"));
offerWindows();
element("key").value = storedKey();
element("access").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(element("key").value);
  refresh();
});
element("window").addEventListener("change", (event) => {
  shown.seconds = Number(event.target.value);
  remember();
  plot.fit();
  refresh();
});
element("reload").addEventListener("click", () => refresh());
element("live").addEventListener("change", () => refresh());
element("closer").addEventListener("click", () => plot.zoom(0.6, middle()));
element("wider").addEventListener("click", () => plot.zoom(1 / 0.6, middle()));
element("all").addEventListener("click", () => plot.fit());
element("pipeline").addEventListener("change", () => {
  choose(null); // it is one of the other pipeline
  present();
});
element("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = element("request").value.trim();
  if (id) go(id);
});
element("close").addEventListener("click", () => {
  choose(null);
  element("lanes").focus();
});
element("zoom-request").addEventListener("click", () => plot.zoomTo(plot.chosen));
for (const format of ["json", "perfetto"]) {
  element(format).addEventListener("click", () => download(null, format));
  element(`request-${format}`).addEventListener("click", () => download(plot.chosen.id, format));
}
element("details").addEventListener("click", (event) => {
  const link = event.target.closest("a[data-request]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return; // a new tab, if the reader wants one
  event.preventDefault();
  go(link.dataset.request);
});
addEventListener("popstate", () => {
  shown = readAddress();
  offerWindows();
  plot.choose(null);
  refresh();
});
document.addEventListener("visibilitychange", () => !document.hidden && element("live").checked && refresh(true));
listen(element("plot"), element("lanes"), {
  zoom: (factor, x) => plot.zoom(factor, x),
  pan: (pixels) => plot.pan(pixels),
  scroll: (pixels) => plot.scroll(pixels),
  all: () => plot.fit(),
  none: () => choose(null),
  hover: (x, y, target) => plot.point(x, y, element("lanes").contains(target)),
  click: (x, y) => {
    const { lane, segment } = plot.hit(x, y);
    choose(lane, segment);
  },
  step: (lanes) => {
    const lane = plot.beside(lanes);
    if (lane) choose(lane);
    if (lane) plot.reveal(lane);
  },
});
refresh();

/** Asks for what the address names, and again after a while if the reader wants it live. again: it is that time */
async function refresh(again = false) {
  clearTimeout(timer);
  loading?.abort();
  const asked = new AbortController();
  loading = asked;
  element("plot").setAttribute("aria-busy", true);
  try {
    const stays = again && model?.alone === null; // a window, also when the chosen request has left it
    model = await load(stays ? { ...shown, request: null } : shown, asked.signal);
    complain("");
    element("access").hidden = true;
    present();
  } catch (error) {
    if (error.name === "AbortError") return; // the next one is under way
    element("access").hidden = error.status !== 401;
    complain(error.status === 401 && !storedKey() ? "" : problemOf(error));
    if (model === null) element("shown").textContent = "";
  } finally {
    if (loading === asked) element("plot").setAttribute("aria-busy", false);
  }
  if (element("live").checked && !document.hidden) timer = setTimeout(() => refresh(true), LIVE_MS);
}

function present() {
  const named = shown.request !== null && findLane(model.lanes, shown.request, shown.choice);
  const linked = plot.chosen === null && named ? named : null; // what the address names is to be chosen
  offerPipelines(linked?.pipeline);
  plot.show(model, Number(element("pipeline").value));
  if (linked) {
    choose(linked);
    plot.reveal(linked);
  } else {
    details.show(plot.chosen, plot.segment);
  }
  element("empty").hidden = plot.lanes.length > 0;
  const window = spelled(shown.seconds);
  element("empty").textContent = `No request was unfinished in the last ${window}. Send one, or look further back.`;
  const requests = new Set(plot.lanes.map((lane) => lane.id)).size;
  const span = duration(model.end - model.start);
  element("shown").textContent = model.alone === null ? `${counted(requests, "request")} in ${span}` : "one request";
  note();
}

function note() {
  const notes = [];
  if (model.alone !== null) {
    notes.push(`${model.alone} is shown alone: it ended before this window, or its key may not see the others.`);
  }
  if (model.leftOut) {
    notes.push(`${counted(model.leftOut, "older request")} of this window would be too much for one answer.`);
  }
  element("notice").textContent = notes.join(" ");
  element("notice").hidden = notes.length === 0;
}

/** lane: or null; segment: the one that was clicked */
function choose(lane, segment = null) {
  plot.choose(lane, segment);
  details.show(lane, segment);
  [shown.request, shown.choice] = lane ? [lane.id, lane.choice] : [null, 0];
  remember();
}

/** To a request, which may be in this window or not. */
function go(id) {
  const lane = model && findLane(model.lanes, id);
  history.pushState(null, "", addressOf({ request: id, seconds: shown.seconds }));
  plot.choose(null);
  Object.assign(shown, { request: id, choice: 0 });
  if (lane) present();
  else refresh();
}

function remember() {
  history.replaceState(null, "", addressOf(shown));
}

async function download(request, format) {
  try {
    await save({ request, seconds: shown.seconds }, format);
    complain("");
  } catch (error) {
    complain(problemOf(error));
  }
}

function offerWindows() {
  const windows = [...new Set([...WINDOWS_S, shown.seconds])].sort((a, b) => a - b);
  element("window").replaceChildren(
    ...windows.map((seconds) => new Option(spelled(seconds), seconds, false, seconds === shown.seconds)),
  );
}

/** wanted: the pipeline to be shown; without it the one that is, or the first */
function offerPipelines(wanted) {
  const field = element("pipeline");
  const present = model.pipelines.length ? model.pipelines : [0];
  const before = field.value === "" ? null : Number(field.value);
  const chosen = [wanted, before].find((each) => present.includes(each)) ?? present[0];
  field.replaceChildren(...present.map((each) => new Option(each, each, false, each === chosen)));
  element("which").hidden = present.length < 2;
}

function middle() {
  return element("axis").clientWidth / 2;
}

function complain(message) {
  element("problem").textContent = message;
  element("problem").hidden = !message;
}

/** A window: "30 s", "5 min". */
function spelled(seconds) {
  return seconds >= 120 && seconds % 60 === 0 ? `${seconds / 60} min` : `${seconds} s`;
}

function counted(number, what) {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}
