// Tables that stay as they are while their rows come, change and go.

import { h, put } from "./dom.js";

/**
 * columns: [title, cell(row) → node or text, class?]; `go(row)` → address of a row, `key(row)` → its id.
 * `set(rows)` shows rows, keeping the elements of those that are already there.
 */
export function table(caption, columns, { key, go, chosen, onpick, seen }) {
  const body = h("tbody");
  const element = h("table", { "aria-label": caption },
    h("thead", {}, h("tr", {}, columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title)))), body);
  const known = new Map();

  function draw(row) {
    const id = key(row);
    const told = JSON.stringify(row);
    seen?.(row);
    let had = known.get(id);
    if (!had) {
      had = { element: h("tr", { tabindex: "-1" }), told: "" };
      known.set(id, had);
      if (go || onpick) {
        had.element.dataset.go = go ? go(row) : id;
        had.element.addEventListener("click", (event) => {
          if (event.target.closest("a, button")) return;
          if (onpick) onpick(id);
          else location.hash = had.element.dataset.go;
        });
      }
    } else if (had.told !== told) {
      had.element.classList.remove("fresh");
      void had.element.offsetWidth;
      had.element.classList.add("fresh");
    }
    if (had.told !== told) fill(had.element, row);
    had.told = told;
    if (chosen) had.element.setAttribute("aria-selected", String(chosen(row)));
    return had.element;
  }

  /** New cells; what had the focus in them has it again. */
  function fill(element, row) {
    const inside = element.contains(document.activeElement) && document.activeElement !== element;
    const at = inside ? [...element.querySelectorAll("a, button")].indexOf(document.activeElement) : -1;
    put(element, columns.map(([, cell, kind]) => h("td", { class: kind }, cell(row))));
    if (at >= 0) element.querySelectorAll("a, button")[at]?.focus();
  }

  function set(rows) {
    const elements = rows.map(draw);
    const shown = new Set(rows.map(key));
    for (const [id, had] of known) {
      if (!shown.has(id)) {
        had.element.remove();
        known.delete(id);
      }
    }
    elements.forEach((one, place) => {
      if (body.children[place] !== one) body.insertBefore(one, body.children[place] ?? null);
    });
    if (elements.length && !elements.some((one) => one.tabIndex === 0)) elements[0].tabIndex = 0;
  }

  return { element: h("div", { class: "scroll" }, element), set };
}
