// Lag and rate, drawn by Plotly from its installed package. The numbers are also in the table below the charts.
import { byId, show, streams } from "./live.js";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const SETTINGS = { displayModeBar: false, responsive: true };
const drawn = {};

export function chart(id, lines, range, extra, said) {
  const element = byId(id);
  element.setAttribute("aria-label", said);
  const now = JSON.stringify([lines, range, extra, color("--text")]);
  if (drawn[id] === now) return;
  drawn[id] = now;
  const axis = { gridcolor: color("--line"), linecolor: color("--line"), zeroline: false, automargin: true };
  const layout = {
    height: 220,
    margin: { l: 40, r: 12, t: 8, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: color("--text") },
    showlegend: false,
    uirevision: "kept",
    xaxis: { ...axis, type: "date", nticks: 5, range },
    yaxis: { ...axis, rangemode: "tozero", nticks: 6 },
    ...extra,
  };
  window.Plotly.react(element, lines, layout, SETTINGS);
}

export function line(at, values, name) {
  const dates = at.map((ms) => new Date(ms).toISOString());
  const mode = at.length < 40 ? "lines+markers" : "lines";
  return { x: dates, y: values, name, mode, type: "scatter", line: { color: color("--accent"), width: 2 }, marker: { size: 5 }, hovertemplate: "%{x|%H:%M:%S}<br>%{y:.1f}<extra></extra>" };
}

const newest = (values) => values[values.length - 1];

export function charts(facts) {
  const { lag, rate } = facts.charts;
  const some = rate.at_ms.length > 0;
  show(byId("charts"), some);
  show(byId("charts-none"), !some);
  show(byId("rounds"), some);
  if (!some || !window.Plotly) return; // still loading: the next answer is drawn
  const at = [...lag.at_ms];
  const seconds = [...lag.seconds];
  if (facts.run.lag_seconds !== null) {
    at.push(facts.now_ms);
    seconds.push(facts.run.lag_seconds);
  }
  const range = [facts.charts.from_ms, newest(at)].map((ms) => new Date(ms).toISOString());
  const limit = facts.run.max_lag;
  const limitText = facts.run.kind === "migration" ? `cutover below ${limit} s` : `max_lag ${limit} s`;
  const extra = limit
    ? {
        shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: limit, y1: limit, line: { color: color("--bad"), width: 1.5, dash: "dash" } }],
        annotations: [{ xref: "paper", x: 1, xanchor: "right", y: limit, yanchor: "bottom", text: limitText, showarrow: false, bgcolor: color("--page"), font: { size: 11, color: color("--bad") } }],
      }
    : {};
  const highest = Math.max(...seconds);
  chart("chart-lag", [line(at, seconds, "lag")], range, extra, `Lag over time: now ${newest(seconds).toFixed(1)} s, highest ${highest.toFixed(1)} s`);
  chart("chart-edits", [line(rate.at_ms, rate.edits, "edits")], range, {}, `Edits per second over time: now ${newest(rate.edits)}, highest ${Math.max(...rate.edits)}`);
  const mega = rate.bytes.map((n) => n / 1e6);
  chart("chart-bytes", [line(rate.at_ms, mega, "MB")], range, {}, `Log ${streams ? "read" : "applied"}, megabytes per second over time: now ${newest(mega).toFixed(2)}, highest ${Math.max(...mega).toFixed(2)}`);
}
