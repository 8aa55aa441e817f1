// The chat page: what its buttons and keys do.

import { ask, events, newRequestId, Refused, setKey, storedKey } from "./api.js";
import { Conversation } from "./conversation.js";
import { RequestState } from "./request_state.js";
import { readSettings, systemMessage } from "./settings.js";
import { setUpTheme } from "./theme.js";

const element = (id) => document.getElementById(id);
const text = element("text");
const settings = element("settings");
const conversation = new Conversation(element("turns"));
const state = new RequestState(element("state"), element("why"), element("state-none"));
let model = null;
let running = null; // AbortController of the answer that is being made

setUpTheme(element("theme"));
element("key").value = storedKey();
element("key").addEventListener("change", (event) => {
  setKey(event.target.value);
  findModel();
});
element("stop").addEventListener("click", () => running?.abort());
element("clear").addEventListener("click", () => {
  running?.abort();
  conversation.clear();
  complain("");
  text.focus();
});
element("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
settings.addEventListener("submit", (event) => event.preventDefault());
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
findModel();
text.focus();

async function findModel() {
  try {
    model = (await (await ask("/v1/models")).json()).data[0].id;
    element("model").textContent = model;
    complain("");
  } catch (error) {
    model = null;
    if (error.status === 401) {
      element("access").hidden = false;
      element("metrics").hidden = true; // a link carries no key
      element("model").textContent = "needs an API key";
      if (storedKey()) complain(error.message);
    } else {
      complain(describe(error));
    }
  }
}

async function send() {
  const content = text.value.trim();
  if (!content || running) return;
  if (model === null) await findModel();
  const fields = readSettings(settings);
  if (model === null || fields === null) return;

  complain("");
  running = new AbortController();
  busy(true);
  const question = conversation.add("user", content);
  const messages = [...systemMessage(settings), ...conversation.messages()];
  const answer = conversation.add("assistant");
  text.value = "";
  const name = newRequestId();
  const body = { model, messages, ...fields, request_id: name, stream: true, stream_options: { include_usage: true } };
  try {
    const stream = await ask("/v1/chat/completions", { method: "POST", body, signal: running.signal });
    state.follow(name);
    await read(stream, answer);
  } catch (error) {
    if (error.name === "AbortError") {
      answer.note("stopped");
    } else {
      complain(describe(error));
      if (answer.content) answer.note("not complete");
    }
    if (!answer.content) {
      conversation.remove(answer); // nothing was said: the question goes back to where it can be sent again
      conversation.remove(question);
      text.value ||= content;
    }
  } finally {
    running = null;
    busy(false);
    await state.finish();
  }
}

async function read(stream, answer) {
  for await (const chunk of events(stream)) {
    state.rename(chunk.id);
    const choice = chunk.choices[0];
    if (choice?.delta.content) conversation.extend(answer, choice.delta.content);
    if (choice?.finish_reason === "length") answer.note("cut at its longest length");
  }
}

function busy(isBusy) {
  element("send").disabled = isBusy;
  element("stop").disabled = !isBusy;
  element("turns").setAttribute("aria-busy", isBusy);
}

function complain(message) {
  element("problem").textContent = message;
  element("problem").hidden = !message;
}

function describe(error) {
  return error instanceof Refused ? error.message : `No connection: ${error.message}`;
}
