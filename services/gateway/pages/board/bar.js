// A whole with its parts.

import { create } from "./dom.js";

export class Bar {
  constructor(name) {
    this.value = create("span", "value", "–");
    this.note = create("ul", "note quiet");
    this.track = create("div", "track");
    this.track.setAttribute("role", "img");
    const head = create("p", "head");
    head.append(create("span", "", name), this.value);
    this.root = create("div", "bar");
    this.root.append(head, this.track, this.note);
    this.name = name;
    this.parts = new Map();
  }

  /** parts: [name, share, text] from the left; the text, if there is one, is written below */
  update(value, parts) {
    this.value.textContent = value;
    const said = parts.filter(([, , text]) => text);
    this.track.setAttribute("aria-label", [`${this.name}: ${value}`, ...said.map(([, , text]) => text)].join(", "));
    this.note.replaceChildren(...said.map(([name, , text]) => {
      const item = create("li", "");
      item.append(create("i", name), text);
      return item;
    }));
    for (const [name, share] of parts) {
      if (!this.parts.has(name)) {
        this.parts.set(name, create("i", name));
        this.track.append(this.parts.get(name));
      }
      this.parts.get(name).style.width = `${100 * share}%`;
    }
  }
}
