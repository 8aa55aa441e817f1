// A canvas that is sharp at every density of pixels.

import { Palette } from "./paint.js";

export class Surface {
  #canvas;
  #palette = null;

  constructor(canvas) {
    this.#canvas = canvas;
    this.context = canvas.getContext("2d");
    // A theme is two sets of colours: those of a palette hold until it changes.
    new MutationObserver(() => (this.#palette = null)).observe(document.documentElement, {
      attributeFilter: ["data-theme"],
    });
  }

  /** Empties it and makes it so large, in CSS pixels. */
  begin(width, height) {
    const ratio = window.devicePixelRatio || 1;
    const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.#canvas.width !== across || this.#canvas.height !== down) {
      this.#canvas.width = across;
      this.#canvas.height = down;
      this.#canvas.style.width = `${width}px`;
      this.#canvas.style.height = `${height}px`;
      this.#palette = null;
    }
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.#palette ??= new Palette(this.context, ratio);
    return this.#palette;
  }
}
