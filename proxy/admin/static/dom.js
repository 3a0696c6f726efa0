// Elements from values. Text goes in as text nodes and nowhere else, so that whatever was recorded
// stays text; the page's policy forbids any other way.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, facts, children) {
  for (const [name, value] of Object.entries(facts ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "width%") element.style.width = `${value}%`;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child instanceof Node ? child : String(child));
  }
}

export function h(tag, facts, ...children) {
  return fill(document.createElement(tag), facts, children);
}

export function s(tag, facts, ...children) {
  return fill(document.createElementNS(SVG, tag), facts, children);
}

export function put(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

// What one cannot see or what turns the reading direction is shown by its number.
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

function named(character) {
  return `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** Recorded text as one line of plain characters, cut to a length. */
export function line(value, most = 200) {
  const text = String(value ?? "");
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  return cut.replace(/\s+/g, " ").replace(ODD, named);
}

/** Recorded text as nodes: odd characters stand out. */
export function inert(value, most = 20000) {
  const text = String(value ?? "").slice(0, most);
  const nodes = [];
  let at = 0;
  let count = 0;
  for (const found of text.matchAll(ODD)) {
    if (++count > 2000) break;
    nodes.push(text.slice(at, found.index), h("span", { class: "odd" }, named(found[0])));
    at = found.index + found[0].length;
  }
  nodes.push(count > 2000 ? text.slice(at).replace(ODD, named) : text.slice(at));
  return nodes;
}

/** A block of recorded text; a long one is shown in pieces. */
export function quoted(value, chars) {
  const text = String(value ?? "");
  const first = 4000;
  const block = h("pre", { class: "quoted", dir: "auto", tabindex: "0", "aria-label": "recorded text" });
  put(block, inert(text, first));
  const whole = chars ?? text.length;
  if (text.length <= first && whole <= text.length) return block;
  const left = h("button", { type: "button", class: "quiet" }, `Show more of ${whole.toLocaleString("en")} characters`);
  left.addEventListener("click", () => {
    put(block, inert(text));
    if (whole > text.length) block.append("\n… the rest is in the download");
    left.remove();
  });
  return h("div", {}, block, text.length > first ? left : h("p", { class: "hint" }, `${whole.toLocaleString("en")} characters; the rest is in the download`));
}

/** A quiet sentence for whoever does not see the page. */
export function tell(text) {
  const region = document.getElementById("told");
  if (region) region.textContent = text;
}
