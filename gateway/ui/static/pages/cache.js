// Cache: what it saved and holds, what is in an entry, and how it is emptied.

import { json } from "../api.js";
import { feed, ready } from "../feed.js";
import { bytes, count, plural, seconds, share } from "../format.js";
import { empty, html, is, nothing, problem, render, tiles } from "../parts.js";

export const title = "Cache";

const EVERY_MS = 5000;

export function open(view) {
  const asked = new AbortController();
  let report = null, failed = null, entries = null, cleared = null, sure = false, isOff = false, timer = 0;

  const draw = () => render(html`<div class="head"><h1>Cache</h1><p class="muted">Since this Paceline was started.</p></div>${page()}`, view);

  async function load() {
    await ready();
    if (asked.signal.aborted) return;
    isOff = feed.state?.cache === null;
    if (isOff) { draw(); return; }
    try {
      [report, failed] = [await json("admin/cache", { params: { count: "1" }, signal: asked.signal }), null];
    } catch (error) {
      if (error.name === "AbortError") return;
      failed = error;
    }
    draw();
    timer = setTimeout(load, EVERY_MS);
  }

  async function look(event) {
    event.preventDefault();
    const prefix = new FormData(event.target).get("entry").trim().toLowerCase();
    try {
      entries = await json(`admin/cache/entries/${encodeURIComponent(prefix)}`, { signal: asked.signal });
    } catch (error) {
      entries = { refused: error };
    }
    draw();
  }

  async function clear(event) {
    event.preventDefault();
    if (!sure) { sure = true; cleared = null; draw(); return; }
    const model = new FormData(event.target).get("model");
    try {
      cleared = await json("admin/cache/clear", { method: "POST", body: model ? { model } : {}, signal: asked.signal });
    } catch (error) {
      cleared = { refused: error };
    }
    sure = false;
    clearTimeout(timer);
    load();
  }

  function page() {
    if (isOff)
      return empty("The cache is off.", html`Leave <code>cache.mode</code> out of the configuration, or set it to <code>auto</code>, to have repeated prompts answered from memory.`);
    if (failed) return problem(failed);
    if (!report) return empty("Reading…", "");
    return html`${summary(report)}${models(report)}<div class="columns">
      <section aria-labelledby="entry-title"><h2 id="entry-title">Look at an entry</h2><div class="body">
        <form class="line" @submit=${look}><div class="field grow"><label for="entry">Beginning of its key, as <code>x-paceline-cache-key</code> has it</label>
          <input id="entry" name="entry" type="search" class="mono" pattern="[0-9a-fA-F]{4,64}" required autocomplete="off" spellcheck="false" title="4 to 64 hexadecimal digits"></div>
          <button type="submit">Look</button></form></div>${found(entries)}</section>
      <section aria-labelledby="clear-title"><h2 id="clear-title">Empty it</h2><div class="body">
        <form class="line" @submit=${clear}><div class="field grow"><label for="model">Entries of</label>
          <select id="model" name="model" @change=${() => { sure = false; draw(); }}><option value="">all models</option>${Object.keys(report.models).map(name => html`<option>${name}</option>`)}</select></div>
          <button type="submit">${sure ? "Yes, delete them" : "Delete…"}</button>
          ${sure ? html`<button type="button" class="quiet" @click=${() => { sure = false; draw(); }}>Keep them</button>` : nothing}</form>
        <p role="status">${sure ? "These answers will have to be computed again." : cleared ? (cleared.refused ? cleared.refused.message : `${plural(cleared.deleted, "entry", "entries")} deleted.`) : ""}</p></div></section></div>`;
  }

  draw();
  load();
  return () => { asked.abort(); clearTimeout(timer); };
}

const rateOf = each => { const all = each.hits + each.coalesced + each.misses; return all ? (each.hits + each.coalesced) / all : null; };

