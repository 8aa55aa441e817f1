// The queues, Q1 on top, with a mark for each job; a job that changes its place moves there.

import { create, seconds } from "./dom.js";

const STATES = ["running", "preempted", "waiting"];
const LEAST = 4; // queues that are always shown
const NAMED = 40; // so many jobs still have their names on them
const MOVE_MS = 350;
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Queues {
  constructor(choose) {
    this.root = create("section", "queues panel");
    this.root.setAttribute("aria-label", "Queues");
    this.choose = choose;
    this.rows = [];
    this.marks = new Map(); // by job
    this.jobs = new Map();
    this.root.addEventListener("click", (event) => this.point(event.target.closest(".job")));
    this.root.addEventListener("keydown", (event) => this.walk(event));
  }

  update(queues) {
    const before = still.matches ? null : this.places();
    const last = queues.findLastIndex((each) => each.waiting + each.running + each.preempted > 0);
    const shown = queues.slice(0, Math.max(LEAST, last + 1));
    while (this.rows.length < shown.length) this.rows.push(this.addRow());
    while (this.rows.length > shown.length) this.rows.pop().root.remove();
    const listed = shown.reduce((sum, each) => sum + each.jobs.length, 0);
    this.root.classList.toggle("named", listed <= NAMED);
    this.jobs.clear();
    shown.forEach((queue, level) => this.fill(this.rows[level], queue, listed <= NAMED));
    for (const [job, mark] of this.marks) {
      if (this.jobs.has(job)) continue;
      mark.remove();
      this.marks.delete(job);
    }
    if (before) this.move(before);
  }

  addRow() {
    const name = create("p", "name");
    const track = create("div", "jobs");
    const counts = create("p", "counts quiet");
    const root = create("div", "queue");
    track.tabIndex = 0;
    track.setAttribute("role", "group");
    root.append(name, track, counts);
    this.root.append(root);
    return { root, name, track, counts };
  }

  fill(row, queue, named) {
    const all = queue.waiting + queue.running + queue.preempted;
    const quantum = queue.quantum_s == null ? "" : seconds(queue.quantum_s);
    row.name.replaceChildren(create("b", "", queue.queue), create("span", "quiet", quantum));
    const counts = STATES.filter((state) => queue[state]).map((state) => `${queue[state]}\u00a0${state}`);
    row.counts.textContent = counts.join("\u00a0· ") || "empty";
    row.track.setAttribute("aria-label", `${queue.queue}: ${row.counts.textContent}. Arrow keys choose a job.`);
    const marks = queue.jobs.map((job) => this.mark(job, named));
    if (all > queue.jobs.length) marks.push(create("span", "more quiet", `+ ${all - queue.jobs.length} more`));
    row.track.replaceChildren(...marks);
    row.root.classList.toggle("empty", all === 0);
  }

  mark(job, named) {
    let mark = this.marks.get(job.job);
    if (!mark) {
      mark = create("i", "");
      mark.dataset.job = job.job;
      this.marks.set(job.job, mark);
    }
    this.jobs.set(job.job, job);
    const name = job.request_id ?? job.job.replace(/^0+(?=.)/, "");
    mark.className = `job ${job.state}`;
    mark.textContent = named ? `${name.length > 12 ? name.slice(0, 11) + "…" : name} · ${job.output}` : "";
    mark.title = `${name}: ${job.state}, ${job.output} tokens`;
    return mark;
  }

  places() {
    return new Map([...this.marks].map(([job, mark]) => [job, [mark.offsetLeft, mark.offsetTop]]));
  }

  move(before) {
    for (const [job, mark] of this.marks) {
      const [left, top] = before.get(job) ?? [mark.offsetLeft, mark.offsetTop];
      const [x, y] = [left - mark.offsetLeft, top - mark.offsetTop];
      if (!x && !y) continue;
      const way = [{ transform: `translate(${x}px, ${y}px)` }, { transform: "none" }];
      mark.animate(way, { duration: MOVE_MS, easing: "ease-out" });
    }
  }

  point(mark) {
    if (mark) this.choose(this.jobs.get(mark.dataset.job));
  }

  walk(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const marks = [...event.target.querySelectorAll(".job")];
    if (!step || !marks.length) return;
    event.preventDefault();
    const at = marks.findIndex((mark) => mark.classList.contains("chosen"));
    this.point(marks[(at + step + marks.length) % marks.length] ?? marks[0]);
  }
}
