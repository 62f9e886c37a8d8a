// The lanes of the log. One block of all lanes is in the tab order; arrow keys move between blocks.
import { bytes, byId, count, fill, say, show, streams } from "./live.js";

const WORDS = {
  gap: "gap", held: "held", seen: "seen", sealed: "sealed", applied: streams ? "sent" : "applied", verified: "verified", outside: "outside",
};
const body = byId("lanes-rows");
let current = null; // the block in the tab order

function describe(lane, block) {
  const number = (name) => name.slice(name.lastIndexOf(".") + 1);
  const files = block.files === 1 ? `file ${block.first}` : `${count(block.files)} files, ${block.first} to ${number(block.last)}`;
  return `${lane.server}: ${WORDS[block.state]}, ${files}, ${bytes(block.bytes)}`;
}

function choose(block, focus) {
  if (current && current !== block) current.tabIndex = -1;
  current = block;
  block.tabIndex = 0;
  if (focus) block.focus();
  say(byId("block"), block.title);
}

function draw(place, lane) {
  const cell = place.firstElementChild ?? place.appendChild(document.createElement("div"));
  cell.className = lane.blocks.length <= 8 ? "blocks few" : "blocks";
  const old = new Map([...cell.children].map((block) => [block.dataset.key, block]));
  lane.blocks.forEach((facts, at) => {
    const key = facts.first;
    let block = old.get(key);
    old.delete(key);
    if (!block) {
      block = document.createElement("button");
      block.type = "button";
      block.dataset.key = key;
      block.tabIndex = -1;
      block.append(document.createElement("span"));
      block.addEventListener("click", () => choose(block, true));
      block.addEventListener("focus", () => choose(block, false));
    }
    if (cell.children[at] !== block) cell.insertBefore(block, cell.children[at] ?? null);
    const text = describe(lane, facts);
    if (block.title !== text) {
      block.title = text;
      block.setAttribute("aria-label", text);
      if (block === document.activeElement) say(byId("block"), text);
    }
    block.className = `block ${facts.state}`;
    block.style.flexGrow = facts.files;
    say(block.firstChild, facts.files > 1 ? `${WORDS[facts.state]} ${facts.files}` : WORDS[facts.state]);
  });
  old.forEach((block) => block.remove());
}

export function lanes(list) {
  const focused = document.activeElement?.closest("#lanes-rows") ? document.activeElement : null;
  show(byId("lanes-none"), list.total === 0);
  show(body.closest("table"), list.total > 0);
  fill(body, list.rows, (lane) => lane.group, (lane) => [
    { kind: "lines", class: "server", list: lane.group === encodeURIComponent(lane.server) ? [lane.server] : [lane.server, lane.group] },
    (place) => draw(place, lane),
    {
      class: "numbers",
      text: Object.entries(lane.counts).filter(([, n]) => n).map(([state, n]) => `${count(n)} ${WORDS[state]}`).join(" · ") + ` · ${bytes(lane.bytes)}`,
    },
  ]);
  if (focused && focused.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
  if (!current?.isConnected) {
    current = body.querySelector(".block");
    if (current) current.tabIndex = 0;
    if (focused) current?.focus({ preventScroll: true });
  }
}

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };

body?.addEventListener("keydown", (event) => {
  const block = event.target.closest(".block");
  const step = STEPS[event.key];
  if (!block || !step) return;
  event.preventDefault();
  const rows = [...body.rows];
  const row = rows.indexOf(block.closest("tr"));
  const target = rows[Math.min(rows.length - 1, Math.max(0, row + step[0]))];
  const there = [...target.querySelectorAll(".block")];
  const here = [...rows[row].querySelectorAll(".block")].indexOf(block);
  const at = step[0] ? nearest(there, block) : Math.min(there.length - 1, Math.max(0, here + step[1]));
  if (there[at]) choose(there[at], true);
});

function nearest(blocks, block) {
  const left = block.getBoundingClientRect().left;
  const found = blocks.findIndex((one) => one.getBoundingClientRect().right > left);
  return found < 0 ? blocks.length - 1 : found;
}