function summary({ total, memory, in_flight: flights, store }) {
  return html`<section aria-label="Summary">${tiles([
    ["Answered without an engine", share(rateOf(total)), `${count(total.hits)} kept, ${count(total.coalesced)} shared, ${count(total.misses)} asked`],
    ["Engine time saved", seconds(total.saved_s), ""],
    ["Tokens saved", count(total.saved_prompt_tokens + total.saved_output_tokens), `${count(total.saved_prompt_tokens)} read, ${count(total.saved_output_tokens)} written`],
    ["In memory", plural(memory.entries, "entry", "entries"), bytes(memory.bytes)],
    ["In flight", count(flights), "calls that others may join"],
    ["Shared store", store ? is(store.read === "works" && store.written === "works" ? "good" : "bad", store.read === "works" && store.written === "works" ? "works" : "fails") : is("none", "none"),
      store ? [store.address, store.read === "works" ? "" : `reads: ${store.read}`, store.written === "works" ? "" : `writes: ${store.written}`, store.writes_dropped ? `${count(store.writes_dropped)} writes dropped` : ""].filter(Boolean).join("; ") : "this process's memory alone"],
  ])}</section>`;
}

function models({ models: all, store }) {
  const names = Object.keys(all);
  return html`<section aria-labelledby="models-title"><h2 id="models-title">By model</h2>${names.length ? html`<div class="scroll"><table class="cards"><thead><tr>
      <th scope="col">Model</th><th scope="col" class="n">Without an engine</th><th scope="col" class="n">Hits</th><th scope="col" class="n">Shared</th><th scope="col" class="n">Misses</th>
      <th scope="col" class="n">Bypassed</th><th scope="col" class="n">Stored</th><th scope="col" class="n">Time saved</th><th scope="col" class="n">In the store</th></tr></thead>
    <tbody>${names.map(name => { const each = all[name], held = store?.models?.[name]; return html`<tr><th scope="row">${name}</th>
      <td class="n" data-label="Without an engine">${share(rateOf(each))}</td><td class="n" data-label="Hits">${count(each.hits)}</td><td class="n" data-label="Shared">${count(each.coalesced)}</td>
      <td class="n" data-label="Misses">${count(each.misses)}</td><td class="n" data-label="Bypassed">${count(each.bypassed)}</td><td class="n" data-label="Stored">${count(each.stored)}</td>
      <td class="n" data-label="Time saved">${seconds(each.saved_s)}</td><td class="n" data-label="In the store">${held ? `${count(held.entries)}, ${bytes(held.bytes)}` : "–"}</td></tr>`; })}</tbody></table></div>`
    : empty("No cacheable request yet.", html`Greedy requests and those with a seed are kept; <a href="#/playground">send one twice</a> to see it.`)}</section>`;
}

function found(entries) {
  if (!entries) return nothing;
  if (entries.refused) return problem(entries.refused);
  if (!entries.entries.length) return empty("There is no such entry.", "It may have expired, or the answer was not kept.");
  return entries.entries.map(each => html`<details open><summary class="mono">${each.key.slice(0, 24)}…</summary>
    ${each.unreadable ? html`<p>Unreadable: ${each.unreadable}</p>` : html`<dl class="facts">
      <dt>Model</dt><dd>${each.model}</dd><dt>Made by</dt><dd>${each.deployment}, ${each.precision}, in ${seconds(each.took_s)}</dd>
      <dt>Age</dt><dd>${seconds(each.age_s)}; gone in ${seconds(each.expires_in_s)}</dd>
      <dt>Tokens</dt><dd>${count(each.prompt_tokens)} read, ${count(each.output_tokens)} written, ended by ${each.finish_reason}</dd>
      <dt>Size</dt><dd>${bytes(each.bytes)}${each.streamed ? `, ${plural(each.pieces, "piece")} of a stream` : ""}</dd></dl>
      <pre tabindex="0" aria-label="Kept answer">${each.body}</pre>`}</details>`);
}
