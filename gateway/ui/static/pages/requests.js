// Requests: the last ones that are kept, and of one of them where its time went and why.

import { json } from "../api.js";
import { count, plural, seconds, share, speed } from "../format.js";
import { empty, ended, html, nothing, problem, render, svg, tag, wide } from "../parts.js";

export const title = "Requests";

const STAGES = {
  read: "Coming in", route: "Gateway: routing", wait: "Gateway: queue", cache: "Cache", retry: "Attempts that failed", connect: "Connect",
  queue: "Engine: queue", load: "Engine: loading", prefill: "Prefill", decode: "Decode", engine: "Engine, as a whole",
  client: "Client not reading", other: "Rest",
};
const ENDS = ["done", "cancelled", "failed", "refused"];
const SYMPTOMS = { slow: "slow", stuck: "stuck", error: "an error", "no output": "no output", none: "as it should be" };
const READ = 500;
const SHOWN = 200;

export const open = (view, [id]) => (id ? openOne(view, id) : openList(view));

const nothingYet = empty("No request is recorded.", html`They are as they end: <a href="#/playground">send one</a>.`);
const switchedOff = empty("No request is recorded: that was switched off.", html`Set <code>requests.keep</code> to more than 0, or leave it out.`);

// The list

function openList(view) {
  const asked = new AbortController();
  let all = null, wanted = { text: "", ended: "" };

  async function load() {
    try {
      all = (await json("admin/requests", { params: { limit: READ }, signal: asked.signal })).requests;
    } catch (error) {
      if (error.name === "AbortError") return;
      all = error;
    }
    draw();
  }

  const matches = each => (!wanted.ended || each.ended === wanted.ended)
    && [each.request_id, each.model, each.deployment, each.caller, each.reason, each.error, each.headline].some(text => text?.toLowerCase().includes(wanted.text));

  const search = event => {
    const form = new FormData(event.currentTarget);
    wanted = { text: form.get("text").trim().toLowerCase(), ended: form.get("ended") };
    draw();
  };

  function body() {
    if (all === null) return empty("Reading…", "");
    if (!Array.isArray(all)) return all.code === "requests_off" ? switchedOff : problem(all);
    if (!all.length) return nothingYet;
    const found = all.filter(matches);
    return html`<section aria-labelledby="list-title"><div class="head"><h2 id="list-title">${found.length < all.length ? `${count(found.length)} of ${plural(all.length, "request")}` : plural(all.length, "request")}</h2>
      <form class="line grow" @input=${search} @submit=${event => event.preventDefault()}>
        <div class="field grow"><label for="text">Search: id, model, deployment, key, reason, error</label><input id="text" name="text" type="search" autocomplete="off" spellcheck="false"></div>
        <div class="field"><label for="ended">Ended</label><select id="ended" name="ended"><option value="">in any way</option>${ENDS.map(each => html`<option>${each}</option>`)}</select></div>
        <button type="button" @click=${load}>Read again</button></form></div>
      ${found.length ? table(found.slice(0, SHOWN)) : empty("None of them matches.", "Search for less.")}
      ${found.length > SHOWN ? html`<p class="empty">The newest ${SHOWN}; search to see others.</p>` : nothing}</section>`;
  }

  const draw = () => render(html`<div class="head"><h1>Requests</h1><p class="muted">The last that ended, each with where its time went.</p></div>${body()}`, view);
  draw();
  load();
  return () => asked.abort();
}

