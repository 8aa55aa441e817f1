// What of the page is in its address, so that a link shows the same: the request and the window.

export const WINDOWS_S = [10, 30, 60, 300, 900];
const USUAL_S = 60;

/** {request, choice, seconds} of the address; what is missing or makes no sense is as usual. */
export function readAddress(search = location.search) {
  const fields = new URLSearchParams(search);
  const seconds = Number(fields.get("seconds") ?? USUAL_S);
  const choice = Number(fields.get("choice") ?? 0);
  return {
    request: fields.get("request") || null,
    choice: Number.isInteger(choice) && choice >= 0 ? choice : 0,
    seconds: seconds > 0 && Number.isFinite(seconds) ? seconds : USUAL_S,
  };
}

export function addressOf({ request, choice = 0, seconds = USUAL_S }) {
  const fields = new URLSearchParams();
  if (request !== null) fields.set("request", request);
  if (request !== null && choice) fields.set("choice", choice);
  if (seconds !== USUAL_S) fields.set("seconds", seconds);
  const search = fields.toString();
  return search ? `/timeline?${search}` : "/timeline";
}
