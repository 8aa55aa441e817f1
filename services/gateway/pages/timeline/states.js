// The states of a request: how each is called, and how it looks.
//
// Colours are Okabe and Ito's, which colour-blind readers can tell apart; timeline.css has them, as --state-NAME. What
// a colour says is said a second time: a bar is high while the request computes, lower while it waits or moves, thin
// outside of the scheduler; copies and second computations are hatched.

export const COMPUTES = 1; // share of a bar's full height
export const WAITS = 0.6;
export const OUTSIDE = 0.25;

/** name: as the API has it; pattern: null is solid. */
export const STATES = [
  { name: "gateway", label: "in the gateway", height: OUTSIDE, pattern: null, says: "read, templated, tokenised" },
  { name: "queued", label: "queued", height: WAITS, pattern: "hollow", says: "holds no KV and waits to run" },
  { name: "prefill", label: "prefill", height: COMPUTES, pattern: null, says: "its prompt is computed" },
  { name: "decode", label: "decode", height: COMPUTES, pattern: null, says: "a token an iteration" },
  { name: "preempted", label: "preempted", height: WAITS, pattern: null, says: "its KV is on the device, others run" },
  { name: "swapping_out", label: "swapping out", height: WAITS, pattern: "falling", says: "its KV moves to the host" },
  { name: "on_host", label: "on host", height: WAITS, pattern: "dots", says: "its KV is in host memory, others run" },
  { name: "swapping_in", label: "swapping in", height: WAITS, pattern: "rising", says: "its KV comes back to the device" },
  { name: "recompute", label: "recompute", height: COMPUTES, pattern: "rising", says: "its KV was dropped and is computed again" },
  { name: "sending", label: "sending", height: OUTSIDE, pattern: null, says: "from the last token to the end of the answer" },
];

const BY_NAME = new Map(STATES.map((state) => [state.name, state]));

/** A state that this page does not know yet is drawn as one outside of the scheduler, under its own name. */
export function stateOf(name) {
  return BY_NAME.get(name) ?? { name: "gateway", label: name, height: OUTSIDE, pattern: null, says: "" };
}

/** Q1 is the queue whose jobs run first. level: from 0, or null */
export function queueName(level) {
  return level == null ? "" : `Q${level + 1}`;
}
