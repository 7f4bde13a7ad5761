// Playground: one prompt to several deployments, side by side, with TTFT and speed as they run.

import { ask, events } from "../api.js";
import { feed, listen } from "../feed.js";
import { count, precision, seconds, speed } from "../format.js";
import { empty, health, html, is, nothing, render, tiles } from "../parts.js";

export const title = "Playground";

const MOST = 6;
const LONGEST = 100_000;
const DRAW_EVERY_MS = 100;

export function open(view) {
  const chosen = new Set();
  let model = "", runs = [], running = null, timer = 0, drawn = "";

  const deployments = () => (feed.state?.deployments ?? []).filter(each => each.model);
  const draw = () => render(page(), view);

  // Drawn anew only when the choice is another: a form that is typed in stays as it is.
  const update = () => {
    const now = deployments().map(each => each.id + each.state).join();
    if (now === drawn && drawn) return;
    drawn = now;
    const models = [...new Set(deployments().map(each => each.model))];
    if (!models.includes(model)) pick(models[0] ?? "");
    draw();
  };

  function pick(name) {
    model = name;
    chosen.clear();
    for (const each of deployments().filter(each => each.model === name).slice(0, MOST)) chosen.add(each.id);
  }

  async function send(event) {
    event.preventDefault();
    const form = new FormData(event.target), together = form.get("order") === "together";
    const body = {
      model, messages: [{ role: "user", content: form.get("prompt") }], max_tokens: Number(form.get("limit")),
      temperature: Number(form.get("temperature")), stream: true, stream_options: { include_usage: true },
    };
    running = new AbortController();
    runs = [...chosen].map(id => ({ id, text: "", state: "waiting", tokens: 0 }));
    timer = setInterval(draw, DRAW_EVERY_MS);
    draw();
    const { signal } = running;
    if (together) await Promise.all(runs.map(run => follow(run, body, signal)));
    else for (const run of runs) await follow(run, body, signal);
    clearInterval(timer);
    running = null;
    draw();
  }

  const page = () => html`
    <div class="head"><h1>Playground</h1><p class="muted">These requests are real, and go past the cache.</p></div>
    ${deployments().length ? html`<section aria-label="Request"><div class="body"><form class="stack" @submit=${send}>
      <div class="field"><label for="prompt">Prompt</label><textarea id="prompt" name="prompt" required maxlength=${LONGEST}>Say in two sentences what a gateway does.</textarea></div>
      <div class="line">
        <div class="field"><label for="model">Model</label><select id="model" ?disabled=${!!running} @change=${event => { pick(event.target.value); draw(); }}>
          ${[...new Set(deployments().map(each => each.model))].map(name => html`<option ?selected=${name === model}>${name}</option>`)}</select></div>
        <div class="field"><label for="limit">Most tokens</label><input id="limit" name="limit" type="number" min="1" max="8192" value="128" required></div>
        <div class="field"><label for="temperature">Temperature</label><input id="temperature" name="temperature" type="number" min="0" max="2" step="0.1" value="0" required></div>
        <fieldset><legend>Order</legend><div class="choices">
          <label><input type="radio" name="order" value="together" checked> all at once</label>
          <label><input type="radio" name="order" value="turns"> one after another</label></div></fieldset>
      </div>
      <fieldset><legend>Deployments (${MOST} at most)</legend><div class="choices">${deployments().filter(each => each.model === model).map(each => html`
        <label><input type="checkbox" .checked=${chosen.has(each.id)} ?disabled=${!!running || (chosen.size >= MOST && !chosen.has(each.id))}
          @change=${event => { if (event.target.checked) chosen.add(each.id); else chosen.delete(each.id); draw(); }}> ${each.id} <span class="muted">${precision(each)}</span> ${each.state === "up" ? nothing : health(each.state)}</label>`)}</div></fieldset>
      ${shared() ? html`<p class="hint">Some of these share hardware and slow each other when they run at once: “one after another” compares them fairly.</p>` : nothing}
      <p class="line">${running ? html`<button type="button" @click=${() => running.abort()}>Stop</button>`
        : html`<button type="submit" class="primary" ?disabled=${!chosen.size}>Send to ${chosen.size === 1 ? "one deployment" : `${chosen.size} deployments`}</button>`}</p>
    </form></div></section>
    <div class="answers" aria-live="off">${runs.map(answer)}</div>` : feed.state
    ? empty("No deployment can be asked.", html`Start an engine on its usual port: <code>paceline doctor</code> says what was looked for.`) : empty("Connecting…", feed.why)}`;

  function shared() {
    const hosts = deployments().filter(each => chosen.has(each.id)).map(each => each.hardware);
    return new Set(hosts).size < hosts.length;
  }

  const stop = listen(update);
  draw();
  update();
  return () => { stop(); running?.abort(); clearInterval(timer); };
}

