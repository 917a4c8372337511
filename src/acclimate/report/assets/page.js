// The page's table, filters and charts. All text goes through textContent or plain(): names are never markup.
"use strict";
(async () => {
  const ONLINE = "0", LAST = "-1", COLLAPSED = 50, ORACLE = "oracle";
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);

  // ---- what lies in the page -------------------------------------------------------------------------

  async function unpack() {
    const packed = Uint8Array.from(atob(byId("data").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  if (typeof DecompressionStream === "undefined") {
    root.classList.remove("script"); // an old browser shows the tables that are there
    return;
  }
  const D = await unpack();

  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const spread = (values) => {
    if (values.length < 2) return null;
    const middle = mean(values);
    return Math.sqrt(values.reduce((sum, v) => sum + (v - middle) ** 2, 0) / (values.length - 1));
  };
  const unique = (values) => [...new Set(values)];
  /** As Python writes it: what lies just between two figures goes to the even one. */
  function fixed(number, digits = 2) {
    const scaled = Math.abs(number) * 10 ** digits, low = Math.floor(scaled);
    const tie = scaled - low === 0.5 ? (Math.sign(number) * (low + (low % 2))) / 10 ** digits : number;
    return tie.toFixed(digits).replace("-", "−");
  }

  const index = new Map();
  for (const s of D.series) index.set([s.n, s.d, s.v, s.c, s.r].join(), s);
  const find = (n, d, v, c, r) => index.get([n, d, v, c, r].join());

  /** Accuracies by seed in one pass; what learns nothing has one pass, which stands for all. */
  function bySeed(series, pass) {
    const values = series.a[pass] || (Object.keys(series.a).length === 1 ? series.a[LAST] : undefined);
    return values && new Map(series.s.map((seed, i) => [seed, values[i]]));
  }

  /** The mean over series, only if all are there; its spread is that of the seeds which all of them have. */
  function figure(many, pass) {
    const each = many.map((series) => series && bySeed(series, pass));
    if (!each.length || each.some((own) => !own)) return null;
    const seeds = [...each[0].keys()].filter((seed) => each.every((own) => own.has(seed)));
    const means = seeds.map((seed) => mean(each.map((own) => own.get(seed))));
    return { value: mean(each.map((own) => mean([...own.values()]))), spread: spread(means), seeds, means };
  }

  // ---- small parts of the page -----------------------------------------------------------------------

  function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (value !== null && value !== false) element.setAttribute(key, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  function select(title, options, value, change) {
    const list = make("select", { onchange: (event) => change(event.target.value) });
    for (const [key, text] of options) list.append(make("option", { value: key, selected: key === value }, cut(text, 60)));
    return make("label", {}, title, list);
  }

  function toggle(title, options, value, change) {
    const buttons = options.map(([key, text]) =>
      make("button", { type: "button", "aria-pressed": String(key === value), onclick: () => change(key) }, text));
    return make("div", { class: "field" }, title, make("span", { class: "switch" }, ...buttons));
  }

  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  /** Plotly reads a few tags in its texts: names are to be shown as they are. */
  const plain = (text, most = 40) => cut(text, most).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // ---- what is chosen --------------------------------------------------------------------------------

  const corrupted = D.series.filter((s) => s.c >= 0);
  const pool = corrupted.length ? corrupted : D.series;
  const state = { metric: "accuracy", pass: LAST, variants: false, sort: null, direction: 1 };

  function choose(change) {
    Object.assign(state, change);
    const own = pool.filter((s) => s.n === state.n);
    if (!own.some((s) => s.d === state.d)) state.d = state.d === -1 && clean(state.n).length ? -1 : own.length ? own[0].d : -1;
    const here = own.filter((s) => s.d === state.d);
    const severities = unique(here.map((s) => s.v)).sort();
    if (!severities.includes(state.v) && !(state.v === "all" && severities.length > 1)) state.v = severities.at(-1);
    const there = unique(here.map((s) => s.c)).sort((a, b) => a - b);
    if (!state.c || !state.c.some((c) => there.includes(c))) state.c = usual(there);
    state.there = there;
    state.severities = severities;
    draw();
  }
  const clean = (n) => D.series.filter((s) => s.n === n && s.c < 0);
  const validation = (c) => c >= 0 && D.corruptions[c].validation;
  /** Test corruptions, where there are any: hyperparameters are chosen on the others. */
  const usual = (there) => {
    const test = there.filter((c) => !validation(c));
    return test.length ? test : there;
  };
  const chosen = () => state.there.filter((c) => state.c.includes(c));
  const levels = () => (state.v === "all" ? state.severities : [state.v]);
  const isError = () => state.metric === "error";
  const shownValue = (value) => (isError() ? 100 - value : value);

  function passes() {
    const epochs = unique(D.series.filter((s) => s.n === state.n).flatMap((s) => Object.keys(s.a)));
    const after = epochs.filter((e) => Number(e) > 0).sort((a, b) => a - b).map((e) => [e, `after epoch ${e}`]);
    return [...(epochs.includes(ONLINE) ? [[ONLINE, "online"]] : []), ...after, [LAST, "after the last epoch"]];
  }

  // ---- the table -------------------------------------------------------------------------------------

  /** Columns of the table: a title, and the series of a row under it. */
  function columns() {
    if (state.d === -1) {
      return unique(clean(state.n).map((s) => s.d)).map((d) => ({ title: D.data[d], of: (r) => [find(state.n, d, 0, -1, r)] }));
    }
    return chosen().map((c) => ({
      title: c < 0 ? D.data[state.d] : D.corruptions[c].name,
      of: (r) => levels().map((v) => find(state.n, state.d, v, c, r)),
    }));
  }

  function tableRows(heads) {
    const rows = [];
    D.rows.forEach((row, r) => {
      if (row.classes !== 1 || row.samples !== 1 || (!row.plain && !state.variants)) return;
      const cells = heads.map((head) => figure(head.of(r), state.pass));
      if (cells.every((cell) => cell === null)) return;
      const whole = heads.length > 1 ? figure(heads.flatMap((head) => head.of(r)), state.pass) : null;
      rows.push({ ...row, cells, whole });
    });
    return rows;
  }

  /** Cells of a row as they stand: the mean and its gain first, where there are several columns. */
  function figuresOf(row, base, withMean) {
    if (!withMean) return row.cells;
    const gain = row.whole && base && base.whole ? { value: row.whole.value - base.whole.value, gain: true } : null;
    return [row.whole, gain, ...row.cells];
  }

  function drawTable() {
    const heads = columns(), rows = tableRows(heads), source = rows.find((row) => row.method === "source");
    const withMean = heads.length > 1;
    const all = rows.map((row) => figuresOf(row, source, withMean));
    const base = source ? figuresOf(source, source, withMean) : [];
    const titles = [...(withMean ? ["mean", "gain"] : []), ...heads.map((head) => head.title)];
    const best = titles.map((_, x) => bestOf(rows, all, x));
    const order = rows.map((_, i) => i);
    if (state.sort !== null) {
      order.sort((a, b) => {
        const [one, other] = [all[a][state.sort], all[b][state.sort]];
        if (!one || !other) return !one - !other;
        return state.direction * (isError() ? one.value - other.value : other.value - one.value);
      });
    }
    const head = make("tr", {}, make("th", { scope: "col" }, "method"), ...titles.map((title, x) => sortable(title, x)));
    const body = make("tbody", {});
    for (const i of order) {
      const row = rows[i], cells = all[i].map((cell, x) => shownCell(cell, best[x], row, base[x]));
      body.append(make("tr", { class: row.method === ORACLE ? "dim" : null }, make("th", { scope: "row" }, row.label), ...cells));
    }
    return make("div", { class: "wide" }, make("table", { id: "results-table" }, make("thead", {}, head), body));
  }

  function sortable(title, x) {
    const current = state.sort === x;
    const direction = current ? (state.direction > 0 ? "descending" : "ascending") : null;
    const click = () => {
      if (!current) choose({ sort: x, direction: 1 });
      else if (state.direction > 0) choose({ direction: -1 });
      else choose({ sort: null, direction: 1 });
    };
    return make("th", { scope: "col", "aria-sort": direction }, make("button", { type: "button", onclick: click }, title));
  }

  function bestOf(rows, all, x) {
    const known = all.filter((cells, i) => cells[x] && !cells[x].gain && rows[i].method !== ORACLE).map((cells) => cells[x].value);
    return known.length > 1 ? fixed(Math.max(...known)) : null;
  }

  function shownCell(cell, best, row, base) {
    if (!cell) return make("td", {}, "");
    if (cell.gain) return make("td", {}, signed(isError() ? -cell.value : cell.value));
    const classes = [];
    if (row.method !== ORACLE && fixed(cell.value) === best) classes.push("best");
    if (base && cell.value < base.value) classes.push("below");
    const title = cell.seeds.map((seed, i) => `seed ${seed}: ${fixed(shownValue(cell.means[i]))}`).join("\n");
    const small = cell.spread === null ? null : make("small", {}, `±${fixed(cell.spread)}`);
    return make("td", { class: classes.join(" ") || null, title }, fixed(shownValue(cell.value)), small);
  }
  const signed = (value) => (value > 0 ? "+" : "") + fixed(value);

  function drawControls() {
    const networks = D.networks.map((name, n) => [String(n), name]);
    const data = unique(pool.filter((s) => s.n === state.n && s.c >= 0).map((s) => s.d)).map((d) => [String(d), D.data[d]]);
    if (clean(state.n).length) data.push(["-1", "without corruptions"]);
    const parts = [
      select("Network", networks, String(state.n), (n) => choose({ n: Number(n), sort: null })),
      select("Data", data, String(state.d), (d) => choose({ d: Number(d), sort: null })),
    ];
    if (state.d !== -1 && state.there.some((c) => c >= 0)) {
      const severities = state.severities.map((v) => [String(v), String(v)]);
      if (severities.length > 1) severities.push(["all", "mean of all"]);
      parts.push(select("Severity", severities, String(state.v), (v) => choose({ v: v === "all" ? v : Number(v) })));
      parts.push(make("div", { class: "field" }, "Corruptions", menu()));
    }
    parts.push(select("Protocol", passes(), state.pass, (pass) => choose({ pass })));
    parts.push(toggle("Metric", [["accuracy", "accuracy"], ["error", "error"]], state.metric, (metric) => choose({ metric })));
    if (D.rows.some((row) => !row.plain && row.classes === 1 && row.samples === 1)) {
      const box = make("input", { type: "checkbox", checked: state.variants, onchange: (e) => choose({ variants: e.target.checked, sort: null }) });
      parts.push(make("label", { class: "check" }, box, "other hyperparameters"));
    }
    return make("div", { class: "controls", id: "controls" }, ...parts);
  }

  let menuOpen = false;
  function menu() {
    const tick = (c) => make("input", {
      type: "checkbox", value: D.corruptions[c].name, checked: state.c.includes(c),
      onchange: (event) => {
        const kept = state.there.filter((other) => (other === c ? event.target.checked : state.c.includes(other)));
        choose({ c: kept.length ? kept : state.c, sort: null });
      },
    });
    const quick = [["test", (c) => !validation(c)], ["validation", validation], ["all", () => true]]
      .filter(([, test]) => state.there.some(test))
      .map(([name, test]) => make("button", { type: "button", onclick: () => choose({ c: state.there.filter(test), sort: null }) }, name));
    const boxes = state.there.map((c) => make("label", {}, tick(c), D.corruptions[c].name));
    const only = chosen();
    const title = only.length === 1 ? D.corruptions[only[0]].name : `${only.length} of ${state.there.length}`;
    return make("details", { class: "menu", id: "corruptions", open: menuOpen, ontoggle: (e) => { menuOpen = e.target.open; } },
      make("summary", {}, title), make("div", {}, make("div", { class: "quick" }, ...quick), ...boxes));
  }

  function drawHeadline() {
    const place = byId("headline");
    if (!place) return;
    const what = `${isError() ? "Error" : "Accuracy"} in %, mean${D.series.some((s) => s.s.length > 1) ? " ± standard deviation over seeds" : ""}. ` +
      "The best figure of each column is bold; a tinted cell is worse than no adaptation. Click a head to sort.";
    place.replaceChildren(drawControls(), drawTable(), make("p", { class: "note" }, what));
  }

  // ---- charts ----------------------------------------------------------------------------------------

  /** Its code lies in the page as text, so that the tables are there first. */
  function loadPlotly() {
    const script = make("script", {});
    script.textContent = byId("plotly").textContent;
    document.head.append(script);
  }

  const charts = [];
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = charts.find((own) => own.element === entry.target);
      chart.visible = entry.isIntersecting;
      if (chart.visible && chart.stale) later(chart);
    }
  }, { rootMargin: "300px" });

  /** Charts are drawn one by one when there is nothing else to do, so that clicks never wait for all of them. */
  const waiting = new Set();
  function later(chart) {
    waiting.add(chart);
    if (waiting.size === 1) idle(next);
  }
  const idle = (task) => (window.requestIdleCallback ? requestIdleCallback(task, { timeout: 1000 }) : setTimeout(task, 30));
  function next() {
    if (window.Plotly) {
      const [chart] = waiting;
      waiting.delete(chart);
      if (chart && chart.visible && chart.stale) chart.show();
    } else loadPlotly();
    if (waiting.size) idle(next);
  }

  function addChart(place, title, content) {
    const home = byId(place);
    if (!home) return;
    const plot = make("div", { class: "plot" }), controls = make("div", { class: "controls" });
    const element = make("div", { class: "chart" }, make("h3", {}, title), controls, plot);
    const chart = { element, stale: true, visible: false, own: {} };
    chart.show = () => {
      chart.stale = false;
      const made = content(chart.own, (change) => { Object.assign(chart.own, change); chart.show(); });
      controls.replaceChildren(...(made.controls || []));
      controls.hidden = !made.controls || !made.controls.length;
      Plotly.react(plot, made.traces, layout(made), { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtonsToRemove: ["lasso2d", "select2d"] });
    };
    home.append(element);
    charts.push(chart);
    seen.observe(element);
  }

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function layout(made) {
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), automargin: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colour("--ink"), size: 12, family: "system-ui, sans-serif" },
      margin: { l: 48, r: 12, t: 8, b: 40 }, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 } },
      hoverlabel: { namelength: -1 }, showlegend: true, ...made.layout,
      xaxis: { ...axis, ...(made.layout || {}).xaxis }, yaxis: { ...axis, ...(made.layout || {}).yaxis },
      annotations: made.traces.length ? (made.layout || {}).annotations : [{ text: "nothing was measured for this choice", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }],
    };
  }

  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down"];
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  /** Dark colours are mixed with white where the page is dark. */
  function shade(text) {
    const parts = [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
    const light = 0.3 * parts[0] + 0.59 * parts[1] + 0.11 * parts[2];
    return isDark() && light < 110 ? `rgb(${parts.map((part) => Math.round(part + (255 - part) * 0.45)).join()})` : text;
  }
  const look = (r) => ({ color: D.rows[r].method === ORACLE ? colour("--ink") : shade(D.rows[r].color), symbol: SYMBOLS[r % SYMBOLS.length] });
  const percent = () => ({ title: { text: `${state.metric} in %` } });
  const bars = (list) => (list.some((f) => f && f.spread !== null) ? { type: "data", array: list.map((f) => (f && f.spread) || 0), thickness: 1 } : undefined);
  const place = () => (state.d === -1 ? [] : chosen());
  const rowsFor = (test) => D.rows.map((row, r) => r).filter((r) => test(D.rows[r]));

  function overEpochs() {
    const cells = (r) => place().flatMap((c) => levels().map((v) => find(state.n, state.d, v, c, r)));
    const steps = passes().filter(([key]) => key !== LAST);
    const traces = [];
    for (const r of rowsFor((row) => row.plain)) {
      const found = steps.map(([key]) => figure(cells(r), key));
      if (found.every((f) => f === null)) continue;
      const still = ["source", "bn"].includes(D.rows[r].method);
      traces.push({
        name: plain(D.rows[r].label), x: steps.map(([key]) => (key === ONLINE ? "online" : `epoch ${key}`)),
        y: found.map((f) => f && shownValue(f.value)), error_y: still ? undefined : bars(found), connectgaps: true,
        mode: still ? "lines" : "lines+markers", line: { color: look(r).color, dash: still ? "dash" : "solid" }, marker: look(r),
      });
    }
    return { traces, layout: { yaxis: percent(), xaxis: { type: "category" } } };
  }

  const CURVES = { accuracy: "accuracy of each batch, %", loss: "loss", confidence: "mean confidence, %", class_entropy: "entropy of p_t, % of its largest" };

  function overSteps(own, change) {
    const there = Object.keys(CURVES).filter((name) => D.series.some((s) => s.steps[name]));
    own.curve = there.includes(own.curve) ? own.curve : there[0];
    const traces = [];
    for (const r of rowsFor((row) => row.plain)) {
      const curves = place().flatMap((c) => levels().map((v) => find(state.n, state.d, v, c, r))).filter((s) => s && s.steps[own.curve]);
      if (!curves.length) continue;
      const first = curves[0].steps.step, same = curves.filter((s) => s.steps.step.join() === first.join());
      const error = own.curve === "accuracy" && isError();
      const values = first.map((_, i) => {
        const known = same.map((s) => s.steps[own.curve][i]).filter((value) => value !== null);
        return known.length ? (error ? 100 - mean(known) : mean(known)) : null;
      });
      traces.push({ name: plain(D.rows[r].label), x: first, y: values, mode: "lines", line: { color: look(r).color } });
    }
    const made = { traces, layout: { yaxis: { title: { text: CURVES[own.curve] || "" } }, xaxis: { title: { text: "step" } } } };
    if (own.curve === "class_entropy") collapseLine(made.layout);
    made.controls = there.length > 1 ? [select("Curve", there.map((name) => [name, CURVES[name]]), own.curve, (curve) => change({ curve }))] : [];
    return made;
  }

  function collapseLine(made) {
    made.shapes = [{ type: "rect", xref: "paper", x0: 0, x1: 1, y0: 0, y1: COLLAPSED, fillcolor: `rgba(${colour("--worse")}, 0.12)`, line: { width: 0 }, layer: "below" }];
    made.annotations = [{ text: "collapse", xref: "paper", x: 0.01, y: COLLAPSED, yanchor: "top", xanchor: "left", showarrow: false, font: { color: colour("--bad") } }];
    made.yaxis.range = [0, 102];
  }

  function byNetwork() {
    const clear = state.d === -1;
    const traces = [];
    for (const r of rowsFor((row) => row.plain)) {
      const found = D.networks.map((_, n) => {
        const own = D.series.filter((s) => s.n === n && s.r === r && (clear ? s.c < 0 : s.d === state.d && state.c.includes(s.c)));
        const needed = clear ? 1 : state.c.length * unique(D.series.filter((s) => s.n === n && s.d === state.d && s.c >= 0).map((s) => s.v)).length;
        return own.length && own.length >= needed ? figure(own, state.pass) : null;
      });
      if (found.every((f) => f === null)) continue;
      traces.push({
        type: "bar", name: plain(D.rows[r].label), x: D.networks.map((_, n) => n), y: found.map((f) => f && shownValue(f.value)),
        error_y: bars(found), marker: { color: look(r).color },
      });
    }
    return { traces, layout: { barmode: "group", yaxis: { ...percent(), rangemode: "tozero" }, xaxis: named(D.networks, 24) } };
  }

  /** A corruption of those that some rows have, or their mean. */
  function corruptionOf(own, change, rows) {
    const there = unique(D.series.filter((s) => s.n === state.n && s.c >= 0 && rows.includes(s.r)).map((s) => s.c)).sort((a, b) => a - b);
    const options = [["mean", `mean of ${there.length}`], ...there.map((c) => [String(c), D.corruptions[c].name])];
    own.c = options.some(([key]) => key === own.c) ? own.c : "mean";
    return { list: own.c === "mean" ? there : [Number(own.c)], controls: there.length > 1 ? [select("Corruption", options, own.c, (c) => change({ c }))] : [] };
  }

  const anywhere = (r, c) => D.series.find((s) => s.n === state.n && s.r === r && s.c === c && (state.v === "all" || s.v === state.v || state.d === -1));

  function subsets(kind) {
    const other = kind === "classes" ? "samples" : "classes";
    return (own, change) => {
      const parts = rowsFor((row) => row[kind] !== 1 && row[other] === 1 && !Object.keys(row.changes).length);
      const methods = unique(parts.map((r) => D.rows[r].method));
      const { list, controls } = corruptionOf(own, change, parts);
      const traces = [];
      for (const method of methods) {
        const rows = [...parts.filter((r) => D.rows[r].method === method), ...rowsFor((row) => row.plain && row.method === method)];
        const points = rows.map((r) => [D.rows[r][kind], figure(list.map((c) => anywhere(r, c)), state.pass), r]).filter(([, f]) => f).sort((a, b) => a[0] - b[0]);
        if (!points.length) continue;
        const last = points.at(-1)[2];
        traces.push({ name: plain(method), x: points.map(([x]) => x), y: points.map(([, f]) => shownValue(f.value)), error_y: bars(points.map(([, f]) => f)), mode: "lines+markers", line: { color: look(last).color }, marker: look(last) });
      }
      const source = rowsFor((row) => row.method === "source")[0];
      const base = source === undefined ? null : figure(list.map((c) => anywhere(source, c)), state.pass);
      if (base && traces.length) traces.push({ name: "source", x: [0, 1], y: [base, base].map((f) => shownValue(f.value)), mode: "lines", line: { color: look(source).color, dash: "dash" } });
      return { traces, controls, layout: { yaxis: percent(), xaxis: { title: { text: `fraction of the ${kind} that was adapted to` }, range: [0, 1.03] } } };
    };
  }

  function kappas(own, change) {
    const changed = rowsFor((row) => Object.keys(row.changes).join() === "kappa");
    const methods = unique(changed.map((r) => D.rows[r].method));
    const { list, controls } = corruptionOf(own, change, changed);
    const all = unique([...changed.map((r) => D.rows[r].changes.kappa), ...methods.map((m) => String((D.rows.find((row) => row.plain && row.method === m) || {}).kappa))]);
    const values = all.filter((value) => value !== "undefined" && value !== "null").map(Number).sort((a, b) => a - b);
    const traces = [];
    for (const method of methods) {
      const rowOf = (value) => D.rows.findIndex((row) => row.method === method && ((row.plain && row.kappa === value) || Number(row.changes.kappa) === value));
      const without = D.rows.findIndex((row) => row.plain && row.method === `${method}-div`);
      const points = [["no L_div", without], ...unique(values).map((value) => [`κ = ${value}`, rowOf(value)])];
      const found = points.map(([, r]) => (r < 0 ? null : figure(list.map((c) => anywhere(r, c)), state.pass)));
      const r = D.rows.findIndex((row) => row.plain && row.method === method);
      traces.push({ name: plain(method), x: points.map(([x]) => x), y: found.map((f) => f && shownValue(f.value)), error_y: bars(found), mode: "lines+markers", line: { color: look(Math.max(r, 0)).color }, marker: look(Math.max(r, 0)) });
    }
    return { traces: traces.filter((trace) => trace.y.some((y) => y !== null)), controls, layout: { yaxis: percent(), xaxis: { type: "category" } } };
  }

  // ---- one method on one corruption ------------------------------------------------------------------

  const focus = {};
  function focused(change) {
    const there = D.series.filter((s) => s.n === state.n && (state.d === -1 ? s.c < 0 : s.d === state.d && levels().includes(s.v) && state.c.includes(s.c)));
    const corruptions = unique(there.map((s) => s.c)), rows = unique(there.map((s) => s.r)).filter((r) => D.rows[r].method !== "source");
    if (!corruptions.includes(focus.c)) focus.c = corruptions[0];
    if (!rows.includes(focus.r)) focus.r = rows.find((r) => D.rows[r].method === "slr") ?? rows.at(-1);
    const controls = [
      select("Method", rows.map((r) => [String(r), D.rows[r].label]), String(focus.r), (r) => { focus.r = Number(r); redraw("closer"); }),
      select("Corruption", corruptions.map((c) => [String(c), c < 0 ? "none" : D.corruptions[c].name]), String(focus.c), (c) => { focus.c = Number(c); redraw("closer"); }),
    ];
    const at = (r) => there.find((s) => s.c === focus.c && s.r === r);
    const source = rowsFor((row) => row.method === "source")[0];
    return { controls, before: source === undefined ? undefined : at(source), after: at(focus.r) };
  }
  const redraw = (group) => charts.filter((chart) => chart.group === group).forEach((chart) => { chart.stale = true; if (chart.visible) later(chart); });

  function histogram(sides, names) {
    const first = sides.find(([, side]) => side);
    if (!first) return { traces: [] };
    const many = first[1].hist.length >= 60 && !names;
    const x = first[1].hist.map((_, i) => (many ? (100 * i) / 59 : i));
    const traces = sides.filter(([, side]) => side).map(([name, side, shade]) => ({
      type: many ? "scatter" : "bar", mode: "lines", name: `${plain(name)}: entropy ${fixed(100 * side.even, 0)} %${100 * side.even < COLLAPSED ? ", collapsed" : ""}`,
      x, y: side.hist, marker: { color: 100 * side.even < COLLAPSED ? colour("--bad") : shade }, line: { color: shade },
    }));
    const even = 100 / first[1].hist.length;
    const level = many ? [] : [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: even, y1: even, line: { color: colour("--pale"), dash: "dot", width: 1 } }];
    return { traces, layout: { barmode: "group", shapes: level, yaxis: { title: { text: "share of the predictions, %" }, rangemode: "tozero" }, xaxis: { title: { text: many ? "classes in falling order, %" : "class" }, ...(names ? named(names, 24) : many ? {} : { dtick: x.length > 20 ? undefined : 1 }) } } };
  }
  /** An axis of names: by their numbers, as two that are cut may look the same. */
  const named = (names, most) => ({ tickvals: names.map((_, i) => i), ticktext: names.map((name) => plain(name, most)) });

  function reliability(sides) {
    const known = sides.filter(([, side]) => side && side.bins.length);
    const labelled = known.some(([, side]) => side.bins[0][3] !== null);
    if (!labelled) {
      const traces = known.map(([name, side, shade]) => ({ type: "bar", name: plain(name), x: side.bins.map((b) => (100 * (b[0] + 0.5)) / 15), y: side.bins.map((b) => b[1]), marker: { color: shade } }));
      return { traces, layout: { barmode: "group", xaxis: { title: { text: "confidence, %" }, range: [0, 100] }, yaxis: { title: { text: "share of the images, %" } } } };
    }
    const traces = known.map(([name, side, shade]) => ({
      name: `${plain(name)}: ECE ${fixed(mean(side.ece), 1)} %`, x: side.bins.map((b) => b[2]), y: side.bins.map((b) => b[3]), mode: "lines+markers",
      line: { color: shade }, marker: { color: shade, size: side.bins.map((b) => 5 + 2.2 * Math.sqrt(b[1])), opacity: 0.85 },
      text: side.bins.map((b) => `${b[1]} % of the images`), hovertemplate: "confidence %{x:.1f} %, accuracy %{y:.1f} %, %{text}<extra></extra>",
    }));
    traces.unshift({ name: "calibrated", x: [0, 100], y: [0, 100], mode: "lines", line: { color: colour("--pale"), dash: "dot", width: 1 }, hoverinfo: "skip" });
    return { traces, layout: { xaxis: { title: { text: "confidence, %" }, range: [0, 102] }, yaxis: { title: { text: "accuracy, %" }, range: [0, 102] } } };
  }

  const sidesOf = ({ before, after }) => [["before", before, colour("--pale")], [focus.r === undefined ? "after" : `after ${D.rows[focus.r].label}`, after, colour("--link")]];

  // ---- the page --------------------------------------------------------------------------------------

  function addCharts() {
    if (D.series.length) {
      addChart("charts-curves", "Accuracy over epochs", overEpochs);
      if (D.series.some((s) => s.steps.step)) addChart("charts-curves", "Over steps", overSteps);
      addChart("charts-models", "Mean accuracy of each network, over the chosen corruptions and all their severities", byNetwork);
      addChart("charts-subsets", "A fraction of the classes", subsets("classes"));
      addChart("charts-subsets", "A fraction of the samples of each class", subsets("samples"));
      addChart("charts-kappa", "κ of the running class distribution, and no regulariser", kappas);
      addChart("charts-closer", "Predicted classes", () => { const own = focused(); return { ...histogram(sidesOf(own), D.names[D.data[state.d]]), controls: own.controls }; });
      charts.at(-1).group = "closer";
      addChart("charts-closer", "Reliability", () => { const own = focused(); return { ...reliability(sidesOf(own)), controls: own.controls }; });
      charts.at(-1).group = "closer";
    }
    for (const run of D.unlabelled.slice(0, 20)) {
      const sides = () => [["before", run.before, colour("--pale")], ["after", run.after, colour("--link")]];
      addChart("charts-unlabelled", `Predicted classes: ${cut(run.label, 80)}`, () => histogram(sides(), run.names));
      addChart("charts-unlabelled", `Confidence: ${cut(run.label, 80)}`, () => reliability(sides()));
      if (run.after.steps.step) addChart("charts-unlabelled", `Over steps: ${cut(run.label, 80)}`, (own, change) => runSteps(run, own, change));
    }
  }

  function runSteps(run, own, change) {
    const there = Object.keys(CURVES).filter((name) => run.after.steps[name]);
    own.curve = there.includes(own.curve) ? own.curve : there[0];
    const made = {
      traces: [{ name: CURVES[own.curve], x: run.after.steps.step, y: run.after.steps[own.curve], mode: "lines", line: { color: colour("--link") } }],
      layout: { showlegend: false, yaxis: { title: { text: CURVES[own.curve] } }, xaxis: { title: { text: "step" } } },
      controls: [select("Curve", there.map((name) => [name, CURVES[name]]), own.curve, (curve) => change({ curve }))],
    };
    if (own.curve === "class_entropy") collapseLine(made.layout);
    return made;
  }

  function draw() {
    drawHeadline();
    for (const chart of charts) {
      chart.stale = true;
      if (chart.visible) later(chart);
    }
  }

  function theme() {
    const button = make("button", { type: "button", class: "theme", id: "theme", onclick: () => { root.dataset.theme = isDark() ? "light" : "dark"; button.textContent = isDark() ? "light" : "dark"; draw(); } }, isDark() ? "light" : "dark");
    document.querySelector("header").append(button);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }

  for (const section of document.querySelectorAll("main section")) {
    byId("nav").append(make("a", { href: `#${section.id}` }, section.querySelector("h2").textContent));
  }
  theme();
  addCharts();
  document.addEventListener("click", (event) => {
    const open = byId("corruptions");
    if (open && open.open && !open.contains(event.target) && event.target.isConnected) open.open = false;
  });
  if (D.series.length) choose({ n: pool[0].n, d: pool[0].c >= 0 ? pool[0].d : -1, v: "none" });
  else draw();
  root.dataset.ready = "yes";
})();
