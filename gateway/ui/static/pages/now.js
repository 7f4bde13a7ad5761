// Now: what goes through, who does it, and why it went there.

import { Chart, legend } from "../chart.js";
import { feed, listen } from "../feed.js";
import { clock, count, median, plural, precision, rate, seconds, share, speed } from "../format.js";
import { bar, empty, ended, health, html, nothing, render, spark, tag } from "../parts.js";

export const title = "Now";

const WINDOW_S = 300;
const RATE_S = 10;
const STEP_S = 5;
const SHOWN = 12;
const SPARK = 40;

export function open(view) {
  render(frame(), view);
  const find = name => view.querySelector(`[data-part=${name}]`);
  const parts = Object.fromEntries(["about", "flow", "deployments", "decisions"].map(name => [name, find(name)]));
  const inside = new Chart(find("inside"), { x: { time: true }, y: { format: value => (Number.isInteger(value) ? String(value) : "") }, labels: ["running", "waiting"] });
  const written = new Chart(find("written"), { x: { time: true }, y: { format: value => `${Math.round(value)}` }, labels: ["output tokens/s"] });
  const update = () => {
    if (!feed.state) {
      render(feed.status === "lost" ? empty("No connection", feed.why) : empty("Connecting…", ""), parts.flow);
      return;
    }
    const recent = feed.requests.filter(each => each.at > feed.state.at - WINDOW_S);
    render(about(feed.state), parts.about);
    render(flow(feed.state, recent), parts.flow);
    render(deployments(feed.state, recent), parts.deployments);
    render(decisions(feed.requests), parts.decisions);
    inside.set([feed.history.at, feed.history.running, feed.history.waiting]);
    written.set(output(recent, feed.state.at));
  };
  const stop = listen(update);
  update();
  return () => { stop(); inside.destroy(); written.destroy(); };
}

const frame = () => html`
  <div class="head"><h1>Now</h1><p class="muted" data-part="about"></p></div>
  <section aria-labelledby="flow-title"><h2 id="flow-title">Flow</h2><div data-part="flow"></div></section>
  <section aria-labelledby="deployments-title"><h2 id="deployments-title">Deployments</h2><div data-part="deployments"></div></section>
  <div class="columns">
    <section aria-labelledby="inside-title"><div class="head"><h2 id="inside-title">Requests in the gateway</h2></div>
      <div class="chart">${legend(["running", "waiting for a place"])}
        <div class="plot" data-part="inside" role="img" aria-label="Requests running and waiting over the last minutes; the figures are under Flow"></div></div></section>
    <section aria-labelledby="written-title"><div class="head"><h2 id="written-title">Output, tokens per second</h2></div>
      <div class="chart">${legend(["all deployments, answers that have ended"])}
        <div class="plot" data-part="written" role="img" aria-label="Output tokens per second over the last minutes; the figures are under Deployments"></div></div></section>
  </div>
  <section aria-labelledby="decisions-title"><h2 id="decisions-title">Last decisions</h2><div data-part="decisions"></div></section>`;

function about({ version, deployments: all }) {
  const serving = all.filter(each => each.state === "up" || each.state === "unmeasured").length;
  return `Paceline ${version} · ${count(serving)} of ${plural(all.length, "deployment")} can serve`;
}

function flow(state, recent) {
  const lately = recent.filter(each => each.at > state.at - RATE_S);
  const kept = recent.filter(each => each.cache === "hit" || each.cache === "coalesced");
  const failed = recent.filter(each => each.ended === "failed" || each.ended === "refused");
  const step = (label, value, note) => html`<li><span class="label">${label}</span><span class="value">${value}</span>
    <small class="muted">${note}</small></li>`;
  return html`<ol class="flow">
    ${step("Waiting for a place", count(state.waiting), `of ${count(state.queue)} that may wait`)}
    ${step("Running", count(state.running), `of ${count(state.places)} places`)}
    ${step("Ended", rate(lately.length / RATE_S), `${count(state.finished)} since the start`)}
    ${step("From the cache", state.cache ? share(recent.length ? kept.length / recent.length : null) : "off", state.cache ? "of the last 5 minutes' requests" : "cache.mode is off")}
    ${step("Failed or refused", count(failed.length), `of ${plural(recent.length, "request")} in 5 minutes`)}
  </ol>${state.measuring?.now ? html`<p class="empty">Measuring now: ${state.measuring.now}</p>` : nothing}`;
}

function deployments(state, recent) {
  if (!state.deployments.length)
    return empty("No engine is known.", html`Start one on its usual port, or add it to <code>paceline.yaml</code>: <code>paceline doctor</code> says what was looked for.`);
  return html`<div class="scroll"><table class="cards"><thead><tr>
    <th scope="col">Deployment</th><th scope="col">State</th><th scope="col">In flight</th>
    <th scope="col">TTFT, median</th><th scope="col">Decode, median</th><th scope="col" class="n">Requests, 5 min</th>
  </tr></thead><tbody>${state.deployments.map(each => row(each, recent.filter(request => request.deployment === each.id && request.attempts)))}</tbody></table></div>`;
}

