// What both pages share: polling the server every two seconds, and updating in place what has changed.
// Text from the ledger enters the page through textContent only.

const PAUSE_MS = 2000;
const byId = (id) => document.getElementById(id);
const root = document.body.dataset.root;

// Whether the page is that of a stream, of a run that keeps moments, of one that restores one, of one that watches HBase's
// own replication, or of one to which a source replicates.
const kind = document.querySelector("h1")?.dataset.kind;
const streams = kind === "stream";
const keeps = kind === "keep";
const restores = kind === "restore";
const replicates = kind === "replication";
const receives = kind === "receive";

export { byId, keeps, receives, replicates, restores, streams };

export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

// ---- numbers and times

export const count = (n) => (n ?? 0).toLocaleString("en");
export const rate = (n) => (n < 10 ? n.toFixed(1) : count(Math.round(n)));

export function bytes(n) {
  if (n < 1000) return `${n} B`;
  const units = ["kB", "MB", "GB", "TB", "PB"];
  let i = -1;
  do {
    n /= 1000;
    i += 1;
  } while (n >= 999.5 && i < units.length - 1);
  return `${n < 10 ? n.toFixed(1) : n.toFixed(0)} ${units[i]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const whole = Math.round(seconds);
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h} h ${String(m).padStart(2, "0")} min` : `${m} min ${String(s).padStart(2, "0")} s`;
}

export const time = (ms) => (ms ? new Date(ms).toISOString().slice(0, 19).replace("T", " ") : "–");

// ---- cells: a cell is a text, or {text, kind, …}; it is rebuilt only when that has changed

const MARKS = { done: "✓", failed: "✗", interrupted: "✗", running: "▶", waiting: "?", held: "‖", released: "✓", equal: "✓", differs: "✗" };
const COLOURS = { green: "✓", red: "✗", violet: "‖", amber: "?", blue: "▶", grey: "•" };

export function badge(state, text = state) {
  const element = document.createElement("span");
  element.className = `badge ${String(state).replaceAll(" ", "-")}`;
  element.textContent = MARKS[state] ? `${MARKS[state]} ${text}` : text;
  return element;
}

// The state of a run, with its colour and mark (walferry/run/progress/state.py).
export function stateBadge(run) {
  const element = document.createElement("span");
  element.className = `badge ${run.colour}`;
  element.textContent = `${COLOURS[run.colour]} ${run.state}`;
  return element;
}

// Text in which `…` is code.
export function prose(element, text) {
  if (element.shown === text) return;
  element.shown = text;
  element.replaceChildren(
    ...text.split("`").map((part, at) => {
      if (at % 2 === 0) return part;
      const code = document.createElement("code");
      code.textContent = part;
      return code;
    }),
  );
}

const BUILD = {
  state: (cell) => stateBadge(cell),
  fold: (cell) => {
    const [details, summary] = ["details", "summary"].map((tag) => document.createElement(tag));
    summary.textContent = cell.text;
    details.append(summary, ...BUILD.lines(cell));
    return details;
  },
  badge: (cell) => badge(cell.state, cell.text ?? cell.state),
  badges: (cell) => cell.list.map((one) => badge(one.state, one.text)),
  link: (cell) => {
    const link = document.createElement("a");
    link.href = cell.href;
    link.textContent = cell.text;
    return link;
  },
  // With `link` and `href`, a link below the lines.
  lines: (cell) => {
    const parts = cell.list.map((line) => {
      const part = document.createElement("div");
      part.textContent = line;
      return part;
    });
    return cell.link ? [...parts, BUILD.link({ text: cell.link, href: cell.href })] : parts;
  },
  done: (cell) => {
    const bar = document.createElement("progress");
    bar.max = 100;
    bar.value = cell.percent;
    bar.setAttribute("aria-label", "phases done");
    return [bar, ` ${cell.percent.toFixed(0)} %`];
  },
  when: (cell) => {
    const line = document.createElement("span");
    line.className = "when";
    if (cell.width !== null) {
      const bar = document.createElement("span");
      bar.className = cell.state;
      bar.style.left = `${cell.left}%`;
      bar.style.width = `${cell.width}%`;
      line.append(bar);
    }
    return line;
  },
  long: (cell) => {
    if (cell.text.length <= 100) return cell.text;
    const [details, summary, all] = ["details", "summary", "span"].map((tag) => document.createElement(tag));
    summary.textContent = `${cell.text.slice(0, 100)}…`;
    all.textContent = cell.text;
    details.append(summary, all);
    return details;
  },
};

