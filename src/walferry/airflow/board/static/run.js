// The page of a run.
import { charts } from "./charts.js";
import { lanes } from "./lanes.js";
import { passes } from "./passes.js";
import { receiveTiles, receiving } from "./receiving.js";
import { replication } from "./replication.js";
import { answer, bytes, byId, count, duration, fill, keeps, live, pager, pages, prose, rate, receives, replicates, restores, say, show, stateBadge, streams, time } from "./live.js";

const { run, repair } = document.querySelector("h1").dataset;
const LISTS = ["tables", "lanes", "gaps", "comparison", "differences", "quarantine", "audit", "passes", "queues", "findings", "processes"];

function path() {
  const query = new URLSearchParams(LISTS.filter((name) => pages[name]).map((name) => [name, pages[name]]));
  return `/api/runs/${encodeURIComponent(run)}?${query}`;
}

function writeStop(r) {
  if (r.write_stop_seconds === null) return "";
  const parts = [r.write_stop_over ? "until the target was open" : "so far"];
  if (r.seconds_since_last_edit !== null) parts.push(`${duration(r.seconds_since_last_edit)} from the last edit`);
  return parts.join("; ");
}

// Those of a run that keeps moments.
function momentTiles(r) {
  const m = r.moments;
  const since = m === null ? [] : Object.values(m.since_ms).filter((ms) => ms !== null);
  return [
    ["Phase", r.phase, "", `${r.state} since ${time(r.since_ms).slice(11)}`],
    ["Lost with the source", m === null || m.loss_seconds === null ? "N/A" : duration(m.loss_seconds), m !== null && m.too_much ? "bad" : "", "of changes, if it were lost now"],
    ["Any moment since", since.length ? time(Math.max(...since)) : "none yet"],
    ["Bases", m === null ? "N/A" : count(m.bases), "", m === null ? "" : `${count(m.copied_bases)} of them in the folder`],
    ["Folder", m === null || m.folder_bytes === null ? "N/A" : bytes(m.folder_bytes), "", r.log === null ? "" : r.log.text],
    ["Time taken", duration(r.elapsed_seconds)],
  ];
}

// Those of a run that restores a table to a moment.
function restoreTiles(r) {
  return [
    ["Phase", r.phase, "", `${r.state} since ${time(r.since_ms).slice(11)}`],
    ["Done", `${r.percent.toFixed(0)} %`],
    ["Time taken", duration(r.elapsed_seconds)],
  ];
}

// Those of a run that watches HBase's own replication.
function replicationTiles(facts) {
  const { run: r, replication: found } = facts;
  const { stops } = found.findings;
  return [
    ["Oldest edit that waits", r.lag_seconds === null ? "N/A" : duration(r.lag_seconds), r.colour === "red" ? "bad" : "", r.lag_unknown],
    ["Not shipped", bytes(r.backlog_bytes)],
    ["Peers", count(found.peers.length)],
    ["Settings that stop edits", found.plan_ms === null ? "N/A" : stops ? `${count(stops)} ▲` : "none", stops ? "bad" : ""],
    ["Newest look", found.looked_ms === null ? "none yet" : time(found.looked_ms).slice(11)],
    ["Watched for", duration(r.elapsed_seconds)],
  ];
}

