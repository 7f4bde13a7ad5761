// Precision and quality: which precision serves whom, and what the regressions and soaks behind that have found.

import { json } from "../api.js";
import { change, count, date, plural, precision, share } from "../format.js";
import { empty, html, interval, is, nothing, problem, quality, render, wide } from "../parts.js";

export const title = "Precision and quality";

export function open(view) {
  const asked = new AbortController();
  const head = html`<div class="head"><h1>Precision and quality</h1>
    <p class="muted">A quantised deployment serves those who name no precision only once it has passed.</p></div>`;
  render(html`${head}${empty("Reading the verdicts…", "")}`, view);
  json("admin/verdicts", { signal: asked.signal }).then(
    ({ deployments }) => render(html`${head}${deployments.length ? models(deployments) : empty("No engine is known.", html`<code>paceline doctor</code> says what was looked for.`)}`, view),
    error => error.name === "AbortError" || render(html`${head}${problem(error)}`, view),
  );
  return () => asked.abort();
}

function models(deployments) {
  const names = [...new Set(deployments.map(each => each.model))].sort();
  const untested = deployments.every(each => !each.regression && !each.soak);
  return html`${untested ? empty("Nothing has been tested yet.", html`<code>paceline quality</code> compares each quantised deployment with its model's best precision;
      <code>paceline soak</code> makes many requests in a row. Both take minutes, and this page shows what they find.`) : nothing}
    ${names.map((name, index) => html`<section aria-labelledby=${`model-${index}`}><h2 id=${`model-${index}`}>${name}</h2>
      ${table(deployments.filter(each => each.model === name))}
      ${deployments.filter(each => each.model === name && each.regression?.measures.length).map(regression)}
      ${deployments.filter(each => each.model === name && each.soak).map(soak)}</section>`)}`;
}

const table = deployments => html`<div class="scroll"><table class="cards"><thead><tr><th scope="col">Deployment</th><th scope="col">Precision</th>
    <th scope="col">Quality</th><th scope="col">Stable</th><th scope="col">Serves</th></tr></thead>
  <tbody>${deployments.map(each => html`<tr><th scope="row">${each.id}<small class="muted">${each.engine}</small></th>
    <td data-label="Precision" class="nowrap">${precision(each)}</td><td data-label="Quality">${quality(each.quality)}</td>
    <td data-label="Stable">${stable(each)}</td><td class="whole" data-label="Serves">${each.who}</td></tr>`)}</tbody></table></div>`;

const stable = each => (each.soak ? (each.soak.stable ? is("good", "stable") : is(each.soak.conclusive === false ? "warn" : "bad", each.soak.conclusive === false ? "not shown" : "not stable"))
  : is("none", "not soaked"));

const regression = each => {
  const { measures, scores, means, notes, worst, baseline, prompts, unanswered, suite, at, why } = each.regression;
  return html`<details ?open=${each.quality === "failed"}><summary>${each.id}: regression against ${baseline.deployment}, ${date(at)}</summary>
    <p>${quality(each.regression.quality)} ${why}.</p>
    <p class="muted">${plural(prompts, "prompt")}${unanswered ? `, ${count(unanswered)} without an answer` : ""}; suite ${suite}.${notes.map(note => ` Note: ${note}.`)}</p>
    ${wide(`Measures of ${each.id}`, html`<table><thead><tr><th scope="col">Measure</th><th scope="col" class="n">Found</th><th scope="col">Interval, and what is tolerated</th><th scope="col">Tolerated</th><th scope="col">Verdict</th></tr></thead>
      <tbody>${measures.map(measure)}</tbody></table>`)}
    <div class="pair"><table><caption class="hint">Good answers by category</caption><thead><tr><th scope="col">Category</th><th scope="col" class="n">Prompts</th><th scope="col" class="n">${baseline.deployment}</th><th scope="col" class="n">${each.id}</th></tr></thead>
      <tbody>${scores.map(score => html`<tr><th scope="row">${score.category}</th><td class="n">${score.prompts}</td><td class="n">${score.baseline}</td><td class="n">${score.candidate}</td></tr>`)}</tbody></table>
      ${means ? html`<dl class="facts"><dt>Equal answers</dt><dd>${share(means.identical)}</dd><dt>Common beginning</dt><dd>${share(means.prefix)} of the words</dd>
        <dt>Edit distance</dt><dd>${share(means.edit)}</dd><dt>Repeated sequences</dt><dd>${share(means.repetition_baseline)} → ${share(means.repetition_candidate)}</dd></dl>` : nothing}</div>
    ${worst.length ? html`<h3>The worst ${worst.length} of ${plural(prompts, "pair")}</h3><p class="hint">From the first character that differs on, the text is marked.</p>
      ${worst.map(pair => html`<details><summary>${pair.prompt_id}: ${pair.remarks.join("; ")}</summary>
        <pre tabindex="0" aria-label="Prompt">${pair.prompt}</pre>
        <div class="pair"><div><small>${baseline.deployment}</small>${text(pair.baseline, pair.same)}</div><div><small>${each.id}</small>${text(pair.candidate, pair.same)}</div></div></details>`)}` : nothing}
  </details>`;
};

const text = (whole, same) => html`<pre tabindex="0">${whole.slice(0, same)}${whole.length > same ? html`<mark>${whole.slice(same)}</mark>` : nothing}</pre>`;

function measure(each) {
  const limits = [each.tolerated, each.tolerated_low].filter(limit => limit !== null);
  const places = [each.low, each.high, ...limits, each.unit === "factor" ? 1 : 0], pad = (Math.max(...places) - Math.min(...places)) * 0.08;
  return html`<tr><th scope="row">${each.title}</th><td class="n">${each.found}</td>
    <td>${interval(each.low, each.value, each.high, { least: Math.min(...places) - pad, most: Math.max(...places) + pad, zero: each.unit === "factor" ? 1 : 0, limits, label: `${each.from} to ${each.to}` })}
      <small class="muted">${each.from} … ${each.to}</small></td>
    <td>${each.limit}</td><td>${each.passed ? is("good", "passed") : is("bad", "failed")}</td></tr>`;
}

const soak = each => {
  const { requests, planned, failures, ttft, memory, repeated, same, cancelled, invalid, reasons, at } = each.soak;
  const grown = found => (found ? `${change(found.change)} (${change(found.low)} … ${change(found.high)})` : "too little to say");
  return html`<details ?open=${!each.soak.stable}><summary>${each.id}: soak of ${plural(requests, "request")}${at ? `, ${date(at)}` : ""}</summary>
    ${reasons.length ? html`<p>${stable(each)} ${reasons.join("; ")}.</p>` : html`<p>${stable(each)} No failure, no growth, the same answer to the same prompt.</p>`}
    <dl class="facts"><dt>Requests</dt><dd>${count(requests)} of ${count(planned)} planned, ${count(cancelled)} cancelled on purpose, ${count(invalid)} invalid on purpose</dd>
      <dt>Failed</dt><dd>${failures.length ? failures.slice(0, 10).map(each => html`number ${each.number}: ${each.kind} ${each.detail}<br>`) : "none"}</dd>
      <dt>TTFT over the soak</dt><dd>${grown(ttft)}</dd><dt>Memory</dt><dd>${grown(memory)}</dd><dt>Same answer</dt><dd>${count(same)} of ${count(repeated)}</dd></dl></details>`;
};
