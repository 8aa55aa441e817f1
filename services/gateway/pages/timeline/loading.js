// Timelines from the API: a window of all requests, or one request that is no longer in it.

import { ask, Refused } from "../api.js";
import { findLane, requestModel, windowModel } from "./model.js";

const windowPath = (seconds) => `/v1/timeline?seconds=${seconds}`;
const requestPath = (id) => `/v1/requests/${encodeURIComponent(id)}/timeline`;

/**
 * The model of what the address names. The window is asked for first, since it shows who else ran; the request alone
 * if it is not in there, or if this reader may see no others.
 * Raises Refused, TypeError if there is no connection, or AbortError.
 */
export async function load({ request, seconds }, signal) {
  let refusal = null;
  try {
    const model = windowModel(await json(windowPath(seconds), signal));
    if (request === null || findLane(model.lanes, request)) return model;
  } catch (error) {
    if (request === null || error.status !== 403) throw error;
    refusal = error;
  }
  try {
    return requestModel(await json(requestPath(request), signal));
  } catch (error) {
    throw error.status === 404 && refusal ? refusal : error;
  }
}

async function json(path, signal) {
  return (await ask(path, { signal })).json();
}

/** Saves a timeline as a file. shown: {request, seconds}; request null is the window; format: json or perfetto */
export async function save({ request, seconds }, format) {
  const path = request === null ? windowPath(seconds) : requestPath(request);
  const query = format === "perfetto" ? `${path.includes("?") ? "&" : "?"}format=perfetto` : "";
  const blob = await (await ask(path + query)).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${fileName(request)}.${format === "perfetto" ? "perfetto.json" : "json"}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // the browser may read it later
}

function fileName(request) {
  return request === null ? "skipjoin-timeline" : `skipjoin-${request.replace(/[^\w.-]+/g, "_").slice(0, 80)}`;
}

export function problemOf(error) {
  if (!(error instanceof Refused)) return `No connection to the server: ${error.message}`;
  if (error.status === 403) return `${error.message}. The timeline of a request of your own opens by its id.`;
  return error.message;
}
