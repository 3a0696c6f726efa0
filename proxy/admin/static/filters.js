// Filters in the address, so that a filtered list can be linked and found again.

import { h } from "./dom.js";
import { query } from "./api.js";
import { CAUSES } from "./words.js";

const ABOUT = {
  agent: ["Agent", "any"],
  model: ["Model", "any"],
  key: ["Key", "any"],
  label: ["Label", "name or name=value"],
  finding: ["Finding", "policy/kind or any"],
  session: ["Session", "any"],
};
const COMMON_FINDINGS = ["any", "violation", "warning", "thinking", "history", "repeats", "pairing", "tool_errors", "growth", "budgets"];

/** A form for some filters; `view` is the address that they belong to. */
export function filters(view, names, facts) {
  const boxes = names.map((name) => (name === "cause" ? causes(facts) : box(name, facts)));
  const any = names.some((name) => facts[name]);
  const form = h("form", { class: "filters", role: "search", "aria-label": "Filters" }, boxes,
    h("button", { type: "submit" }, "Filter"),
    any ? h("a", { class: "button quiet", href: `#/${view}` }, "Clear") : null);
  const go = () => {
    const set = {};
    for (const name of names) set[name] = form.elements[name].value.trim();
    location.hash = `#/${view}${query(set)}`;
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go();
  });
  form.addEventListener("change", (event) => {
    if (event.target.tagName === "SELECT") go();
  });
  return form;
}

function box(name, facts) {
  const [title, hint] = ABOUT[name];
  const list = name === "finding" ? h("datalist", { id: "list-finding" }, COMMON_FINDINGS.map((one) => h("option", { value: one }))) : null;
  const value = facts[name] ?? "";
  return h("div", {}, h("label", { for: `by-${name}` }, title),
    h("input", { id: `by-${name}`, name, placeholder: hint, value, class: value ? "set" : null, autocomplete: "off", spellcheck: "false", list: list ? "list-finding" : null }), list);
}

function causes(facts) {
  const value = facts.cause ?? "";
  return h("div", {}, h("label", { for: "by-cause" }, "Cause"),
    h("select", { id: "by-cause", name: "cause", class: value ? "set" : null },
      h("option", { value: "" }, "any"), CAUSES.map((one) => h("option", { value: one, selected: one === value }, one))));
}
