// The job that the reader has pointed at, followed from snapshot to snapshot.

import { create, seconds } from "./dom.js";

export class Chosen {
  constructor(root) {
    this.root = root;
    this.job = null;
  }

  choose(job) {
    this.job = job;
    this.show(job, null);
    this.outline();
    this.root.scrollIntoView({ block: "nearest" });
  }

  update(snapshot) {
    if (!this.job) return;
    for (const pipeline of snapshot.pipelines) {
      for (const queue of pipeline.queues) {
        const found = queue.jobs.find((each) => each.job === this.job.job);
        if (found) {
          this.show(found, queue.queue);
          this.outline();
          return;
        }
      }
    }
    this.show(this.job, null, true);
  }

  show(job, queue, gone = false) {
    this.job = job;
    const answer = `cmpl-${job.job}`;
    const rows = [
      ["Job", job.job],
      ["State", gone ? "ended, or behind the jobs that are listed" : job.state],
      ["Queue", queue ?? "–"],
      ["Tokens", `${job.prompt} + ${job.output}`],
      ["Priority", job.priority],
      ["Waits", job.state === "running" ? "–" : seconds(job.waits_s)],
    ];
    const list = create("dl", "");
    list.append(...rows.flatMap(([name, value]) => [create("dt", "", name), create("dd", "", String(value))]));
    const link = create("a", "", "its timeline");
    link.href = `/timeline?request=${encodeURIComponent(job.request_id ?? answer)}`;
    this.root.replaceChildren(create("h2", "", job.request_id ?? answer), list, link);
    this.root.hidden = false;
  }

  outline() {
    for (const mark of document.querySelectorAll(".job.chosen")) mark.classList.remove("chosen");
    document.querySelector(`.job[data-job="${this.job.job}"]`)?.classList.add("chosen");
  }
}
