// Benchmarks: the records of this machine, curves through them, and two of them compared.

import { json } from "../api.js";
import { Chart, legend } from "../chart.js";
import { bytes, change, count, date, plural, precision, seconds, speed } from "../format.js";
import { empty, html, interval, is, nothing, problem, render, tag, wide } from "../parts.js";

export const title = "Benchmarks";

const UNITS = { s: seconds, "tok/s": speed, bytes };

export function open(view) {
  const asked = new AbortController();
  let charts = [], selection = "", listed = null, sides = { a: "", b: "", allow: "" }, compared = null;

  const draw = () => {
    render(page(), view);
    for (const chart of charts) chart.destroy();
    charts = listed?.panels.map((panel, index) => curve(view.querySelector(`[data-panel="${index}"]`), panel)) ?? [];
  };

  async function load() {
    try {
      listed = await json("admin/records", { params: { select: selection }, signal: asked.signal });
    } catch (error) {
      if (error.name === "AbortError") return;
      listed = { refused: error, panels: [] };
    }
    draw();
  }

  async function compare(event) {
    event.preventDefault();
    sides = Object.fromEntries(new FormData(event.target));
    const allow = sides.allow.split(",").map(name => name.trim());
    try {
      compared = await json("admin/compare", { params: { a: sides.a, b: sides.b, allow }, signal: asked.signal });
    } catch (error) {
      if (error.name === "AbortError") return;
      compared = { refused: error };
    }
    draw();
    view.querySelector("[data-part=compared]").focus();
  }

  const page = () => html`
    <div class="head"><h1>Benchmarks</h1><p class="muted">Measured on this machine; <code>paceline bench</code> adds to it.</p></div>
    <section aria-labelledby="records-title">
      <div class="head"><h2 id="records-title">Which records</h2>
        <form class="line grow" @submit=${event => { event.preventDefault(); selection = new FormData(event.target).get("select"); load(); }}>
          <div class="field grow"><label for="select">Selection, such as <code>engine=llamacpp,precision=int8|int4</code></label>
            <input id="select" name="select" type="search" .value=${selection} autocomplete="off" spellcheck="false"></div>
          <button type="submit">Show</button></form></div>
      ${status(listed)}
    </section>
    ${listed?.panels.length ? html`<div class="columns">${listed.panels.map(panel)}</div>` : nothing}
    ${listed?.known ? html`<section aria-labelledby="compare-title"><h2 id="compare-title">Compare two</h2>
      <div class="body"><form class="line" @submit=${compare}>
        ${side("a", "A: deployment or selection", sides.a)}${side("b", "B: another, that differs in one variable", sides.b)}
        <div class="field"><label for="allow">May differ as well</label>
          <input id="allow" name="allow" .value=${sides.allow} autocomplete="off" placeholder="hardware, version"></div>
        <button type="submit" class="primary">Compare</button>
      </form>
      <datalist id="known">${[...new Set(listed.records?.map(each => each.deployment))].map(id => html`<option value=${id}></option>`)}</datalist></div>
      <div data-part="compared" tabindex="-1">${comparison(compared)}</div></section>${records(listed)}` : nothing}`;

  render(html`<div class="head"><h1>Benchmarks</h1></div>${empty("Reading the records…", "")}`, view);
  load();
  return () => { asked.abort(); for (const chart of charts) chart.destroy(); };
}

const side = (name, label, value) => html`<div class="field grow"><label for=${name}>${label}</label>
  <input id=${name} name=${name} list="known" .value=${value} autocomplete="off" spellcheck="false" required></div>`;

function status(listed) {
  if (listed.refused) return problem(listed.refused);
  if (!listed.known)
    return empty("Nothing has been measured yet.", html`<code>paceline bench --quick</code> takes ten seconds for each deployment.`);
  const shown = listed.records.length;
  return html`<p class="body hint">${shown < listed.found ? `The newest ${shown} of ${plural(listed.found, "record")}; narrow the selection to see others.` : `${plural(shown, "record")}${listed.found < listed.known ? ` of ${count(listed.known)}` : ""}.`}</p>`;
}

const records = listed => (listed.refused ? nothing : html`<section aria-labelledby="list-title"><h2 id="list-title">Records</h2>
  <div class="scroll tall" tabindex="0" role="region" aria-label="Table of records"><table><thead><tr>
      <th scope="col">Record</th><th scope="col">Deployment</th><th scope="col">Precision</th>
      <th scope="col" class="n">Prompt</th><th scope="col" class="n">Limit</th><th scope="col" class="n">At once</th>
      <th scope="col" class="n">TTFT, median</th><th scope="col" class="n">Decode</th>
      <th scope="col" class="n">Memory, peak</th><th scope="col">Output normal</th><th scope="col">Notes</th></tr></thead>
    <tbody>${listed.records.map(record)}</tbody></table></div></section>`);