function tiles(facts) {
  const { run: r } = facts;
  const lost = facts.gaps.files;
  const held = facts.quarantine.held;
  const exposed = r.log !== null && r.log.time_to_loss_seconds !== null;
  const list = replicates ? replicationTiles(facts) : receives ? receiveTiles(facts) : keeps ? momentTiles(r) : restores ? restoreTiles(r) : [
    ["Phase", r.phase, "", `${r.state} since ${time(r.since_ms).slice(11)}`],
    ...(streams ? [] : [["Done", `${r.percent.toFixed(0)} %`]]),
    [streams ? "Edits sent" : "Edits applied", count(r.edits_applied), "", r.ended ? "" : `${rate(r.edits_per_second)} a second`],
    ["Lag", r.lag_seconds === null ? "N/A" : duration(r.lag_seconds), "", r.lag_split === null ? r.lag_unknown : r.lag_split.text],
    ["Backlog", bytes(r.backlog_bytes), "", r.open_logs ? `and the contents of ${r.open_logs} open ${r.open_logs > 1 ? "logs" : "log"}` : ""],
    ["Gaps", lost ? `${lost} ${lost > 1 ? "files" : "file"} ▲` : "none", lost ? "bad" : ""],
    ["Quarantine", held ? `${held} held ▲` : "empty", held ? "warn" : ""],
    ["Log kept", r.log === null ? "N/A" : bytes(r.log.kept_bytes), "", r.log === null || exposed ? "" : r.log.text],
    ...(exposed ? [["Time to loss", duration(r.log.time_to_loss_seconds), r.log.late ? "bad" : "", r.log.text]] : []),
    ["Time taken", duration(r.elapsed_seconds)],
    r.eta_seconds !== null ? ["Time left, about", duration(r.eta_seconds)] : ["Longest lag", duration(r.longest_lag_seconds)],
    ...(streams ? [] : [["Writes stopped for", r.write_stop_seconds === null ? (r.ended ? "never" : "not yet") : duration(r.write_stop_seconds), "", writeStop(r)]]),
  ];
  const box = byId("tiles");
  while (box.children.length > list.length) box.lastChild.remove();
  list.forEach(([name, value, kind, why], at) => {
    let tile = box.children[at];
    if (!tile) {
      tile = document.createElement("div");
      tile.append(document.createElement("dt"), document.createElement("dd"), document.createElement("dd"));
      box.append(tile);
    }
    say(tile.firstChild, name);
    say(tile.children[1], value);
    tile.lastChild.className = "why";
    say(tile.lastChild, why ?? "");
    tile.className = kind ?? "";
  });
}

function alarms(list) {
  const box = byId("alarms");
  while (box.children.length > list.length) box.lastChild.remove();
  list.forEach((alarm, at) => {
    const line = box.children[at] ?? box.appendChild(document.createElement("p"));
    line.className = `alarm ${alarm.kind}`;
    say(line, alarm.text);
  });
}

function cutover(found) {
  show(byId("cutover"), found !== null);
  show(byId("to-cutover"), found !== null);
  if (found === null) return;
  say(byId("may-begin"), `${found.may_begin ? "Yes" : "Not now"}. Expected length of the write stop: ${found.write_stop.text}.`);
  const badge = { yes: "done", no: "failed", unknown: "not begun" };
  const looked = (c) => (c.origin !== "ledger" && c.looked_ms !== null ? ` (looked at ${time(c.looked_ms)})` : "");
  fill(byId("cutover-rows"), found.conditions, (c) => c.name, (c) => [
    { kind: "lines", list: [c.name, c.question], class: "phase" },
    { kind: "badge", state: badge[c.answer], text: c.answer },
    {
      kind: "lines",
      class: "long",
      list: c.reasons.length
        ? c.reasons.map((r) => `${r.why}${r.to_do && `: ${r.to_do}`}${looked(c)}`)
        : [c.text + looked(c)],
    },
  ]);
}

function phases(facts) {
  const began = facts.run.created_ms;
  const now = facts.run.ended_ms ?? facts.now_ms;
  const whole = Math.max(1, now - began);
  const part = (ms) => Math.min(100, Math.max(0, Math.round((1000 * (ms - began)) / whole) / 10));
  fill(byId("phases-rows"), facts.phases, (p) => p.phase, (p) => {
    const over = !p.finished_ms && facts.run.ended_ms === null;
    const end = p.finished_ms ?? now;
    const left = p.started_ms ? part(p.started_ms) : 0;
    return [
      { kind: "lines", list: [p.phase, p.what], class: "phase" },
      { kind: "badge", state: p.state, text: p.tables > 1 && p.attempts && p.state !== "done" ? `${p.state}: ${p.done} of ${p.tables} tables done` : p.state },
      { text: time(p.started_ms), class: "time" },
      { text: p.started_ms ? duration((end - p.started_ms) / 1000) + (over ? " so far" : "") : "–", class: "number" },
      { text: p.attempts || "–", class: "number" },
      { kind: "when", class: "timeline", state: p.state, left, width: p.started_ms ? Math.max(0.4, part(end) - left) : null },
      { kind: "long", class: "long", text: p.error },
    ];
  });
}

