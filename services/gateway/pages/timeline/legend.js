// What the bars and marks mean, drawn by the functions that draw the lanes.

import { bar, cross, demotion, firstToken, promotion } from "./paint.js";
import { STATES } from "./states.js";
import { Surface } from "./surface.js";

const [WIDTH, HEIGHT] = [26, 16];
const MARKS = [
  ["first token", (on, palette) => firstToken(on, palette, 10, 1, HEIGHT - 2)],
  ["demoted", (on, palette) => demotion(on, palette, 13, 11)],
  ["promoted", (on, palette) => promotion(on, palette, 13, 5)],
  ["not complete", (on, palette) => cross(on, palette, 9, 8)],
];

export class Legend {
  #entries;

  constructor(list) {
    const states = STATES.map((state) => [
      state.label,
      state.says,
      (on, palette) => bar(on, palette, state.name, 0, WIDTH, 0, HEIGHT),
    ]);
    const marks = MARKS.map(([label, draw]) => [label, "", draw]);
    this.#entries = [...states, ...marks].map(([label, says, draw]) => {
      const entry = document.createElement("li");
      const canvas = document.createElement("canvas");
      canvas.setAttribute("aria-hidden", "true");
      entry.title = says;
      entry.append(canvas, label);
      list.append(entry);
      return { surface: new Surface(canvas), draw };
    });
  }

  draw() {
    for (const { surface, draw } of this.#entries) {
      const palette = surface.begin(WIDTH, HEIGHT);
      draw(surface.context, palette);
    }
  }
}
