// What the API said, as the page draws it: lanes in order of arrival, all times in unix seconds.

/**
 * answer: of GET /v1/timeline
 * {start, end, lanes, samples, pipelines, leftOut, alone}: the window, and what was in it; leftOut: so many older
 * requests did not fit into the answer; alone: the id, if it is that of one request
 */
export function windowModel(answer) {
  return {
    start: answer.start_s,
    end: answer.end_s,
    lanes: lanesOf(answer.requests),
    samples: [...answer.samples].sort((a, b) => a.at_s - b.at_s),
    pipelines: pipelinesOf(answer.requests, answer.samples),
    leftOut: answer.limits.left_out ?? 0,
    alone: null,
  };
}

/** answer: of GET /v1/requests/{id}/timeline: one request, with a lane for each of its choices. */
export function requestModel(answer) {
  const lanes = lanesOf(answer.choices);
  const start = Math.min(...lanes.map((lane) => lane.start));
  const end = Math.max(...lanes.map((lane) => lane.end));
  return {
    start,
    end: Math.max(end, start + 0.001),
    lanes,
    samples: [],
    pipelines: pipelinesOf(answer.choices, []),
    leftOut: 0,
    alone: answer.request_id,
  };
}

function lanesOf(requests) {
  const lanes = requests.map((request) => ({
    key: request.job,
    id: request.request_id,
    choice: request.choice,
    name: request.choice ? `${request.request_id} [${request.choice}]` : request.request_id,
    pipeline: request.pipeline,
    start: request.arrived_s,
    end: request.arrived_s + request.total_s,
    firstToken: request.first_token_s == null ? null : request.arrived_s + request.first_token_s,
    demotions: request.demotions.map((mark) => ({ at: request.arrived_s + mark.at_s, level: mark.level })),
    promotions: request.promotions.map((mark) => ({ at: request.arrived_s + mark.at_s, level: mark.level })),
    finish: request.finish_reason,
    segments: request.segments.map((segment) => ({
      state: segment.state,
      level: segment.level,
      start: request.arrived_s + segment.start_s,
      end: request.arrived_s + segment.end_s,
      iterations: segment.iterations,
      displacedBy: segment.displaced_by ?? [],
      reason: segment.reason,
      merged: segment.merged ?? 1, // it stands for so many
    })),
    request,
  }));
  return lanes.sort((a, b) => a.start - b.start || a.choice - b.choice);
}

function pipelinesOf(requests, samples) {
  return [...new Set([...requests, ...samples].map((each) => each.pipeline))].sort((a, b) => a - b);
}

/** The lane of a request's choice. An id that a client used again means the latest. */
export function findLane(lanes, id, choice = 0) {
  return lanes.findLast((lane) => lane.id === id && lane.choice === choice)
    ?? lanes.findLast((lane) => lane.id === id)
    ?? null;
}

/** The segment at a time (unix seconds), or null. */
export function segmentAt(lane, at) {
  const index = firstEndingAfter(lane.segments, at);
  const segment = lane.segments[index];
  return segment && segment.start <= at ? segment : null;
}

/** Index of the first segment that ends after a time; their number if none does. */
export function firstEndingAfter(segments, at) {
  let [low, high] = [0, segments.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (segments[middle].end > at) high = middle;
    else low = middle + 1;
  }
  return low;
}
