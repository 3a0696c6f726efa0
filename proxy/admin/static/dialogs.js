// A question with its answer: nothing is ordered before a person said so twice.

import { h, put } from "./dom.js";

/** A dialog; `act` runs on the main button and may throw words for a person. Null: only to read. */
export function ask(title, content, act, button = "OK", risky = false) {
  const before = document.activeElement;
  const said = h("div", { role: "alert" });
  const close = () => dialog.close();
  const main = act ? h("button", { class: risky ? "risky" : "main", type: "submit" }, button) : null;
  const form = h("form", { method: "dialog" },
    h("h2", { id: "asked" }, title), content, said,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: close }, act ? "Cancel" : "Close"), main));
  const dialog = h("dialog", { "aria-labelledby": "asked" }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!act) return close();
    main.disabled = true;
    try {
      await act(new FormData(form));
      close();
    } catch (error) {
      put(said, h("p", { class: "said" }, error.message));
      main.disabled = false;
    }
  });
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before instanceof HTMLElement) before.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
}

export function field(name, label, facts = {}) {
  return h("div", { class: "field" }, h("label", { for: `f-${name}` }, label), h("input", { id: `f-${name}`, name, autocomplete: "off", ...facts }));
}
