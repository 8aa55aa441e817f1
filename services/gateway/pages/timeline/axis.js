// Labels of the time axis.

/** element: as wide as the plot. marks: of scale.js */
export function drawAxis(element, marks) {
  const width = element.clientWidth;
  element.replaceChildren(
    ...marks.map(({ x, label }) => {
      const mark = document.createElement("span");
      mark.textContent = label;
      mark.style.left = `${x}px`;
      // Half a label would stand out at the edges: there it ends at its mark, or begins there.
      if (x < 24) mark.className = "first";
      else if (x > width - 24) mark.className = "last";
      return mark;
    }),
  );
}

/** What 0 s is: "0 s is 14:03:22.500". origin: unix seconds */
export function originText(origin) {
  const time = new Date(origin * 1000);
  const clock = time.toLocaleTimeString("en-GB", { hour12: false });
  return `0 s is ${clock}.${String(time.getMilliseconds()).padStart(3, "0")}`;
}