const when = at => new Date(at * 1000).toLocaleString("en-GB", { day: "2-digit", month: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const beside = (value, predicted) => html`${seconds(value)}${predicted === null || predicted === undefined ? nothing : html`<small class="muted">predicted ${seconds(predicted)}</small>`}`;

const table = found => html`<div class="scroll"><table class="cards"><thead><tr><th scope="col">Request</th><th scope="col">Asked for</th><th scope="col">Went to</th>
    <th scope="col">Ended</th><th scope="col" class="n">TTFT</th><th scope="col" class="n">Total</th><th scope="col">Why</th></tr></thead>
  <tbody>${found.map(each => html`<tr><th scope="row"><a class="mono" href="#/requests/${encodeURIComponent(each.request_id)}">${each.request_id}</a><small class="muted nowrap">${when(each.at)}</small></th>
    <td class="two" data-label="Asked for">${each.model}${each.caller ? html`<small class="muted">key ${each.caller}</small>` : nothing}</td>
    <td data-label="Went to">${each.deployment || "nobody"} ${each.cache === "hit" ? tag("from the cache") : each.cache === "coalesced" ? tag("shared") : nothing}</td>
    <td data-label="Ended">${ended(each.ended)}</td>
    <td class="n" data-label="TTFT">${seconds(each.ttft_s)}</td><td class="n" data-label="Total">${beside(each.total_s, each.predicted_total_s)}</td>
    <td class="wide whole">${each.headline || each.error || "–"}</td></tr>`)}</tbody></table></div>`;

// One request

function openOne(view, id) {
  const asked = new AbortController();
  const draw = body => render(html`<div class="head"><h1>Request <span class="mono">${id}</span></h1><p><a href="#/requests">All requests</a></p></div>${body}`, view);
  draw(empty("Reading…", ""));
  json(`admin/requests/${encodeURIComponent(id)}`, { signal: asked.signal }).then(
    told => draw(one(told)),
    error => error.name === "AbortError" || draw(error.code === "requests_off" ? switchedOff : error.status === 404 ? empty("This request is not recorded.", "It may be older than the last that are kept.") : problem(error)),
  );
  return () => asked.abort();
}

const one = told => html`
  <section aria-labelledby="why-title"><div class="head"><h2 id="why-title">Why</h2><p>${ended(told.ended)} ${told.why ? tag(SYMPTOMS[told.why.symptom] ?? told.why.symptom) : nothing}</p></div>
    <div class="body">${told.why ? html`<p class="why">${told.why.text}</p>${told.why.advice ? html`<p><strong>What to do:</strong> ${told.why.advice}</p>` : nothing}` : html`<p class="muted">Nothing is said of it.</p>`}</div>
    ${told.why?.evidence?.length ? evidence(told.why.evidence) : nothing}
    ${told.why?.looked?.length ? html`<details><summary>The steps that were gone through</summary><table><thead><tr><th scope="col">Step</th><th scope="col">Found</th><th scope="col" class="n">Explains</th></tr></thead>
      <tbody>${told.why.looked.map(each => html`<tr><th scope="row" class="nowrap">${each.step}. ${each.name}</th><td>${each.found}</td><td class="n">${each.seconds ? seconds(each.seconds) : "–"}</td></tr>`)}</tbody></table></details>` : nothing}</section>
  <section aria-labelledby="stages-title"><div class="head"><h2 id="stages-title">Where its time went</h2><p class="muted">total ${seconds(told.total_s)}${told.ttft_s === null ? nothing : `, TTFT ${seconds(told.ttft_s)}`}</p></div>${waterfall(told)}</section>
  <div class="columns"><section aria-labelledby="facts-title"><h2 id="facts-title">The request</h2><div class="body">${facts(told)}</div></section>
    ${told.tries?.length ? html`<section aria-labelledby="tries-title"><h2 id="tries-title">${plural(told.tries.length, "attempt")}</h2><table><thead><tr><th scope="col">Deployment</th><th scope="col" class="n">Took</th><th scope="col">Outcome</th></tr></thead>
      <tbody>${told.tries.map(each => html`<tr><th scope="row">${each.deployment}</th><td class="n">${seconds(each.took_s)}</td><td>${each.error ? html`${ended("failed")}<small class="muted">${each.error}: ${each.message}</small>` : ended("done")}</td></tr>`)}</tbody></table></section>` : nothing}</div>`;

function waterfall({ waterfall: rows }) {
  const ends = rows.flatMap(each => [each.begun_s + each.took_s, each.begun_s + (each.predicted_s ?? 0)]);
  const begin = Math.min(0, ...rows.map(each => each.begun_s)), reach = Math.max(...ends) - begin || 1;
  const all = rows.reduce((sum, each) => sum + each.took_s, 0) || 1, place = part => `${((100 * part) / reach).toFixed(2)}%`;
  if (!rows.length) return empty("It took no time that could be measured.", "");
  return wide("Stages", html`<table><thead><tr><th scope="col">Stage</th><th scope="col">Filled: took; dashed: predicted</th><th scope="col" class="n">Took</th><th scope="col" class="n">Predicted</th><th scope="col" class="n">Share</th></tr></thead>
    <tbody>${rows.map(each => html`<tr><th scope="row" class="nowrap">${each.outside ? html`${each.stage} ${tag("outside")}` : STAGES[each.stage] ?? each.stage}</th>
      <td class="plot"><svg class="fall" width="100%" height="16" aria-hidden="true">${svg`<rect class=${each.outside ? "outside" : "took"} x=${place(each.begun_s - begin)} width=${place(Math.max(each.took_s, reach / 500))} y="3" height="10"></rect>
        ${each.predicted_s ? svg`<rect class="told" x=${place(each.begun_s - begin)} width=${place(each.predicted_s)} y="1" height="14"></rect>` : nothing}`}</svg></td>
      <td class="n">${seconds(each.took_s)}</td><td class="n">${seconds(each.predicted_s)}</td><td class="n">${share(each.took_s / all)}</td></tr>`)}</tbody></table>`);
}

const evidence = all => html`<table><thead><tr><th scope="col">Evidence</th><th scope="col" class="n">Seen</th><th scope="col" class="n">Expected</th></tr></thead>
  <tbody>${all.map(each => html`<tr><th scope="row">${each.what}</th><td class="n">${amount(each.value, each.unit)}</td><td class="n">${each.expected === null || each.expected === undefined ? "–" : amount(each.expected, each.unit)}</td></tr>`)}</tbody></table>`;

const amount = (value, unit) => (typeof value === "string" ? value : unit === "s" ? seconds(value) : `${Number.isInteger(value) ? count(value) : value.toFixed(2)} ${unit}`);

function facts(told) {
  const rows = [
    ["Arrived", when(told.at)], ["Operation", `${told.operation}${told.streamed ? ", streamed" : ""}`], ["Asked for", told.model], ["Key", told.caller],
    ["Went to", [told.deployment, told.engine, told.precision].filter(Boolean).join(" · ")], ["Because", told.reason], ["Cache", told.cache],
    ["Prompt", told.prompt_tokens === null ? "" : `${plural(told.prompt_tokens, "token")}${told.cached_tokens ? `, ${count(told.cached_tokens)} of them in the engine's cache` : ""}`],
    ["Answer", told.output_tokens === null ? "" : `${plural(told.output_tokens, "token")}${told.max_output ? ` of ${count(told.max_output)} at most` : ""}${told.finish_reason ? `, ended by ${told.finish_reason}` : ""}${told.output_tokens > 1 && told.stages.decode_s > 0 ? `, ${speed((told.output_tokens - 1) / told.stages.decode_s)}` : ""}`],
    ["Error", told.error],
  ];
  return html`<dl class="facts">${rows.filter(([, value]) => value).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}