function fillCell(element, cell) {
  const plain = typeof cell === "object" && cell !== null ? cell : { text: String(cell ?? "") };
  const now = JSON.stringify(plain);
  if (element.shown === now) return;
  element.shown = now;
  element.className = plain.class ?? "";
  const made = plain.kind ? BUILD[plain.kind](plain) : plain.text;
  element.replaceChildren(...[made].flat());
}

// The rows of a table body, one per item; `key` identifies an item's row, the first cell is its header.
export function fill(body, items, key, cells) {
  const old = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  items.forEach((item, at) => {
    const name = String(key(item, at));
    let row = old.get(name);
    old.delete(name);
    if (!row) {
      row = document.createElement("tr");
      row.dataset.key = name;
    }
    if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] ?? null);
    cells(item).forEach((cell, place) => {
      let element = row.cells[place];
      if (!element) {
        element = document.createElement(place ? "td" : "th");
        if (!place) element.scope = "row";
        row.append(element);
      }
      if (typeof cell === "function") cell(element);
      else fillCell(element, cell);
    });
  });
  old.forEach((row) => row.remove());
}

// ---- pages of long lists

export const pages = {};

export function pager(name, list) {
  const nav = byId(`${name}-pages`);
  const last = Math.max(0, Math.ceil(list.total / list.size) - 1);
  show(nav, last > 0 || list.page > 0);
  if (!nav.firstChild) {
    const [before, where, after] = ["button", "span", "button"].map((tag) => document.createElement(tag));
    before.textContent = "‹ Back";
    after.textContent = "Next ›";
    for (const [button, step] of [[before, -1], [after, 1]]) {
      button.type = "button";
      button.addEventListener("click", () => {
        if (button.getAttribute("aria-disabled") === "true") return;
        pages[name] = Math.max(0, (pages[name] ?? 0) + step);
        refresh();
      });
    }
    nav.append(before, where, after);
  }
  const [before, where, after] = nav.children;
  const from = list.page * list.size;
  say(where, list.rows.length ? `${count(from + 1)}–${count(from + list.rows.length)} of ${count(list.total)}` : `of ${count(list.total)}`);
  // Not `disabled`, which would take the focus from the button just pressed.
  before.setAttribute("aria-disabled", String(list.page <= 0));
  after.setAttribute("aria-disabled", String(list.page >= last));
}

// ---- asking

let ask = null;
let timer = null;
let turn = 0;

export function refresh() {
  clearTimeout(timer);
  return ask();
}

async function answer(path) {
  const response = await fetch(`${root}${path}`, { headers: { Accept: "application/json" } });
  const body = await response.json().catch(() => ({ error: `Airflow answered ${response.status} without a reason` }));
  if (response.ok) return body;
  const error = new Error(body.error ?? body.detail ?? `Airflow answered ${response.status}`);
  error.login = response.status === 401;
  throw error;
}

export { answer };

// Fetch `path()` now and every two seconds, and pass the answer to `draw`. A hidden page fetches nothing.
export function live(path, draw) {
  ask = async () => {
    const mine = ++turn;
    try {
      if (document.hidden) return;
      const facts = await answer(path());
      if (mine !== turn) return; // a newer request is under way
      draw(facts);
      trouble(null);
      say(byId("live"), `Live, ${time(facts.now_ms).slice(11)}`);
    } catch (error) {
      if (mine !== turn) return;
      trouble(error);
    } finally {
      if (mine === turn) timer = setTimeout(ask, PAUSE_MS);
    }
  };
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  return ask();
}

function trouble(error) {
  const line = byId("trouble");
  show(line, error !== null);
  if (error === null) return;
  say(byId("live"), "Not live");
  if (error instanceof TypeError && String(error.message).includes("fetch")) {
    say(line, "Airflow does not answer. What is shown is stale; the page keeps trying.");
  } else if (error.login) {
    if (line.querySelector("a")) return;
    const link = document.createElement("a");
    link.href = window.location.href;
    link.textContent = "Log in again";
    line.replaceChildren("Your login has expired. What is shown is stale. ", link);
  } else {
    say(line, error.message);
  }
}
