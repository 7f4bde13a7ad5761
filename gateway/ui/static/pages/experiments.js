// Experiments: arms side by side, what may be said of their difference by now, and what stopped them.

import { json } from "../api.js";
import { change, count, plural, seconds, share, speed } from "../format.js";
import { empty, html, interval, is, nothing, problem, render, tag, wide } from "../parts.js";

export const title = "Experiments";

const EVERY_MS = 5000;
const OUTCOMES = { better: "good", worse: "bad", differs: "warn", nothing: "none", refused: "warn" };
const WORDS = { better: "better", worse: "worse", differs: "differs", nothing: "nothing shown yet", refused: "no verdict" };

export function open(view) {
  const asked = new AbortController();
  let timer = 0;
  const draw = body => render(html`<div class="head"><h1>Experiments</h1><p class="muted">Intervals hold at any time they are looked at.</p></div>${body}`, view);

  async function load() {
    try {
      const { experiments } = await json("admin/experiments", { signal: asked.signal });
      const reports = await Promise.all(experiments.map(each => json(`admin/experiments/${encodeURIComponent(each.name)}`, { signal: asked.signal })));
      draw(reports.length ? reports.map(experiment) : nothingThere);
    } catch (error) {
      if (error.name === "AbortError") return;
      draw(error.status === 404 ? nothingThere : problem(error));
      if (error.status === 404) return;
    }
    timer = setTimeout(load, EVERY_MS);
  }

  draw(empty("Reading…", ""));
  load();
  return () => { asked.abort(); clearTimeout(timer); };
}

const nothingThere = empty("No experiment has been started.", html`<code>paceline experiment</code> begins one between deployments of a model; so does <code>experiments</code> in the configuration.`);

const experiment = (each, index) => html`<section aria-labelledby=${`experiment-${index}`}>
  <div class="head"><h2 id=${`experiment-${index}`}>${each.name} <span class="muted">${each.model}</span> ${tag(each.kind)}</h2>
    <p>${each.runs ? is("good", "runs") : is("none", "over")} <span class="muted">${each.ended || `${share(each.share)} to the new arm${each.next_share ? `, then ${share(each.next_share)}` : ""}`}</span></p></div>
  ${each.warnings.length ? html`<div class="body">${each.warnings.map(warning => html`<p>${is("warn", "warning")} ${warning}.</p>`)}</div>` : nothing}
  <div class="scroll"><table class="cards"><caption class="hint">Arms; kept to one arm: ${each.sticky === "request" ? "nothing, each request is drawn anew" : each.sticky}</caption><thead><tr><th scope="col">Arm</th><th scope="col">Deployments</th>
      <th scope="col" class="n">Share now</th><th scope="col" class="n">Requests</th><th scope="col">State</th></tr></thead>
    <tbody>${each.arms.map(arm => html`<tr><th scope="row">${arm.name}</th><td class="two" data-label="Deployments">${arm.deployments.join(", ") || "whoever routing chooses"}</td>
      <td class="n" data-label="Share now">${share(arm.weight)}</td><td class="n" data-label="Requests">${count(arm.requests)}${arm.unit === "request" ? nothing : html`<small class="muted">${count(arm.exposed)} by ${arm.unit}</small>`}</td>
      <td data-label="State">${arm.stopped ? is("bad", "stopped") : is("good", each.runs ? "takes part" : "took part")}</td></tr>`)}</tbody></table></div>
  ${each.comparisons.map(comparison => against(comparison, each))}
  ${each.notes.length ? html`<details><summary>${plural(each.notes.length, "event")}</summary><dl class="facts">${each.notes.map(note => html`<dt>${new Date(note.at * 1000).toLocaleString("en-GB")}</dt><dd>${note.text}</dd>`)}</dl></details>` : nothing}
</section>`;

function against({ arm, against: first, differ, metrics, verdict }, each) {
  return html`<div class="body"><h3>${arm} against ${first}</h3>
      <p>${is(OUTCOMES[verdict.outcome], WORDS[verdict.outcome])} ${verdict.text}.</p>
      <p class="muted">${differ.length ? `Differs: ${differ.join("; ")}.` : "They differ in nothing that is known."} The verdict is about ${each.metric}; a difference of ${share(each.smallest)} would matter.</p></div>
    ${wide(`${arm} against ${first}`, html`<table><thead><tr><th scope="col">Metric</th><th scope="col" class="n">${first}</th><th scope="col" class="n">${arm}</th><th scope="col" class="n">Difference</th>
      <th scope="col">Interval</th><th scope="col">Shown</th></tr></thead><tbody>${metrics.filter(metric => metric.counts.some(Boolean)).map(metric => row(metric, metric.metric === each.metric))}</tbody></table>`)}`;
}

function row(metric, isMain) {
  const value = amount(metric), by = difference(metric), reach = Math.max(0.02, Math.abs(metric.low ?? 0), Math.abs(metric.high ?? 0));
  const known = metric.low !== null && metric.high !== null;
  return html`<tr><th scope="row">${isMain ? html`<strong>${metric.metric}</strong>` : metric.metric}</th>
    ${metric.values.map((each, place) => html`<td class="n">${each === null ? "–" : value(each)}<small class="muted">of ${count(metric.counts[place])}</small></td>`)}
    <td class="n">${metric.difference === null ? "–" : by(metric.difference)}</td>
    <td>${known ? html`${interval(metric.low, metric.difference, metric.high, { least: -reach, most: reach, zero: 0, label: `${by(metric.low)} to ${by(metric.high)}` })}<small class="muted">${by(metric.low)} … ${by(metric.high)}</small>` : html`<span class="muted">too few yet</span>`}</td>
    <td>${metric.shown ? is("warn", "a difference") : metric.more ? html`<span class="muted">about ${count(metric.more)} more requests needed</span>` : html`<span class="muted">no difference</span>`}</td></tr>`;
}

const amount = ({ scale, unit }) => (scale === "share" ? share : unit === "s" ? seconds : unit === "tokens/s" ? speed : value => `${value.toFixed(2)} ${unit}`);
const difference = ({ scale }) => (scale === "mean" ? value => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}` : scale === "share" ? value => change(value).replace("%", "points") : change);
