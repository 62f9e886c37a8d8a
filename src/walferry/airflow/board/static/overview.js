// The overview: a line a run.
import { bytes, byId, count, duration, fill, live, pager, pages, say, show, time } from "./live.js";

const alarm = (n, kind) => ({ text: n ? `${n} ▲` : "0", class: n ? `number ${kind}` : "number" });

live(
  () => `/api/runs?page=${pages.runs ?? 0}`,
  (facts) => {
    const { rows, total } = facts.runs;
    show(byId("runs"), total > 0);
    show(byId("none"), total === 0);
    say(byId("ledger"), `Ledger: ${facts.ledger}`);
    fill(byId("runs").tBodies[0], rows, (run) => run.run, (run) => [
      { kind: "link", text: run.run, href: `${document.body.dataset.root}/runs/${encodeURIComponent(run.run)}` },
      { kind: "badge", state: run.state },
      { kind: "badges", list: [{ text: run.phase, state: run.state === "running" ? "plain" : run.phase_state === "failed" ? "failed" : "plain" }] },
      { kind: "done", percent: run.percent },
      { text: duration(run.lag_seconds), class: "number" },
      { text: bytes(run.backlog_bytes), class: "number" },
      { text: count(run.edits_applied), class: "number" },
      alarm(run.gaps, "bad"),
      alarm(run.held, "warn"),
      { text: time(run.created_ms), class: "time" },
      { text: duration(run.elapsed_seconds), class: "number" },
    ]);
    pager("runs", facts.runs);
    const running = rows.filter((run) => run.state === "running").length;
    say(byId("status"), `${total} runs, ${running} running on this page`);
  },
);
