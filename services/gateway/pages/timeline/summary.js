// Sums over a request's segments: where its time went, and who took it.

/** Seconds by state, in the order in which the states were entered: [{state, seconds, times}]. */
export function timeByState(lane) {
  const found = new Map();
  for (const segment of lane.segments) {
    const entry = found.get(segment.state) ?? { state: segment.state, seconds: 0, times: 0 };
    entry.seconds += segment.end - segment.start;
    entry.times += 1;
    found.set(segment.state, entry);
  }
  return [...found.values()];
}

/**
 * Who ran in its place: [{id, seconds, times}], longest first. Several may have run at once, so the seconds of all
 * may be more than the request waited.
 */
export function displacers(lane) {
  const found = new Map();
  for (const segment of lane.segments) {
    for (const id of new Set(segment.displacedBy)) {
      const entry = found.get(id) ?? { id, seconds: 0, times: 0 };
      entry.seconds += segment.end - segment.start;
      entry.times += 1;
      found.set(id, entry);
    }
  }
  return [...found.values()].sort((a, b) => b.seconds - a.seconds);
}

/** The reasons why it waited: [{reason, seconds}], longest first. */
export function reasons(lane) {
  const found = new Map();
  for (const { reason, start, end } of lane.segments) {
    if (reason) found.set(reason, (found.get(reason) ?? 0) + end - start);
  }
  return [...found].map(([reason, seconds]) => ({ reason, seconds })).sort((a, b) => b.seconds - a.seconds);
}
