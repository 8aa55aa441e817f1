// The live board: follows /v1/board, and says so when it does not.

import { ask, events, Refused, setKey, storedKey } from "../api.js";
import { setUpTheme } from "../theme.js";
import { Chosen } from "./chosen.js";
import { PipelinePanel } from "./pipeline.js";

const SILENT_MS = 5000; // events come twice a second: after this long the connection is dead
const LONGEST_WAIT_S = 10;

const element = (id) => document.getElementById(id);
const live = element("live");
const panels = new Map(); // by the pipeline's number
const chosen = new Chosen(element("chosen"));
let following = null; // AbortController of the stream, or of the wait for the next one

setUpTheme(element("theme"));
element("key").value = storedKey();
element("key").addEventListener("change", (event) => {
  setKey(event.target.value);
  follow();
});
element("access").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("visibilitychange", () => {
  if (document.hidden) pause();
  else follow();
});
follow();

/** A page that nobody sees costs the server nothing. */
function pause() {
  following?.abort();
  following = null;
  say("paused while this page is not visible", false);
}

async function follow() {
  following?.abort();
  const mine = (following = new AbortController());
  for (let failures = 0; following === mine; ) {
    let why = "the server has ended the stream";
    try {
      await read(mine, () => (failures = 0));
    } catch (error) {
      if (following !== mine) return;
      if (error instanceof Refused && [401, 403].includes(error.status)) {
        askForKey(error);
        return;
      }
      why = error instanceof Refused ? error.message : "no connection to the server";
    }
    if (following !== mine) return;
    const seconds = Math.min(LONGEST_WAIT_S, 2 ** failures++);
    stale(true);
    say(`not live: ${why}; trying again in ${seconds} s`, false);
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  }
}

/** Until the stream ends. Raises what `ask` and `events` raise, and TypeError if nothing comes any more. */
async function read(mine, onFirst) {
  const stream = new AbortController();
  const stop = () => stream.abort(new TypeError("nothing came for too long"));
  mine.signal.addEventListener("abort", stop);
  let timer = setTimeout(stop, SILENT_MS);
  try {
    for await (const snapshot of events(await ask("/v1/board", { signal: stream.signal }))) {
      clearTimeout(timer);
      timer = setTimeout(stop, SILENT_MS);
      if (following !== mine) return;
      onFirst();
      show(snapshot);
    }
  } finally {
    clearTimeout(timer);
    mine.signal.removeEventListener("abort", stop);
    stream.abort();
  }
}

function show(snapshot) {
  element("access").hidden = true;
  element("problem").hidden = true;
  stale(false);
  say(`live, ${new Date(snapshot.at * 1000).toLocaleTimeString()}`, true);
  const several = snapshot.pipelines.length > 1;
  for (const pipeline of snapshot.pipelines) {
    let panel = panels.get(pipeline.pipeline);
    if (!panel) {
      panel = new PipelinePanel(pipeline.pipeline, (job) => chosen.choose(job));
      panels.set(pipeline.pipeline, panel);
      element("pipelines").append(panel.root);
    }
    panel.update(pipeline, several);
  }
  const here = new Set(snapshot.pipelines.map((each) => each.pipeline));
  for (const [number, panel] of panels) {
    if (here.has(number)) continue;
    panel.root.remove();
    panels.delete(number);
  }
  chosen.update(snapshot);
}

function askForKey(error) {
  element("access").hidden = false;
  element("problem").textContent = error.message;
  element("problem").hidden = error.status === 401 && !storedKey();
  say("not live: it needs an API key", false);
  stale(true);
}

function say(text, isLive) {
  live.textContent = text;
  live.classList.toggle("lost", !isLive);
}

/** What is shown is no longer how it is. */
function stale(isStale) {
  element("pipelines").classList.toggle("stale", isStale);
}
