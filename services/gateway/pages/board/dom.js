// Elements and numbers as this page writes them.

export function create(kind, classes, text = "") {
  const element = document.createElement(kind);
  if (classes) element.className = classes;
  element.textContent = text;
  return element;
}

export function rate(value) {
  if (value == null) return "–";
  return value >= 100 ? String(Math.round(value)) : value.toFixed(1);
}

export function seconds(value) {
  if (value == null) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return `${value.toFixed(value < 10 ? 1 : 0)} s`;
}

export function percent(share) {
  return share == null ? "–" : `${Math.round(share * 100)} %`;
}
