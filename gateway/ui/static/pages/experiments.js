// Experiments: begun, ramped and stopped here; what may be said of their arms by now, and what stopped them.

import { json } from "../api.js";
import { report } from "../experiment.js";
import { feed, ready } from "../feed.js";
import { precision, share } from "../format.js";
import { empty, html, nothing, problem, render } from "../parts.js";

export const title = "Experiments";

const EVERY_MS = 5000;
const RAMPS = { "0.05,0.25,0.5": "5 %, then 25 and 50 %", "0.5": "50 % at once", "0.1": "10 %" };
const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;

export function open(view) {
  const asked = new AbortController();
  const said = new Map();
  let reports = null, failed = null, model = "", sure = "", busy = false, timer = 0;

  const deployments = () => (feed.state?.deployments ?? []).filter(each => each.model);
  const draw = () => render(html`<div class="head"><h1>Experiments</h1><p class="muted">Intervals hold at any time they are looked at.</p></div>${page()}`, view);

  async function load() {
    clearTimeout(timer);
    await ready();
    if (asked.signal.aborted) return;
    try {
      const { experiments } = await json("admin/experiments", { signal: asked.signal });
      reports = await Promise.all(experiments.map(each => json(`admin/experiments/${encodeURIComponent(each.name)}`, { signal: asked.signal })));
      failed = null;
    } catch (error) {
      if (error.name === "AbortError") return;
      failed = error;
    }
    draw();
    timer = setTimeout(load, EVERY_MS);
  }

  // A change goes out as JSON with the key as a header, never a cookie; without keys the gateway looks at its Origin.
  async function change(name, path, options, done) {
    [busy, sure] = [true, ""];
    said.set(name, "");
    draw();
    try {
      const told = await json(path, { ...options, signal: asked.signal });
      said.set(name, done(told));
    } catch (error) {
      if (error.name === "AbortError") return;
      said.set(name, error);
    }
    busy = false;
    await load();
  }

  const pathOf = each => `admin/experiments/${encodeURIComponent(each.name)}`;

  function begin(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    const arms = ["first", "second"].map(place => ({ name: NAME.test(form.get(place)) ? form.get(place) : place, deployments: [form.get(place)] }));
    const body = {
      name: form.get("name").trim(), model: form.get("model"), arms, shadow: form.get("kind") === "shadow",
      ramp: form.get("ramp").split(",").map(Number), sticky: form.get("sticky"),
    };
    change("", "admin/experiments", { method: "POST", body }, told => `${told.name} has begun at ${share(told.share)}.`);
  }

  const next = each => change(each.name, pathOf(each), { method: "PATCH", body: {} }, told => `${share(told.share)} go to the new arm now.`);

  function set(event, each) {
    event.preventDefault();
    const wanted = Number(new FormData(event.target).get("share")) / 100;
    change(each.name, pathOf(each), { method: "PATCH", body: { share: wanted } }, told => `${share(told.share)} go to the new arm now.`);
  }

  function stop(each) {
    if (sure !== each.name) { sure = each.name; said.delete(each.name); draw(); return; }
    change(each.name, pathOf(each), { method: "DELETE" }, () => "Stopped. Requests go where they would without it; this report stays.");
  }

  function page() {
    if (failed && !reports) return problem(failed);
    if (!reports) return empty("Reading…", "");
    return html`${failed ? problem(failed) : nothing}${reports.length ? reports.map((each, index) => report(each, index, controls(each))) : nothingThere}${form()}`;
  }

  const controls = each => html`<div class="body">${each.runs ? html`<div class="line" role="group" aria-label=${`Change ${each.name}`}>
      ${each.next_share ? html`<button type="button" ?disabled=${busy} @click=${() => next(each)}>Take the next step: ${share(each.next_share)}</button>` : nothing}
      ${sure === each.name ? html`<button type="button" class="primary" ?disabled=${busy} @click=${() => stop(each)}>Yes, stop it</button>
        <button type="button" class="quiet" @click=${() => { sure = ""; draw(); }}>Let it run</button>`
      : html`<button type="button" ?disabled=${busy} @click=${() => stop(each)}>Stop…</button>`}
      <form class="line" @submit=${event => set(event, each)}><div class="field"><label for=${`share-${each.name}`}>Share of the new arm, %</label>
        <input id=${`share-${each.name}`} name="share" type="number" min="0.1" max="100" step="0.1" required .defaultValue=${String(each.share * 100)}></div>
        <button type="submit" ?disabled=${busy}>Set</button></form></div>` : nothing}${outcome(each.name)}</div>`;

  function outcome(name) {
    const told = said.get(name);
    return told instanceof Error ? problem(told) : html`<p role="status">${sure && sure === name ? "Its requests will go where they would without it." : told ?? ""}</p>`;
  }

  function form() {
    const models = [...new Set(deployments().map(each => each.model))];
    if (!models.includes(model)) model = models[0] ?? "";
    const choices = deployments().filter(each => each.model === model);
    const arm = (place, label, chosen) => html`<div class="field grow"><label for=${place}>${label}</label><select id=${place} name=${place} required>
      ${choices.map((each, index) => html`<option value=${each.id} ?selected=${index === chosen}>${each.id}, ${precision(each)}</option>`)}</select></div>`;
    return html`<section aria-labelledby="begin-title"><h2 id="begin-title">Begin one</h2>${choices.length > 1 || models.length > 1 ? html`<div class="body"><form class="stack" @submit=${begin}>
      <div class="line">
        <div class="field grow"><label for="name">Name</label><input id="name" name="name" required maxlength="64" pattern="[A-Za-z0-9][A-Za-z0-9._\\-]*" autocomplete="off" spellcheck="false" title="Letters, digits, dots and dashes"></div>
        <div class="field grow"><label for="model">Model</label><select id="model" name="model" @change=${event => { model = event.target.value; draw(); }}>
          ${models.map(each => html`<option ?selected=${each === model}>${each}</option>`)}</select></div>
        ${arm("first", "First arm, compared with", 0)}${arm("second", "New arm", 1)}</div>
      <div class="line">
        <div class="field"><label for="ramp">Share of the new arm</label><select id="ramp" name="ramp">${Object.entries(RAMPS).map(([value, label]) => html`<option value=${value}>${label}</option>`)}</select></div>
        <div class="field"><label for="sticky">Kept to one arm</label><select id="sticky" name="sticky"><option value="request">nothing</option><option value="key">a key</option><option value="user">a user</option></select></div>
        <div class="field"><label for="kind">The new arm gets</label><select id="kind" name="kind"><option value="split">requests</option><option value="shadow">copies, whose answers nobody sees</option></select></div>
        <button type="submit" class="primary" ?disabled=${busy}>Begin</button></div></form>${outcome("")}</div>`
      : empty("There is nothing to compare.", "It takes two deployments of one model.")}</section>`;
  }

  draw();
  load();
  return () => { asked.abort(); clearTimeout(timer); };
}

const nothingThere = empty("No experiment has been started.", html`Begin one below, with <code>paceline experiment</code>, or in the configuration's <code>experiments</code>.`);
