// The page's table, filters and charts. All text goes through textContent or plain(): names are never markup.
"use strict";
async function start() {
  const ONLINE = "0", LAST = "-1";
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
  const { oracle: ORACLE, fixed: FIXED, collapsed: COLLAPSED, bins: BINS, bars: BARS, z: Z95, t: T95 } = D.constants;

  /** A sum that keeps what is lost on the way (Neumaier), so that figures round as in Python. */
  function sum(values) {
    let total = 0, lost = 0;
    for (const value of values) {
      const next = total + value;
      lost += Math.abs(total) >= Math.abs(value) ? total - next + value : value - next + total;
      total = next;
    }
    return total + lost;
  }
  const mean = (values) => sum(values) / values.length;
  const spread = (values) => {
    if (values.length < 2) return null;
    const middle = mean(values);
    return Math.sqrt(sum(values.map((value) => (value - middle) ** 2)) / (values.length - 1));
  };
  const unique = (values) => [...new Set(values)];
  /** As Python writes it: what lies just between two figures goes to the even one. */
  function fixed(number, digits = 2) {
    const scaled = Math.abs(number) * 10 ** digits, low = Math.floor(scaled);
    const between = Number.isInteger(number * 2 ** (digits + 1)) && scaled - low === 0.5;
    const even = between ? (Math.sign(number) * (low + (low % 2))) / 10 ** digits : number;
    return even.toFixed(digits).replace("-", "−");
  }

  const index = new Map();
  for (const s of D.series) index.set([s.n, s.d, s.v, s.c, s.r].join(), s);
  const find = (n, d, v, c, r) => index.get([n, d, v, c, r].join());

  /** Accuracies by seed in one pass; what learns nothing has one pass, which stands for all. */
  function bySeed(series, pass, only) {
    const values = series.a[FIXED.includes(D.rows[series.r].method) ? LAST : pass];
    const known = values ? series.s.map((seed, i) => [seed, values[i]]).filter(([seed, value]) => value !== null && (!only || FIXED.includes(D.rows[series.r].method) || only.includes(seed))) : [];
    return known.length ? new Map(known) : undefined;
  }

  /** The mean over series, only if all are there; its spread is that of the seeds which all of them have. */
  function figure(many, pass, only = null) {
    const each = many.map((series) => series && bySeed(series, pass, only));
    if (!each.length || each.some((own) => !own)) return null;
    const seeds = [...each[0].keys()].filter((seed) => each.every((own) => own.has(seed)));
    const means = seeds.map((seed) => mean(each.map((own) => own.get(seed))));
    return { value: mean(each.map((own) => mean([...own.values()]))), spread: spread(means), seeds, means, ...doubt(many, each, means) };
  }

  // ---- what is chance: as in acclimate.chance, in % ---------------------------------------------------

  /** How far an accuracy may be off, down and up: Wilson's interval. */
  function wilson(value, count) {
    const share = value / 100, z2 = (Z95 * Z95) / count;
    const half = Z95 * Math.sqrt((share * (1 - share)) / count + z2 / count / 4);
    const [low, high] = [-1, 1].map((side) => (share + z2 / 2 + side * half) / (1 + z2));
    return [share - Math.max(0, Math.min(low, share)), Math.min(1, Math.max(high, share)) - share];
  }
  /** How far a mean may be off, down and up, and the ends of its interval; nothing where it is of no share. */
  function doubt(many, each, means) {
    if (many.some((series) => !series.i)) return {};
    const ofSeeds = means.length < 2 ? 0 : (T95[Math.min(means.length - 1, T95.length) - 1] * spread(means)) / 100 / Math.sqrt(means.length);
    const halves = many.map((series, k) => [...each[k].values()].map((value) => wilson(value, series.i)));
    const value = mean(each.map((own) => mean([...own.values()])));
    const [down, up] = [0, 1].map((side) => Math.hypot(mean(halves.map((own) => mean(own.map((pair) => pair[side])))), ofSeeds));
    return { interval: [100 * Math.max(0, value / 100 - down), 100 * Math.min(1, value / 100 + up)] };
  }
  /** The interval of the difference of two figures, as if of different images. */
  function difference(one, other) {
    const value = one.value - other.value;
    const down = Math.hypot(one.value - one.interval[0], other.interval[1] - other.value);
    const up = Math.hypot(one.interval[1] - one.value, other.value - other.interval[0]);
    return [value - down, value + up];
  }
  function apart(one, other) {
    if (!one.interval || !other.interval) return true;
    const [low, high] = difference(one, other);
    return low > 0 || high < 0;
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
    const list = make("select", { "data-key": title, onchange: (event) => change(event.target.value) });
    for (const [key, text] of options) list.append(make("option", { value: key, selected: key === value }, cut(text, 60)));
    return make("label", {}, title, list);
  }

  function toggle(title, options, value, change) {
    const buttons = options.map(([key, text]) =>
      make("button", { type: "button", "data-key": key, "aria-pressed": String(key === value), onclick: () => change(key) }, text));
    return make("div", { class: "field" }, title, make("span", { class: "switch" }, ...buttons));
  }

  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  /** Plotly reads a few tags in its texts: names are to be shown as they are. */
  const plain = (text, most = 40) => cut(text, most).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // ---- what is chosen --------------------------------------------------------------------------------

  const state = { metric: "accuracy", pass: LAST, variants: D.rows.every((row) => !row.plain || row.method === "source"), sort: null, direction: 1 };

  /** Data of a network, with and without corruptions apart. */
  const dataOf = (n) => unique(D.series.filter((s) => s.n === n).map((s) => `${s.d} ${s.c < 0 ? "clean" : "corrupted"}`));
  const here = () => D.series.filter((s) => s.n === state.n && s.d === state.d && (s.c < 0) === state.clean);

  function choose(change) {
    Object.assign(state, change);
    const options = dataOf(state.n).sort((a, b) => a.endsWith("clean") - b.endsWith("clean"));
    if (!options.includes(state.data)) state.data = options[0];
    state.d = parseInt(state.data, 10);
    state.clean = state.data.endsWith("clean");
    state.severities = unique(here().map((s) => s.v)).sort();
    if (!state.severities.includes(state.v) && !(state.v === "all" && state.severities.length > 1)) state.v = state.severities.at(-1);
    state.there = unique(here().map((s) => s.c)).sort((a, b) => a - b);
    if (!state.c || !state.c.some((c) => state.there.includes(c))) state.c = usual(state.there);
    draw();
  }
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
  /** A row in some corruptions, at every severity that is chosen. */
  const cellsOf = (r, corruptions = chosen()) => corruptions.flatMap((c) => levels().map((v) => find(state.n, state.d, v, c, r)));

  function passes() {
    const epochs = unique(here().flatMap((s) => Object.keys(s.a)));
    const after = epochs.filter((e) => Number(e) > 0).sort((a, b) => a - b).map((e) => [e, `after epoch ${e}`]);
    return [...(epochs.includes(ONLINE) ? [[ONLINE, "online"]] : []), ...after, [LAST, "after the last epoch"]];
  }

  // ---- the table -------------------------------------------------------------------------------------

  /** Columns of the table: a title, and the series of a row under it. */
  const columns = () => chosen().map((c) => ({ title: c < 0 ? state.metric : D.corruptions[c].name, of: (r) => cellsOf(r, [c]) }));

  function tableRows(heads) {
    const rows = [];
    D.rows.forEach((row, r) => {
      if (!row.plain && !state.variants) return;
      const cells = heads.map((head) => figure(head.of(r), state.pass));
      if (cells.some((cell) => cell !== null)) rows.push({ ...row, cells, whole: figure(cellsOf(r), state.pass) });
    });
    return rows;
  }

  /** Cells of a row as they stand: the mean and its gain over no adaptation first. */
  function figuresOf(row, base) {
    const gain = row.whole && base && base.whole ? { value: row.whole.value - base.whole.value, gain: true } : null;
    if (gain && row.method !== "source" && row.whole.interval && base.whole.interval) {
      gain.interval = difference(row.whole, base.whole);
      gain.chance = !apart(row.whole, base.whole);
    }
    return state.clean ? [gain, ...row.cells] : [row.whole, gain, ...row.cells];
  }

  function drawTable() {
    const heads = columns(), rows = tableRows(heads), source = rows.find((row) => row.method === "source");
    const all = rows.map((row) => figuresOf(row, source));
    const base = source ? figuresOf(source, source) : [];
    const gain = isError() ? "change" : "gain";
    const titles = [...(state.clean ? [gain] : ["mean", gain]), ...heads.map((head) => head.title)];
    const best = titles.map((_, x) => bestOf(rows, all, x));
    const order = rows.map((_, i) => i);
    if (state.sort !== null) {
      order.sort((a, b) => {
        const [one, other] = [all[a][state.sort], all[b][state.sort]];
        if (!one || !other) return !one - !other;
        return state.direction * (other.value - one.value); // the best first
      });
    }
    const head = make("tr", {}, make("th", { scope: "col" }, "method"), ...titles.map((title, x) => sortable(title, x)));
    const body = make("tbody", {});
    for (const i of order) {
      const row = rows[i], cells = all[i].map((cell, x) => shownCell(cell, best[x], row, base[x], i));
      body.append(make("tr", { class: row.method === ORACLE ? "dim" : null }, make("th", { scope: "row" }, row.label), ...cells));
    }
    return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "results" }, make("table", { id: "results-table" }, make("thead", {}, head), body));
  }

  function sortable(title, x) {
    const current = state.sort === x;
    const direction = current ? ((state.direction > 0) !== isError() ? "descending" : "ascending") : null;
    const click = () => {
      if (!current) choose({ sort: x, direction: 1 });
      else if (state.direction > 0) choose({ direction: -1 });
      else choose({ sort: null, direction: 1 });
    };
    return make("th", { scope: "col", "aria-sort": direction }, make("button", { type: "button", "data-key": `sort ${x}`, onclick: click }, title));
  }

  /** The best figure of a column as it is shown, and the rows that cannot be told apart from it. */
  function bestOf(rows, all, x) {
    const known = rows.map((_, i) => i).filter((i) => all[i][x] && !all[i][x].gain && rows[i].method !== ORACLE);
    if (known.length < 2) return { close: [] };
    const best = all[known.reduce((top, i) => (all[i][x].value > all[top][x].value ? i : top))][x], text = fixed(best.value);
    const close = known.filter((i) => fixed(all[i][x].value) === text || !apart(all[i][x], best));
    return { text, close: close.length > 1 ? close.filter((i) => all[i][x].interval) : [] };
  }

  function shownCell(cell, best, row, base, i) {
    if (!cell) return make("td", {}, "");
    const chance = cell.gain ? cell.chance : best.close.includes(i);
    if (cell.gain) return make("td", {}, signed(isError() ? -cell.value : cell.value), shownInterval(cell, chance));
    const classes = [];
    if (row.method !== ORACLE && fixed(cell.value) === best.text) classes.push("best");
    if (base && cell.value < base.value && apart(cell, base)) classes.push("below");
    const title = cell.seeds.map((seed, s) => `seed ${seed}: ${fixed(shownValue(cell.means[s]))}`).join("\n");
    const small = cell.spread === null ? null : make("small", {}, `±${fixed(cell.spread)}`);
    return make("td", { class: classes.join(" ") || null, title }, fixed(shownValue(cell.value)), small, shownInterval(cell, chance));
  }
  function shownInterval(cell, chance) {
    if (!cell.interval) return null;
    const ends = cell.gain ? cell.interval.map((end) => (isError() ? -end : end)) : cell.interval.map(shownValue);
    const [low, high] = (isError() ? ends.reverse() : ends).map((end) => (cell.gain ? signed(end, 1) : fixed(end, 1)));
    return make("small", { class: "interval" }, `${low} to ${high}${chance ? " ≈" : ""}`);
  }
  const signed = (value, digits) => (value > 0 ? "+" : "") + fixed(value, digits);

  function drawControls() {
    const networks = D.networks.map((name, n) => [String(n), name]);
    const data = dataOf(state.n).map((key) => [key, D.data[parseInt(key, 10)] + (key.endsWith("clean") ? " (no corruption)" : "")]);
    const parts = [
      select("Network", networks, String(state.n), (n) => choose({ n: Number(n), sort: null })),
      select("Data", data, state.data, (key) => choose({ data: key, sort: null })),
    ];
    if (!state.clean) {
      const severities = state.severities.map((v) => [String(v), String(v)]);
      if (severities.length > 1) severities.push(["all", "mean of all"]);
      parts.push(select("Severity", severities, String(state.v), (v) => choose({ v: v === "all" ? v : Number(v) })));
      parts.push(make("div", { class: "field" }, "Corruptions", menu()));
    }
    parts.push(select("Protocol", passes(), state.pass, (pass) => choose({ pass })));
    parts.push(toggle("Metric", [["accuracy", "accuracy"], ["error", "error"]], state.metric, (metric) => choose({ metric })));
    if (D.rows.some((row) => !row.plain)) {
      const box = make("input", { type: "checkbox", "data-key": "variants", checked: state.variants, onchange: (e) => choose({ variants: e.target.checked, sort: null }) });
      parts.push(make("label", { class: "check" }, box, "variants"));
    }
    return make("div", { class: "controls", id: "controls" }, ...parts);
  }

  let menuOpen = false;
  function menu() {
    const tick = (c) => make("input", {
      type: "checkbox", "data-key": `corruption ${c}`, value: D.corruptions[c].name, checked: state.c.includes(c),
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
    const note = here().some((s) => s.i) ? D.constants.note.replace("{}", isError() ? "lowest" : "highest") : D.constants.by_class;
    const what = `${isError() ? "Error" : "Accuracy"} in %. ${note} ` +
      "A tinted cell is worse than no adaptation by more than chance; a mean is there only where a method has all columns, over the seeds of each. Click a head to sort.";
    const key = document.activeElement && document.activeElement.dataset.key;
    place.replaceChildren(drawControls(), drawTable(), make("p", { class: "note" }, what));
    const same = key && [...place.querySelectorAll("[data-key]")].find((element) => element.dataset.key === key);
    if (same) same.focus({ preventScroll: true }); // who uses the keyboard goes on where they were
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
  function refresh(chart) {
    chart.stale = true;
    chart.element.dataset.stale = "yes";
    if (chart.visible) later(chart);
  }
  const idle = (task) => (window.requestIdleCallback ? requestIdleCallback(task, { timeout: 1000 }) : setTimeout(task, 30));
  function next() {
    if (window.Plotly) {
      const [chart] = waiting;
      waiting.delete(chart);
      if (waiting.size) idle(next); // whatever becomes of this one
      if (chart && chart.visible && chart.stale) chart.show();
      return;
    }
    loadPlotly();
    idle(next);
  }

  function addChart(place, title, content) {
    const home = byId(place);
    if (!home) return;
    const plot = make("div", { class: "plot" }), controls = make("div", { class: "controls" });
    const note = make("p", { class: "note" });
    const element = make("div", { class: "chart" }, make("h3", {}, title), controls, plot, note);
    const chart = { element, stale: true, visible: false, own: {} };
    chart.show = () => {
      chart.stale = false;
      const made = content(chart.own, (change) => { Object.assign(chart.own, change); chart.show(); });
      controls.replaceChildren(...(made.controls || []));
      controls.hidden = !made.controls || !made.controls.length;
      note.textContent = made.note || "";
      Plotly.react(plot, made.traces, layout(made), { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtonsToRemove: ["lasso2d", "select2d"] });
      delete element.dataset.stale;
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
  const bars = (list) => (list.some((f) => f && f.spread !== null) ? { type: "data", array: list.map((f) => (f && f.spread !== null ? f.spread : NaN)), thickness: 1 } : undefined);
  const left = (names) => (names.length ? `Left out, as they lack some of the chosen: ${names.join(", ")}.` : "");
  const rowsFor = (test) => D.rows.map((row, r) => r).filter((r) => test(D.rows[r]));

  function overEpochs() {
    const after = passes().filter(([key]) => key !== LAST && key !== ONLINE);
    const traces = [], lacking = [];
    for (const r of rowsFor((row) => row.plain)) {
      const found = after.map(([key]) => figure(cellsOf(r), key)), online = figure(cellsOf(r), ONLINE);
      if (found.every((f) => f === null)) {
        if (cellsOf(r).some(Boolean)) lacking.push(D.rows[r].label);
        continue;
      }
      const still = FIXED.includes(D.rows[r].method), style = { marker: look(r), legendgroup: String(r), name: plain(D.rows[r].label) };
      traces.push({
        ...style, x: after.map(([key]) => Number(key)), y: found.map((f) => f && shownValue(f.value)), error_y: still ? undefined : bars(found),
        connectgaps: true, mode: still ? "lines" : "lines+markers", line: { color: look(r).color, dash: still ? "dash" : "solid" },
      });
      if (online && !still) traces.push({ ...style, x: [0], y: [shownValue(online.value)], mode: "markers", showlegend: false, marker: { ...look(r), symbol: "circle-open" } });
    }
    const ticks = [[0, "online"], ...after.map(([key]) => [Number(key), key])];
    return { traces, note: left(lacking), layout: { yaxis: percent(), xaxis: { title: { text: "epoch" }, tickvals: ticks.map(([x]) => x), ticktext: ticks.map(([, text]) => text) } } };
  }

  const CURVES = { accuracy: "accuracy before the updates, %", loss: "loss", confidence: "mean confidence, %", class_entropy: "entropy of p_t, % of its largest" };

  function overSteps(own, change) {
    const there = Object.keys(CURVES).filter((name) => D.series.some((s) => s.steps[name]));
    own.curve = there.includes(own.curve) ? own.curve : there[0];
    const traces = [], lacking = [];
    for (const r of rowsFor((row) => row.plain && !FIXED.includes(row.method))) {
      const cells = cellsOf(r), first = cells[0] && cells[0].steps.step;
      if (!first || !cells.every((s) => s && s.steps[own.curve] && s.steps.step.join() === first.join())) {
        if (cells.some(Boolean)) lacking.push(D.rows[r].label);
        continue;
      }
      const error = own.curve === "accuracy" && isError();
      const values = first.map((_, i) => {
        const known = cells.map((s) => s.steps[own.curve][i]).filter((value) => value !== null);
        return known.length === cells.length ? (error ? 100 - mean(known) : mean(known)) : null;
      });
      traces.push({ name: plain(D.rows[r].label), x: first, y: values, mode: "lines", line: { color: look(r).color } });
    }
    const made = { traces, note: left(lacking), layout: { yaxis: { title: { text: CURVES[own.curve] || "" } }, xaxis: { title: { text: "step" } } } };
    if (own.curve === "class_entropy") collapseLine(made.layout);
    made.controls = there.length > 1 ? [select("Curve", there.map((name) => [name, CURVES[name]]), own.curve, (curve) => change({ curve }))] : [];
    return made;
  }

  function collapseLine(made) {
    made.shapes = [{ type: "rect", xref: "paper", x0: 0, x1: 1, y0: 0, y1: COLLAPSED, fillcolor: `rgba(${colour("--worse")}, 0.12)`, line: { width: 0 }, layer: "below" }];
    made.annotations = [{ text: "collapse", xref: "paper", x: 0.01, y: COLLAPSED, yanchor: "top", xanchor: "left", showarrow: false, font: { color: colour("--bad") } }];
    made.yaxis.range = [0, 102];
  }

  /** Corruptions and severities, of those chosen, that every network with these data has: others cannot be compared. */
  function sharedPlaces() {
    const own = D.series.filter((s) => s.d === state.d && (s.c < 0) === state.clean);
    const networks = unique(own.map((s) => s.n)), each = new Map(networks.map((n) => [n, new Set()]));
    for (const s of own) each.get(s.n).add(`${s.c} ${s.v}`);
    const wanted = chosen().flatMap((c) => levels().map((v) => [c, v]));
    return { networks, places: wanted.filter(([c, v]) => networks.every((n) => each.get(n).has(`${c} ${v}`))) };
  }

  function byNetwork() {
    const { networks, places } = sharedPlaces();
    const traces = [], lacking = [];
    for (const r of rowsFor((row) => row.plain)) {
      const cells = networks.map((n) => places.map(([c, v]) => find(n, state.d, v, c, r)));
      const found = cells.map((own) => figure(own, state.pass));
      cells.forEach((own, i) => { if (!found[i] && own.some(Boolean)) lacking.push(`${D.rows[r].label} of ${cut(D.networks[networks[i]], 40)}`); });
      if (found.every((f) => f === null)) continue;
      traces.push({
        type: "bar", name: plain(D.rows[r].label), x: networks.map((_, i) => i), y: found.map((f) => f && shownValue(f.value)),
        error_y: bars(found), marker: { color: look(r).color },
      });
    }
    const missing = chosen().length * levels().length - places.length;
    const note = [missing ? `Over ${places.length} corruptions and severities that all networks have.` : "", left(lacking)].filter(Boolean).join(" ");
    return { traces, note, layout: { barmode: "group", yaxis: { ...percent(), rangemode: "tozero" }, xaxis: named(networks.map((n) => D.networks[n]), 24) } };
  }

  /** A corruption of those that some rows have here, or their mean. */
  function corruptionOf(own, change, rows) {
    const there = unique(here().filter((s) => rows.includes(s.r)).map((s) => s.c)).sort((a, b) => a - b);
    const title = (c) => (c < 0 ? "none" : D.corruptions[c].name);
    const options = [["mean", `mean of ${there.length}`], ...there.map((c) => [String(c), title(c)])];
    own.c = options.some(([key]) => key === own.c) ? own.c : "mean";
    return { list: own.c === "mean" ? there : [Number(own.c)], controls: there.length > 1 ? [select("Corruption", options, own.c, (c) => change({ c }))] : [] };
  }
  /** Seeds that all rows have in all places, so that points of a line differ in nothing else; if there are any. */
  function sharedSeeds(rows, list) {
    const each = rows.map((r) => cellsOf(r, list)).filter((cells) => cells.length && cells.every(Boolean)).flat().map((s) => s.s);
    const shared = each.length ? each[0].filter((seed) => each.every((own) => own.includes(seed))) : [];
    return shared.length ? shared : null;
  }
  /** Who adapts to a part has no online figure on all images. */
  const afterEpoch = () => (state.pass === ONLINE ? LAST : state.pass);
  const lineName = (row) => row.method + (row.protocol ? ` (${row.protocol})` : "");

  function subsets(kind) {
    const other = kind === "classes" ? "samples" : "classes";
    return (own, change) => {
      const parts = rowsFor((row) => row[kind] !== 1 && row[other] === 1 && !Object.keys(row.changes).length);
      const { list, controls } = corruptionOf(own, change, parts);
      const value = (r, only) => figure(cellsOf(r, list), afterEpoch(), only);
      const traces = [];
      for (const name of unique(parts.map((r) => lineName(D.rows[r])))) {
        const rows = rowsFor((row) => lineName(row) === name && row[other] === 1 && !Object.keys(row.changes).length);
        const seeds = sharedSeeds(rows, list);
        const points = rows.map((r) => [D.rows[r][kind], value(r, seeds), r]).filter(([, f]) => f).sort((a, b) => a[0] - b[0]);
        if (!points.length) continue;
        const last = points.at(-1)[2];
        traces.push({ name: plain(name), x: points.map(([x]) => x), y: points.map(([, f]) => shownValue(f.value)), error_y: bars(points.map(([, f]) => f)), mode: "lines+markers", line: { color: look(last).color }, marker: look(last) });
      }
      const source = rowsFor((row) => row.method === "source").find((r) => value(r));
      if (source !== undefined && traces.length) traces.push({ name: "source", x: [0, 1], y: [0, 1].map(() => shownValue(value(source).value)), mode: "lines", line: { color: look(source).color, dash: "dash" } });
      const note = state.pass === ONLINE ? "After the last epoch: online, only the part is measured." : "";
      return { traces, controls, note, layout: { yaxis: percent(), xaxis: { title: { text: `fraction of the ${kind} that was adapted to` }, range: [0, 1.03] } } };
    };
  }

  function kappas(own, change) {
    const only = (row) => row.classes === 1 && row.samples === 1;
    const changed = rowsFor((row) => only(row) && Object.keys(row.changes).join() === "kappa");
    const { list, controls } = corruptionOf(own, change, changed);
    const kappaOf = (row) => (row.plain ? row.kappa : Number(row.changes.kappa));
    const traces = [];
    const lines = unique(changed.map((r) => lineName(D.rows[r])));
    const rowsOf = (name) => rowsFor((row) => only(row) && lineName(row) === name && (row.plain || Object.keys(row.changes).join() === "kappa"));
    const values = unique(lines.flatMap((name) => rowsOf(name).map((r) => kappaOf(D.rows[r])))).filter((value) => value !== null).sort((a, b) => a - b);
    for (const name of lines) {
      const rows = rowsOf(name), first = D.rows[rows[0]];
      const without = rowsFor((row) => row.plain && row.method === `${first.method}-div` && row.protocol === first.protocol)[0];
      const seeds = sharedSeeds(without === undefined ? rows : [...rows, without], list);
      const value = (row) => (row === undefined ? null : figure(cellsOf(row, list), state.pass, seeds));
      const found = values.map((kappa) => value(rows.find((r) => kappaOf(D.rows[r]) === kappa))), none = value(without);
      const r = rows.find((row) => D.rows[row].plain) ?? rows[0], style = { name: plain(name), legendgroup: name, line: { color: look(r).color } };
      if (found.some(Boolean)) traces.push({ ...style, x: values.map((kappa) => `κ = ${kappa}`), y: found.map((f) => f && shownValue(f.value)), error_y: bars(found), mode: "lines+markers", marker: look(r) });
      if (none) traces.push({ ...style, x: ["no L_div"], y: [shownValue(none.value)], error_y: bars([none]), mode: "markers", showlegend: !found.some(Boolean), marker: { ...look(r), symbol: "circle-open", size: 9 } });
    }
    const order = [...values.map((kappa) => `κ = ${kappa}`), "no L_div"];
    return { traces, controls, layout: { yaxis: percent(), xaxis: { type: "category", categoryorder: "array", categoryarray: order } } };
  }

  // ---- one method on one corruption ------------------------------------------------------------------

  const focus = {};
  /** Before and after at one severity: of several, the highest. */
  function focused() {
    const level = levels().at(-1);
    const there = here().filter((s) => s.v === level && chosen().includes(s.c));
    const corruptions = unique(there.map((s) => s.c)), rows = unique(there.map((s) => s.r)).filter((r) => D.rows[r].method !== "source");
    if (!corruptions.includes(focus.c)) focus.c = corruptions[0];
    if (!rows.includes(focus.r)) focus.r = rows.find((r) => D.rows[r].method === "slr") ?? rows.at(-1);
    const controls = [select("Method", rows.map((r) => [String(r), D.rows[r].label]), String(focus.r), (r) => { focus.r = Number(r); redraw("closer"); })];
    if (!state.clean) controls.push(select("Corruption", corruptions.map((c) => [String(c), D.corruptions[c].name]), String(focus.c), (c) => { focus.c = Number(c); redraw("closer"); }));
    const at = (r) => find(state.n, state.d, level, focus.c, r);
    const source = rowsFor((row) => row.method === "source").find((r) => at(r));
    const note = levels().length > 1 ? `At severity ${level}.` : "";
    return { controls, note, before: source === undefined ? undefined : at(source), after: focus.r === undefined ? undefined : at(focus.r) };
  }
  const redraw = (group) => charts.filter((chart) => chart.group === group).forEach((chart) => { refresh(chart); });

  function histogram(sides, names) {
    const first = sides.find(([, side]) => side);
    if (!first) return { traces: [] };
    const many = first[1].sorted;
    const x = first[1].hist.map((_, i) => (many ? (100 * i) / (BARS - 1) : i));
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
      const traces = known.map(([name, side, shade]) => ({ type: "bar", name: plain(name), x: side.bins.map((b) => (100 * (b[0] + 0.5)) / BINS), y: side.bins.map((b) => b[1]), marker: { color: shade } }));
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
      addChart("charts-models", "Mean over the chosen corruptions and severities", byNetwork);
      addChart("charts-subsets", "A fraction of the classes", subsets("classes"));
      addChart("charts-subsets", "A fraction of the samples of each class", subsets("samples"));
      addChart("charts-kappa", "κ of the running class distribution, and no regulariser", kappas);
      addChart("charts-closer", "Predicted classes", () => { const own = focused(); return { ...histogram(sidesOf(own), D.names[state.d]), controls: own.controls, note: own.note }; });
      charts.at(-1).group = "closer";
      addChart("charts-closer", "Reliability", () => { const own = focused(); return { ...reliability(sidesOf(own)), controls: own.controls, note: own.note }; });
      charts.at(-1).group = "closer";
    }
    for (const run of D.unlabelled) {
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
    charts.forEach(refresh);
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
  document.addEventListener("keydown", (event) => {
    const open = byId("corruptions");
    if (event.key === "Escape" && open) open.open = false;
  });
  window.addEventListener("beforeprint", () => {
    if (!window.Plotly) loadPlotly();
    charts.filter((chart) => chart.stale).forEach((chart) => chart.show());
  });
  if (D.series.length) {
    const most = D.networks.map((_, n) => D.series.filter((s) => s.n === n).length);
    choose({ n: most.indexOf(Math.max(...most)) }); // the network with most to show
  }
  else draw();
  root.dataset.ready = "yes";
}
start().catch((error) => {
  document.documentElement.classList.remove("script"); // the tables are there without it
  throw error;
});
