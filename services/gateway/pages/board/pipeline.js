// One pipeline: its figures, the KV blocks of both tiers, its stages, its queues.

import { Bar } from "./bar.js";
import { create, percent, rate, seconds } from "./dom.js";
import { Figure } from "./figure.js";
import { Queues } from "./queues.js";

const TIERS = { device: "KV on device", host: "KV on host" };
const BLOCKS = ["held", "moving", "cached", "free"];

export class PipelinePanel {
  /** choose: called with a job that the reader points at */
  constructor(number, choose) {
    this.title = create("h2", "");
    this.state = create("p", "quiet");
    this.figures = {
      tokens: new Figure("Tokens", "per second"),
      jobs: new Figure("Answers ended", "per second"),
      batch: new Figure("Batch", "jobs an iteration"),
      unfinished: new Figure("Unfinished", "jobs"),
      first: new Figure("First token", "last minute, P50 · P95"),
      between: new Figure("Between tokens", "last minute, P50 · P95"),
    };
    this.bars = create("div", "bars");
    this.byName = new Map();
    this.queues = new Queues(choose);
    const figures = create("div", "figures");
    figures.append(...Object.values(this.figures).map((each) => each.root));
    const use = create("section", "panel");
    use.setAttribute("aria-label", "KV blocks and stages");
    use.append(this.bars);
    this.root = create("section", "pipeline");
    this.root.setAttribute("aria-label", `Pipeline ${number}`);
    this.root.append(this.title, this.state, figures, use, this.queues.root);
    this.number = number;
  }

  update(pipeline, several) {
    this.title.hidden = !several;
    this.title.textContent = `Pipeline ${this.number}`;
    this.state.textContent = pipeline.serving
      ? `serves, ${pipeline.policy ?? "its scheduler does not answer"}`
      : `does not serve: ${pipeline.reason}`;
    this.showFigures(pipeline);
    this.showBars(pipeline);
    this.queues.update(pipeline.queues);
  }

  showFigures({ tokens_per_s, jobs_per_s, mean_batch, batch_limit, batches, queues, first_token, between_tokens }) {
    const unfinished = queues.reduce((sum, each) => sum + each.waiting + each.running + each.preempted, 0);
    const several = batches.length > 1 ? `, ${batches.length} in flight` : "";
    const running = `of ${batch_limit ?? "–"}${several}`;
    this.figures.tokens.update(rate(tokens_per_s), tokens_per_s);
    this.figures.jobs.update(rate(jobs_per_s), jobs_per_s);
    this.figures.batch.update(`${rate(mean_batch)} ${running}`, mean_batch);
    this.figures.unfinished.update(String(unfinished), unfinished);
    for (const [figure, latency] of [[this.figures.first, first_token], [this.figures.between, between_tokens]]) {
      figure.update(`${seconds(latency?.p50_s)} · ${seconds(latency?.p95_s)}`, latency?.p95_s ?? null);
    }
  }

  showBars({ kv, utilisation }) {
    for (const tier of kv) {
      const parts = { ...tier, free: tier.total - tier.held - tier.moving - tier.cached };
      const used = percent((tier.held + tier.moving) / (tier.total || 1));
      const shares = BLOCKS.map((name) => [name, parts[name] / (tier.total || 1), `${parts[name]} ${name}`]);
      this.bar(TIERS[tier.tier]).update(used, shares);
    }
    utilisation.forEach((share, stage) => {
      this.bar(`Stage ${stage} busy`).update(percent(share), [["busy", share ?? 0]]);
    });
  }

  bar(name) {
    let bar = this.byName.get(name);
    if (!bar) {
      bar = new Bar(name);
      this.byName.set(name, bar);
      this.bars.append(bar.root);
    }
    return bar;
  }
}
