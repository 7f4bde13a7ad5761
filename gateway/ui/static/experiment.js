// One experiment: its arms, what may be said of their difference by now, and what stops or has stopped one.

import { change, count, plural, seconds, share, speed } from "./format.js";
import { html, interval, is, nothing, tag, wide } from "./parts.js";

const OUTCOMES = { better: "good", worse: "bad", differs: "warn", nothing: "none", refused: "warn" };
const WORDS = { better: "better", worse: "worse", differs: "differs", nothing: "nothing shown yet", refused: "no verdict" };

export const report = (each, index, controls) => html`<section aria-labelledby=${`experiment-${index}`}>
  <div class="head"><h2 id=${`experiment-${index}`}>${each.name} <span class="muted">${each.model}</span> ${tag(each.kind)}</h2>
    <p>${each.runs ? is("good", "runs") : is("none", "over")} <span class="muted">${each.ended || `${share(each.share)} to the new arm${each.next_share ? `, then ${share(each.next_share)}` : ""}`}</span></p></div>
  ${each.warnings.length ? html`<div class="body">${each.warnings.map(warning => html`<p>${is("warn", "warning")} ${warning}.</p>`)}</div>` : nothing}
  <div class="scroll"><table class="cards"><caption class="hint">Arms; kept to one arm: ${each.sticky === "request" ? "nothing, each request is drawn anew" : each.sticky}</caption><thead><tr><th scope="col">Arm</th><th scope="col">Deployments</th>
      <th scope="col" class="n">Share now</th><th scope="col" class="n">Requests</th><th scope="col">State</th></tr></thead>
    <tbody>${each.arms.map(arm => html`<tr><th scope="row">${arm.name}</th><td class="two" data-label="Deployments">${arm.deployments.join(", ") || "whoever routing chooses"}</td>
      <td class="n" data-label="Share now">${share(arm.weight)}</td><td class="n" data-label="Requests">${count(arm.requests)}${arm.unit === "request" ? nothing : html`<small class="muted">${count(arm.exposed)} by ${arm.unit}</small>`}</td>
      <td class="whole" data-label="State">${arm.stop ? stopped(arm.stop) : is("good", each.runs ? "takes part" : "took part")}</td></tr>`)}</tbody></table></div>
  ${controls}
  ${each.comparisons.map(comparison => against(comparison, each))}
  ${each.notes.length ? html`<details><summary>${plural(each.notes.length, "event")}</summary><dl class="facts">${each.notes.map(note => html`<dt>${new Date(note.at * 1000).toLocaleString("en-GB")}</dt><dd>${note.text}</dd>`)}</dl></details>` : nothing}
</section>`;

const GUARDED = { errors: "errors", faults: "faults of form", ttft: "TTFT" };

const stopped = stop => html`${is("bad", "stopped")} by its guardrail on ${GUARDED[stop.guardrail]}<small class="muted">${stop.text}; after ${plural(stop.requests, "request")}, ${new Date(stop.at * 1000).toLocaleString("en-GB")}</small>`;

/** Within how many requests an arm that is so much worse is stopped by itself. */
const promises = (arm, guardrails) => html`<details><summary>When ${arm} is stopped by itself</summary><table><caption class="hint">Requests of both arms, in 95 of 100 cases, at the present split</caption>
  <thead><tr><th scope="col">Guardrail</th><th scope="col">If it has</th><th scope="col" class="n">Within</th></tr></thead>
  <tbody>${guardrails.map(each => html`<tr><th scope="row">${GUARDED[each.guardrail]}</th><td>${each.guardrail === "ttft" ? `${each.worse.toFixed(1)} times the first arm's` : `${Math.round(each.worse * 100)} points more`}</td>
    <td class="n">${each.within === null ? "not to be told yet" : plural(each.within, "request")}</td></tr>`)}</tbody></table></details>`;

function against({ arm, against: first, differ, metrics, verdict, guardrails }, each) {
  return html`<div class="body"><h3>${arm} against ${first}</h3>
      <p>${is(OUTCOMES[verdict.outcome], WORDS[verdict.outcome])} ${verdict.text}.</p>
      <p class="muted">${differ.length ? `Differs: ${differ.join("; ")}.` : "They differ in nothing that is known."} The verdict is about ${each.metric}; a difference of ${share(each.smallest)} would matter.</p></div>
    ${wide(`${arm} against ${first}`, html`<table><thead><tr><th scope="col">Metric</th><th scope="col" class="n">${first}</th><th scope="col" class="n">${arm}</th><th scope="col" class="n">Difference</th>
      <th scope="col">Interval</th><th scope="col">Shown</th></tr></thead><tbody>${metrics.filter(metric => metric.counts.some(Boolean)).map(metric => row(metric, metric.metric === each.metric))}</tbody></table>`)}${guardrails.length ? promises(arm, guardrails) : nothing}`;
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
