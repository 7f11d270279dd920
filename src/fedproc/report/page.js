"use strict";
// Tooltips on hover and touch: the value of the figure's nearest point.
const tip = document.getElementById("tip");
for (const figure of document.querySelectorAll("figure svg")) {
  const points = [];
  for (const title of figure.querySelectorAll("use > title, path > title, rect > title")) {
    const shape = title.parentElement;
    shape.dataset.text = title.textContent;
    title.remove(); // or the browser would show it a second time
    points.push(shape);
  }
  let places = [];
  const measure = () => points.map((shape) => {
    const box = shape.getBoundingClientRect();
    return [box.left + scrollX, box.top + scrollY, box.right + scrollX, box.bottom + scrollY];
  });
  const show = (event) => {
    let found = null, least = 22;
    places.forEach(([left, top, right, bottom], at) => {
      const across = Math.max(left - event.pageX, 0, event.pageX - right);
      const down = Math.max(top - event.pageY, 0, event.pageY - bottom);
      const centre = Math.hypot((left + right) / 2 - event.pageX, (top + bottom) / 2 - event.pageY);
      const distance = Math.hypot(across, down) + centre / 1000;
      if (distance < least) { least = distance; found = points[at]; }
    });
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = found.dataset.text;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 6);
    tip.style.left = `${Math.max(6, left)}px`;
    tip.style.top = `${event.clientY > innerHeight - 60 ? event.clientY - 36 : event.clientY + 16}px`;
  };
  const begin = (event) => { places = measure(); show(event); }; // sections above may have been opened since
  figure.addEventListener("pointerenter", begin);
  figure.addEventListener("pointerdown", begin);
  figure.addEventListener("pointermove", show);
  figure.addEventListener("pointerleave", (event) => { tip.hidden = event.pointerType !== "touch"; });
}
// Print everything, and fold again what was folded.
const folded = [...document.querySelectorAll("details")];
addEventListener("beforeprint", () => folded.forEach((part) => { part.dataset.open = part.open; part.open = true; }));
addEventListener("afterprint", () => folded.forEach((part) => { part.open = part.dataset.open === "true"; }));