const pair = (source, target) => ({ kind: "lines", class: "number", list: [count(source), count(target)] });
// Counts by name: their sum, which expands.
function folded(counts) {
  const lines = Object.entries(counts).filter(([, n]) => n).map(([name, n]) => `${count(n)} ${name}`);
  const sum = Object.values(counts).reduce((a, b) => a + b, 0);
  return lines.length > 1 ? { kind: "fold", text: count(sum), list: lines } : lines[0] ?? "–";
}
const named = (counts) => Object.entries(counts).map(([name, n]) => `${count(n)} ${name}`);

// A table's progress: the step that has failed or is running, otherwise the last one that is done.
function step(steps) {
  const loud = ["failed", "interrupted", "waiting", "running"].map((state) => steps.find((one) => one[1] === state)).find(Boolean);
  const [name, state] = loud ?? steps.findLast((one) => one[1] === "done") ?? ["", "not begun"];
  return { kind: "badge", state, text: `${name} ${state}`.trim() };
}

function tables(facts) {
  fill(byId("tables-rows"), facts.tables.rows, (t) => t.source, (t) => {
    const c = t.compared;
    const equal = c && c.equal_regions === c.regions;
    const word = (state) => (streams && state === "applied" ? "sent" : state);
    const states = Object.entries(t.log).filter(([, n]) => n).map(([state, n]) => `${bytes(n)} ${word(state)}`);
    if (keeps) return [t.source, t.since_ms ? time(t.since_ms) : "no base yet"];
    if (restores) return [t.source, t.target, step(Object.entries(t.steps)), { kind: "long", class: "long", text: t.errors.join("; ") }];
    if (streams) return [t.source, t.topic ?? "not planned yet", { kind: "lines", list: states.length ? states : ["nothing yet"] }];
    return [
      t.source,
      t.target,
      step(Object.entries(t.steps)),
      { kind: "lines", list: states.length ? states : ["nothing yet"] },
      c ? { kind: "badge", state: equal ? "equal" : "differs", text: `${equal ? "equal" : "differs"}: ${c.equal_regions} of ${c.regions} regions` } : "not yet",
      c ? pair(c.source_rows, c.target_rows) : { text: "–", class: "number" },
      c ? pair(c.source_cells, c.target_cells) : { text: "–", class: "number" },
      { kind: "lines", list: c ? (named(c.differences).length ? named(c.differences) : ["none"]) : ["–"], ...(t.repair && { link: "repair…", href: repair }) },
      folded(c?.dropped ?? {}),
      { kind: "long", class: "long", text: t.errors.join("; ") },
    ];
  });
  pager("tables", facts.tables);
}

function gaps(list) {
  show(byId("gaps"), list.total > 0);
  fill(byId("gaps-rows"), list.rows, (gap, at) => `${at} ${gap.file} ${gap.table} ${gap.start}`, (gap) => [
    { kind: "badge", state: gap.kind },
    { text: gap.file, class: "hex" },
    { text: gap.start === gap.end ? `from ${count(gap.start)}` : `${count(gap.start)} – ${count(gap.end)}`, class: "time" },
    gap.table,
    { text: gap.reason, class: "long" },
  ]);
  pager("gaps", list);
}

function comparison(list, rows) {
  show(byId("comparison-none"), list.total === 0);
  show(byId("comparison-some"), list.total > 0);
  say(byId("comparison-sum"), `${count(list.total - list.differing)} of ${count(list.total)} regions are equal. Those that differ come first. ${list.second_reader.join(" ")}`);
  fill(byId("comparison-rows"), list.rows, (r) => `${r.table} ${r.region} ${r.start}`, (r) => [
    r.table,
    { text: r.region, class: "hex" },
    { text: r.start, class: "key" },
    { text: r.stop, class: "key" },
    { kind: "badge", state: r.equal ? "equal" : "differs" },
    pair(r.source_rows, r.target_rows),
    pair(r.source_cells, r.target_cells),
    { kind: "lines", class: "hex whole", list: [r.source_digest, r.target_digest] },
    folded(r.dropped),
  ]);
  pager("comparison", list);
  show(byId("differences"), rows.total > 0);
  fill(byId("differences-rows"), rows.rows, (d, at) => `${at} ${d.table} ${d.row}`, (d) => [
    d.table,
    { text: d.row, class: "key" },
    { kind: "badge", state: d.kind === "unexplained" ? "failed" : "warning", text: d.kind },
    { kind: "long", class: "long", text: d.detail },
  ]);
  pager("differences", rows);
}

