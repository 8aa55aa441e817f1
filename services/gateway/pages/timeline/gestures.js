// Wheel, pointer and keys on the plot, as what they ask for.

const CLOSER = 0.8;
const CLICK = 4; // pixels that a pointer may move and still mean a click

/**
 * plot: lanes, counters and axis; lanes: the listbox in it
 * wants: {zoom(factor, x), pan(pixels), scroll(pixels), click(x, y), hover(x, y, target) or hover(null), step(lanes),
 * all(), none()}; x counts from where the axis begins, y from the top of the lanes that are in sight
 */
export function listen(plot, lanes, wants) {
  const x = (event) => event.clientX - lanes.getBoundingClientRect().left - axisLeft(lanes);
  const y = (event) => event.clientY - lanes.getBoundingClientRect().top;
  onWheel(plot, lanes, wants, x);
  onPointer(plot, lanes, wants, x, y);
  lanes.addEventListener("keydown", (event) => onKey(event, lanes, wants));
}

/** The width of the names left of the axis. */
export function axisLeft(lanes) {
  return parseFloat(getComputedStyle(lanes.querySelector("canvas")).marginLeft);
}

function onWheel(plot, lanes, wants, x) {
  const zooms = (event) => event.ctrlKey || event.metaKey || !lanes.contains(event.target);
  plot.addEventListener(
    "wheel",
    (event) => {
      if (zooms(event)) {
        event.preventDefault();
        wants.zoom(1.0015 ** (event.deltaY * (event.deltaMode === 1 ? 33 : 1)), x(event));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        wants.pan(event.deltaX || event.deltaY);
      }
    },
    { passive: false },
  );
}

function onPointer(plot, lanes, wants, x, y) {
  let held = null; // where the pointer went down and was last
  plot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || x(event) > lanes.clientWidth - axisLeft(lanes)) return; // on the scroll bar
    held = { startX: event.clientX, startY: event.clientY, x: event.clientX, y: event.clientY, dragged: false };
  });
  plot.addEventListener("pointermove", (event) => {
    if (!held) return wants.hover(x(event), y(event), event.target);
    const far = Math.hypot(event.clientX - held.startX, event.clientY - held.startY) > CLICK;
    if (far && !held.dragged) plot.setPointerCapture(event.pointerId);
    held.dragged ||= far;
    if (held.dragged) {
      wants.pan(held.x - event.clientX);
      wants.scroll(held.y - event.clientY);
      [held.x, held.y] = [event.clientX, event.clientY];
    }
  });
  plot.addEventListener("pointerup", (event) => {
    if (held && !held.dragged && lanes.contains(event.target)) wants.click(x(event), y(event));
    held = null;
  });
  plot.addEventListener("pointercancel", () => (held = null));
  plot.addEventListener("pointerleave", () => wants.hover(null));
}

function onKey(event, lanes, wants) {
  const middle = () => (lanes.clientWidth - axisLeft(lanes)) / 2;
  const does = {
    ArrowDown: () => wants.step(1),
    ArrowUp: () => wants.step(-1),
    PageDown: () => wants.step(10),
    PageUp: () => wants.step(-10),
    Home: () => wants.step(-Infinity),
    End: () => wants.step(Infinity),
    ArrowLeft: () => wants.pan(-middle() / 4),
    ArrowRight: () => wants.pan(middle() / 4),
    "+": () => wants.zoom(CLOSER, middle()),
    "=": () => wants.zoom(CLOSER, middle()),
    "-": () => wants.zoom(1 / CLOSER, middle()),
    0: () => wants.all(),
    Escape: () => wants.none(),
  }[event.key];
  if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  does();
}
