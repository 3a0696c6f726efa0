// A list of the newest, page by page, that keeps itself true while events come.

import { AGAIN, calmly, follow, get } from "./api.js";
import { h, put, tell } from "./dom.js";
import { failed } from "./marks.js";

const PAGE = 100;

/**
 * `path` of the API with `facts` as filters; `table` shows the rows; `touches(event)` says whether an
 * event may change them. Answers {element, stop}.
 */
export function list(path, facts, table, { touches, empty, said }) {
  const more = h("div", { class: "more", hidden: true }, h("button", { type: "button" }, "More"));
  const none = h("p", { class: "none" }, "Loading …");
  const element = h("div", {}, table.element, none, more);
  let rows = [];
  let known = null;
  let busy = Promise.resolve();

  function show() {
    table.set(rows);
    none.hidden = rows.length > 0;
    put(none, empty);
    said?.(rows);
  }

  async function refresh() {
    try {
      const first = await get(path, { ...facts, limit: PAGE });
      const ids = new Set(first.map((row) => row.id));
      const fresh = known ? first.filter((row) => !known.has(row.id)) : [];
      if (known === null) more.hidden = first.length < PAGE;
      const last = first.at(-1)?.id;
      const at = rows.findIndex((row) => row.id === last);
      rows = [...first, ...(at < 0 ? (known === null ? [] : rows.filter((row) => !ids.has(row.id))) : rows.slice(at + 1).filter((row) => !ids.has(row.id)))];
      known = new Set(rows.map((row) => row.id));
      show();
      if (fresh.length) tell(`${fresh.length} new`);
    } catch (error) {
      put(none, failed(error));
      none.hidden = false;
    }
  }

  more.firstChild.addEventListener("click", () => {
    busy = busy.then(async () => {
      const page = await get(path, { ...facts, limit: PAGE, before: rows.at(-1)?.id });
      rows = [...rows, ...page.filter((row) => !known.has(row.id))];
      known = new Set(rows.map((row) => row.id));
      more.hidden = page.length < PAGE;
      show();
      tell(`${rows.length} rows`);
    }).catch((error) => tell(error.message));
  });

  const again = calmly(() => { busy = busy.then(refresh); }, 500);
  const off = follow((event) => {
    if (event.type === AGAIN || touches(event)) again();
  });
  again();
  return {
    element,
    stop: () => {
      off();
      again.stop();
    },
  };
}