function quarantine(list) {
  show(byId("quarantine-none"), list.total === 0);
  show(byId("quarantine-some"), list.total > 0);
  fill(byId("quarantine-rows"), list.rows, (item) => item.id, (item) => [
    String(item.id),
    { kind: "badge", state: item.state },
    { kind: "lines", list: [item.table, item.region].filter(Boolean), class: "key" },
    { kind: "lines", class: "long", list: [item.reason, `${count(item.bytes)} bytes kept, ${time(item.recorded_ms)}`] },
    { kind: "lines", class: "hex", list: [item.file, `bytes ${count(item.start)} – ${count(item.end)}`] },
    { kind: "lines", class: "key", list: item.holds.length ? item.holds : ["nothing"] },
    item.resolution
      ? { kind: "lines", list: [`${item.resolution}, by ${item.released_by}`, item.release_reason ?? "", time(item.released_ms)] }
      : "none yet",
  ]);
  pager("quarantine", list);
}

function audit(list) {
  say(byId("head"), `${list.head.sequence} ${list.head.hash}`);
  fill(byId("audit-rows"), list.rows, (line) => line.sequence, (line) => [
    { text: line.sequence, class: "number" },
    { text: time(line.at_ms), class: "time" },
    line.actor,
    line.action,
    { kind: "long", class: "json", text: line.inputs },
    { kind: "long", class: "long", text: line.outcome },
  ]);
  pager("audit", list);
}

function rounds(list) {
  fill(byId("rounds-rows"), list, (r) => r.number, (r) => [
    { text: r.number, class: "number" },
    { text: time(r.finished_ms), class: "time" },
    ...[duration((r.finished_ms - r.started_ms) / 1000), count(r.files), bytes(r.bytes), count(r.cells), duration(r.lag_ms / 1000), bytes(r.backlog_bytes)].map((text) => ({ text, class: "number" })),
  ]);
}

function head(facts) {
  const { run: r } = facts;
  const state = byId("state");
  if (state.dataset.state !== r.state) {
    state.dataset.state = r.state;
    state.replaceChildren(stateBadge(r));
  }
  byId("now").className = `now ${r.colour}`;
  prose(byId("cause"), r.cause);
  prose(byId("next"), r.next_step);
  show(byId("whom").parentElement, r.waits_for !== null);
  if (r.waits_for !== null) prose(byId("whom"), `${r.waits_for}: ${r.whom}`);
  const ended = r.ended_ms ? `, ended ${time(r.ended_ms)}` : "";
  say(byId("summary"), `Started ${time(r.created_ms)}${ended}, by ${r.owner}.`);
  say(byId("ledger"), `Ledger: ${r.ledger}`);
  const far = keeps ? "" : streams || replicates || receives ? (r.lag_seconds === null ? "" : `, lag ${duration(r.lag_seconds)}`) : `, ${r.percent.toFixed(0)} %`;
  document.title = `${r.run}: ${r.state}${far} – walferry`;
  const news = facts.alarms.filter((alarm) => alarm.kind !== "note").map((alarm) => alarm.text);
  say(byId("status"), [`${r.run} is ${r.state}: ${r.cause}. Next step: ${r.next_step}`, ...news].join(". "));
}

byId("check").addEventListener("click", async () => {
  say(byId("checked"), "checking…");
  try {
    const found = await answer("/api/audit-check");
    byId("checked").className = found.broken ? "bad" : "good";
    say(byId("checked"), found.broken ?? `✓ intact: ${count(found.lines)} lines, each chained to the previous one`);
  } catch (error) {
    say(byId("checked"), error.message);
  }
});

live(path, (facts) => {
  head(facts);
  alarms(facts.alarms);
  tiles(facts);
  cutover(facts.readiness);
  passes(facts.passes);
  if (replicates) replication(facts.replication);
  else if (receives) receiving(facts.receiving);
  else {
    phases(facts);
    tables(facts);
  }
  if (!keeps && !restores && !replicates && !receives) {
    lanes(facts.lanes);
    pager("lanes", facts.lanes);
    gaps(facts.gaps);
    charts(facts);
    rounds(facts.latest_rounds);
    if (!streams) comparison(facts.comparison, facts.differences);
    quarantine(facts.quarantine);
  }
  audit(facts.audit);
});
