// The states of a request: how each is called, and how it looks.
//
// Colours are Okabe and Ito's, which colour-blind readers can tell apart; timeline.css has them, as --state-NAME. What
// a colour says is said a second time: a bar is high while the request computes, lower while it waits or moves, thin
// outside of the scheduler; copies and second computations are hatched.

export const COMPUTES = 1; // share of a bar's full height
export const WAITS = 0.6;
export const OUTSIDE = 0.25;

/** name: as the API has it; pattern: null is solid; says: what it means. */
export const STATES = [
  ["gateway", "in the gateway", OUTSIDE, null, "read, templated, tokenised"],
  ["queued", "queued", WAITS, "hollow", "holds no KV and waits to run"],
  ["prefill", "prefill", COMPUTES, null, "its prompt is computed"],
  ["decode", "decode", COMPUTES, null, "a token an iteration"],
  ["preempted", "preempted", WAITS, null, "its KV is on the device, others run"],
  ["swapping_out", "swapping out", WAITS, "falling", "its KV moves to the host"],
  ["on_host", "on host", WAITS, "dots", "its KV is in host memory, others run"],
  ["swapping_in", "swapping in", WAITS, "rising", "its KV comes back to the device"],
  ["recompute", "recompute", COMPUTES, "rising", "its KV was dropped and is computed again"],
  ["sending", "sending", OUTSIDE, null, "from the last token to the end of the answer"],
].map(([name, label, height, pattern, says]) => ({ name, label, height, pattern, says }));

const BY_NAME = new Map(STATES.map((state) => [state.name, state]));

/** A state that this page does not know yet is drawn as one outside of the scheduler, under its own name. */
export function stateOf(name) {
  return BY_NAME.get(name) ?? { name: "gateway", label: name, height: OUTSIDE, pattern: null, says: "" };
}

/** Q1 is the queue whose jobs run first. level: from 0, or null */
export function queueName(level) {
  return level == null ? "" : `Q${level + 1}`;
}