const record = each => html`<tr>
  <th scope="row" class="nowrap"><span class="mono">${each.id}</span><small class="muted">${date(each.at)} · ${each.kind}</small></th>
  <td class="nowrap">${each.deployment}<small class="muted">${each.model}</small></td><td class="nowrap">${precision(each)}<small class="muted">${each.engine} ${each.engine_version}</small></td>
  <td class="n">${count(each.prompt_tokens)}</td><td class="n">${count(each.output_tokens)}</td><td class="n">${count(each.concurrency)}</td>
  <td class="n">${seconds(each.ttft_s)}${each.failed ? nothing : html`<small class="muted">max ${seconds(each.ttft_max_s)}</small>`}</td><td class="n">${speed(each.decode_per_s)}</td>
  <td class="n">${bytes(each.peak_memory_bytes)}</td>
  <td>${each.failed ? is("bad", "failed") : is(each.output === "yes" ? "good" : "warn", each.output === "yes" ? "yes" : "no")}
    ${each.output === "yes" ? nothing : html`<small class="muted wide">${each.output}</small>`}</td>
  <td>${each.marks.map(tag)}</td></tr>`;

// Curves

const panel = (each, index) => html`<section aria-labelledby=${`panel-${index}`}>
  <div class="head"><h2 id=${`panel-${index}`}>${each.title}</h2><p class="muted">${each.note}</p></div>
  <div class="chart">${legend(each.lines.map(line => line.label))}
    <div class="plot" data-panel=${index} role="img" aria-label=${`${each.title}: ${each.y} over ${each.x}; the numbers are in the table below`}></div>
    <p class="hint">Across: ${each.x}. Up: ${each.y}. Whiskers: lowest and highest run.</p>
    <details><summary>The same as a table</summary>${wide(`Numbers of ${each.title}`, html`<table><thead><tr><th scope="col">Deployment</th>
      <th scope="col" class="n">${each.x}</th><th scope="col" class="n">median</th><th scope="col" class="n">lowest</th><th scope="col" class="n">highest</th></tr></thead>
      <tbody>${each.lines.flatMap(line => line.points.map(point => html`<tr><th scope="row">${line.label}</th><td class="n">${count(point.x)}</td>
        ${[point.middle, point.low, point.high].map(value => html`<td class="n">${unit(each)(value)}</td>`)}</tr>`))}</tbody></table>`)}</details></div></section>`;

const unit = each => (each.y.includes("(s)") ? seconds : speed);

function curve(container, each) {
  const xs = [...new Set(each.lines.flatMap(line => line.points.map(point => point.x)))].sort((one, other) => one - other);
  const at = line => new Map(line.points.map(point => [point.x, point]));
  const chart = new Chart(container, {
    x: { log: true, ticks: each.ticks }, y: { format: each.y.includes("(s)") ? seconds : value => String(value), log: each.y_is_log },
    labels: each.lines.map(line => line.label),
  });
  chart.set(
    [xs, ...each.lines.map(line => xs.map(x => at(line).get(x)?.middle ?? null))],
    each.lines.map(line => xs.map(x => { const point = at(line).get(x); return point ? [point.low, point.high] : null; })),
  );
  return chart;
}

// A comparison

function comparison(made) {
  if (!made) return nothing;
  if (made.refused) {
    const { differs = [] } = made.refused;
    return html`${problem(made.refused)}${differs.length ? html`<table><thead><tr><th scope="col">Differs</th><th scope="col">A</th><th scope="col">B</th></tr></thead>
      <tbody>${differs.map(each => html`<tr><th scope="row">${each.name}</th><td>${each.before || "none"}</td><td>${each.after || "none"}</td></tr>`)}</tbody></table>` : nothing}`;
  }
  return html`<p class="body">Differs: ${made.differs.map(each => html`<strong>${each.name}</strong> ${each.before || "none"} → ${each.after || "none"} `)}
      ${made.allowed.length ? html`<br><span class="muted">Also, with your leave: ${made.allowed.map(each => `${each.name} ${each.before || "none"} → ${each.after || "none"}`).join("; ")}</span>` : nothing}</p>
    ${findings(made.overall, `Over ${plural(made.cells.length, "cell")}`)}
    <details><summary>Cell by cell</summary>${made.cells.map(cell => findings(cell.metrics, `prompt ${cell.before.prompt}, limit ${cell.before.limit}, ${cell.before.concurrency} at once`))}</details>
    ${[...made.notes, ...made.left_out].length ? html`<div class="body">${[...made.notes, ...made.left_out].filter(Boolean).map(note => html`<p class="note">${note}</p>`)}</div>` : nothing}`;
}

function findings(all, caption) {
  const reach = Math.max(0.1, ...all.flatMap(each => (each.interval ?? [each.change]).map(Math.abs)));
  return wide(caption, html`<table><caption class="hint">${caption}; intervals of 95 % confidence</caption><thead><tr><th scope="col">Metric</th>
    <th scope="col" class="n">A</th><th scope="col" class="n">B</th><th scope="col" class="n">Change</th><th scope="col">Interval</th><th scope="col">What it shows</th></tr></thead>
    <tbody>${all.map(each => html`<tr><th scope="row">${each.metric}</th>
      <td class="n">${told(each, each.before)}</td><td class="n">${told(each, each.after)}</td><td class="n">${change(each.change)}</td>
      <td>${each.interval ? html`${interval(each.interval[0], each.change, each.interval[1], { least: -reach, most: reach, zero: 0, label: `${change(each.interval[0])} to ${change(each.interval[1])}` })}
        <small class="muted">${change(each.interval[0])} … ${change(each.interval[1])}</small>` : "–"}</td>
      <td class="wide">${each.verdict}</td></tr>`)}</tbody></table>`);
}

const told = (each, value) => UNITS[each.unit](value);
