// Where the request is: its queue, when it runs, why it waits. Asked for while it is answered, and once after.

import { ask, Refused } from "./api.js";

const EVERY_MS = 400;

export class RequestState {
  constructor(list, why, none) {
    this.list = list;
    this.why = why;
    this.none = none;
    this.following = null;
  }

  /** name: the client's id of the request. A replica that does not have it may know the answer's id. */
  follow(name) {
    this.stop();
    const watch = { name, timer: null };
    this.following = watch;
    const step = async () => {
      await this.show(watch);
      if (this.following === watch) watch.timer = setTimeout(step, EVERY_MS);
    };
    step();
  }

  /** The answer's id, which every replica understands. */
  rename(name) {
    if (this.following) this.following.name = name;
  }

  stop() {
    clearTimeout(this.following?.timer);
    this.following = null;
  }

  /** The last look, when the answer is over. */
  async finish() {
    const watch = this.following;
    this.stop();
    if (watch) await this.show(watch, true);
  }

  async show(watch, last = false) {
    let report;
    try {
      report = await (await ask(`/v1/requests/${encodeURIComponent(watch.name)}`)).json();
    } catch (error) {
      if (error instanceof Refused || error instanceof TypeError) return; // not known yet, or no longer
      throw error;
    }
    if (!last && this.following !== watch) return; // another one is shown by now
    const job = report.choices[0];
    const spent = job.seconds;
    const rows = [
      ["State", job.state],
      ["Queue", job.queue ?? "–"],
      ["Runs in", seconds(job.runs_in_s)],
      ["Tokens", `${report.prompt_tokens} + ${report.completion_tokens}`],
      ["Demotions", job.demotions],
      ["Promotions", job.promotions],
      ["Preemptions", job.preemptions],
      ["Recomputed", job.recomputations],
      ...Object.entries(spent).map(([state, time]) => [`Time ${state}`, seconds(time)]),
    ];
    this.list.replaceChildren(...rows.flatMap(([name, value]) => [cell("dt", name), cell("dd", value)]));
    this.list.hidden = false;
    this.none.hidden = true;
    this.why.textContent = job.why ?? "";
    this.why.hidden = !job.why;
  }
}

function cell(kind, text) {
  const element = document.createElement(kind);
  element.textContent = text;
  return element;
}

function seconds(value) {
  return value == null ? "–" : `${value.toFixed(value < 10 ? 2 : 1)} s`;
}
