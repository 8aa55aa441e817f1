// The gateway's API, with the key that the reader typed in, if one is needed.

const KEY = "skipjoin-key";
let key = sessionStorage.getItem(KEY) ?? "";

export function setKey(text) {
  key = text.trim();
  sessionStorage.setItem(KEY, key);
}

export function storedKey() {
  return key;
}

/** An answer that is no success. status: of HTTP; the message is the gateway's. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Raises Refused, or TypeError if there is no connection. */
export async function ask(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  if (answer.ok) return answer;
  let message = `HTTP ${answer.status}`;
  try {
    message = (await answer.json()).error.message;
  } catch {
    // something before the gateway answered, in its own words
  }
  throw new Refused(answer.status, message);
}

/** The data of each server-sent event, parsed. Raises Refused for an event that holds an error. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").find((line) => line.startsWith("data: "))?.slice(6);
        if (data === undefined) continue;
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new Refused(200, event.error.message);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** A name for a request; crypto.randomUUID exists only where the page came over TLS or from this machine. */
export function newRequestId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return "web-" + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
