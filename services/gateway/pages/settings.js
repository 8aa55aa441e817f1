// Sampling settings: an empty field is not sent, so that the server's default holds.

const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "seed", "priority"];

/** The fields of a chat request; null, after pointing at the field, if one cannot be sent. */
export function readSettings(form) {
  if (!form.reportValidity()) return null;
  const fields = {};
  for (const name of NUMBERS) {
    const text = form.elements[name].value;
    if (text !== "") fields[name] = Number(text);
  }
  const stops = form.elements.stop.value.split("\n").filter((line) => line !== "");
  if (stops.length) fields.stop = stops;
  return fields;
}

export function systemMessage(form) {
  const text = form.elements.system.value.trim();
  return text ? [{ role: "system", content: text }] : [];
}