/** Fill `run` as its answer comes. `tokens` counts pieces until the engine has told the true number. */
async function follow(run, body, signal) {
  if (signal.aborted) { run.state = "stopped"; return; }
  run.begun = performance.now();
  run.state = "reading the prompt";
  try {
    const response = await ask("v1/chat/completions", {
      method: "POST", body, signal, headers: { "x-paceline-deployment": run.id, "x-paceline-cache": "skip" },
    });
    const told = name => { const value = response.headers.get(`x-paceline-predicted-${name}-ms`); return value === null ? null : value / 1000; };
    Object.assign(run, { predicted: { ttft: told("ttft"), total: told("total") }, request: response.headers.get("x-request-id") });
    for await (const data of events(response)) {
      if (data === "[DONE]") continue;
      take(run, JSON.parse(data));
    }
    run.state = run.error ? "failed" : "done";
  } catch (error) {
    run.state = error.name === "AbortError" ? "stopped" : "failed";
    run.error = run.state === "failed" ? error.message : "";
  }
  run.ended = performance.now();
}

function take(run, event) {
  const now = performance.now();
  if (event.error) run.error = event.error.message;
  if (event.usage) Object.assign(run, { tokens: event.usage.completion_tokens, prompt: event.usage.prompt_tokens });
  const { delta } = event.choices?.[0] ?? {}, piece = (delta?.reasoning_content ?? "") + (delta?.content ?? "");
  if (!piece) return;
  run.first ??= now;
  run.last = now;
  run.state = "writing";
  run.tokens += 1;
  if (run.text.length < LONGEST) run.text += piece;
}

function answer(run) {
  const now = run.ended ?? performance.now();
  const ttft = run.first ? (run.first - run.begun) / 1000 : null;
  const writing = run.first ? ((run.last ?? now) - run.first) / 1000 : 0;
  const signs = { done: "good", failed: "bad", stopped: "none" };
  return html`<article aria-label=${run.id}><h2>${run.id}</h2><p class="sub" role="status">${run.state in signs ? is(signs[run.state], run.state) : run.state}</p>
    ${tiles([
      ["TTFT", seconds(ttft ?? (run.begun && !run.ended ? (now - run.begun) / 1000 : null)), run.predicted?.ttft ? `predicted ${seconds(run.predicted.ttft)}` : ttft === null && run.begun && !run.ended ? "so far" : ""],
      ["Decode", speed(run.tokens > 1 && writing > 0 ? (run.tokens - 1) / writing : null), ""],
      ["Tokens", count(run.tokens), run.prompt ? `${count(run.prompt)} in the prompt` : ""],
      ["Total", seconds(run.begun ? (now - run.begun) / 1000 : null), run.predicted?.total ? `predicted ${seconds(run.predicted.total)}` : ""],
    ])}
    ${run.error ? html`<p class="problem">${run.error}</p>` : nothing}
    <pre tabindex="0" aria-label=${`Answer of ${run.id}`}>${run.text}</pre>
    ${run.request && run.ended ? html`<p class="foot"><a href="#/requests/${encodeURIComponent(run.request)}">Where its time went</a></p>` : nothing}</article>`;
}