function row(each, requests) {
  const ttfts = requests.map(request => request.ttft_s).filter(value => value !== undefined);
  const speeds = requests.map(request => request.decode_per_s).filter(value => value !== undefined);
  const inflight = each.inflight ?? 0, foreign = each.foreign ?? 0, taken = inflight + foreign;
  const told = `${plural(inflight, "request")} of ours${foreign ? `, ${count(foreign)} of others` : ""}${each.slots ? `, ${plural(each.slots, "slot")}` : ""}`;
  return html`<tr>
    <th scope="row">${each.id}<small class="muted">${each.model ? html`${each.model} · ${each.engine_label} · ${precision(each)}` : "not yet known what it serves"}</small></th>
    <td data-label="State">${health(each.state)}${each.note ? html`<small class="muted">${each.note}</small>` : nothing}</td>
    <td data-label="In flight">${bar(taken, each.slots ?? Math.max(4, taken), told)}<small class="muted">${told}</small></td>
    <td data-label="TTFT">${figure(seconds(median(ttfts)), ttfts, "time to first token", idle(each, "ttft_s", seconds))}</td>
    <td data-label="Decode">${figure(speed(median(speeds)), speeds, "decode speed", idle(each, "decode_tokens_per_s", speed))}</td>
    <td data-label="Requests, 5 min" class="n">${count(requests.length)}</td></tr>`;
}

const figure = (text, values, name, otherwise) => (values.length
  ? html`${text}${spark(values.slice(-SPARK), `${name} of the last ${Math.min(values.length, SPARK)} requests`)}`
  : html`<span class="muted">${otherwise}</span>`);

/** What was measured, where there is no traffic to speak of. */
function idle(each, name, format) {
  const measured = each.measured?.[name];
  if (measured === null || measured === undefined) return "–";
  if (typeof measured === "number") return `measured ${format(measured)}`;
  const [length, value] = Object.entries(measured)[0];
  return `measured ${format(value)} at ${length} tokens`;
}

function decisions(requests) {
  if (!requests.length)
    return empty("No request yet.", html`Send one to <code>${new URL("../v1", document.baseURI).href.replace(/#.*/, "")}</code>, or try the <a href="#/playground">playground</a>.`);
  return html`<div class="scroll"><table class="cards"><thead><tr><th scope="col">Ended</th><th scope="col">Asked for</th><th scope="col">Went to</th>
    <th scope="col">Why</th><th scope="col" class="n">TTFT</th><th scope="col" class="n">Total</th><th scope="col" class="n">Output</th></tr></thead>
    <tbody>${requests.slice(-SHOWN).reverse().map(decision)}</tbody></table></div>`;
}

const decision = each => html`<tr>
  <th scope="row" class="nowrap"><a href="#/requests/${encodeURIComponent(each.id)}">${clock(each.at)}</a></th>
  <td class="two" data-label="Asked for">${each.model}</td>
  <td data-label="Went to">${each.deployment || "nobody"} ${told(each)}</td>
  <td class="wide whole">${each.error || each.reason || "–"}</td>
  <td class="n" data-label="TTFT">${beside(each.ttft_s, each.predicted_ttft_s)}</td>
  <td class="n" data-label="Total">${beside(each.total_s, each.predicted_total_s)}</td>
  <td class="n" data-label="Output">${each.output_tokens ? html`${plural(each.output_tokens, "token")}<small class="muted">${speed(each.decode_per_s)}</small>` : "–"}</td></tr>`;

const told = each => html`${each.ended === "done" ? nothing : ended(each.ended)}
  ${each.cache === "hit" || each.cache === "coalesced" ? tag(each.cache === "hit" ? "from the cache" : "shared with an equal request") : nothing}
  ${each.attempts > 1 ? tag(`${each.attempts} attempts`) : nothing}`;

const beside = (value, predicted) => html`${seconds(value)}${predicted === undefined ? nothing : html`<small class="muted">predicted ${seconds(predicted)}</small>`}`;

/** Tokens per second in steps, each answer's tokens spread over the time in which they were written. */
function output(recent, now) {
  const steps = WINDOW_S / STEP_S, sums = new Array(steps).fill(0), begin = now - WINDOW_S;
  for (const each of recent) {
    if (!each.output_tokens || !each.attempts) continue;
    const from = each.at - Math.max(each.total_s - (each.ttft_s ?? 0), 0.001), written = each.output_tokens / (each.at - from);
    for (let step = Math.max(0, Math.floor((from - begin) / STEP_S)); step < steps; step += 1) {
      const start = begin + step * STEP_S, during = Math.min(each.at, start + STEP_S) - Math.max(from, start);
      if (during <= 0) break;
      sums[step] += (written * during) / STEP_S;
    }
  }
  return [sums.map((_, step) => begin + (step + 0.5) * STEP_S), sums];
}
