// Draws the charts of a page: each element with data-chart="URL" when it comes into view. The server answers with only
// the points that are visible at the width of the chart (parts.html, macro chart). Drag to zoom: the server then answers
// with the points of this part. Double click, or Escape, shows everything again.
"use strict";
(() => {
  const ROWS = 200;
  const charts = new WeakMap();
  const { number } = dlicmdConsole;
  // Distances of ticks between whole numbers.
  const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();
  const whole = (lists) => lists.every((list) => list.every((one) => one == null || Number.isInteger(one)));
  // The horizontal axis of charts with data-axes: "step", "elapsed" or "time".
  let across = localStorage.getItem("dlicmd-across") || "step";
  // Metrics with a logarithmic axis; runs that are hidden in all charts of this tab.
  const logs = new Set(JSON.parse(localStorage.getItem("dlicmd-logs") || "[]")), unseen = new Set(JSON.parse(sessionStorage.getItem("dlicmd-unseen") || "[]"));
  const turn = (set, one) => set.delete(one) || set.add(one);
  const keep = (storage, name, set) => storage.setItem(name, JSON.stringify([...set]));
  // Weight of the earlier values in a smoothed value, from 0 (not smoothed) to 0.99.
  let smoothing = Number(localStorage.getItem("dlicmd-smoothing")) || 0;
  const moments = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "medium" });
  // Ticks of a time axis: the clock, and below it the day where it changes; of days and months, the date alone.
  const clocks = [[1, { minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 }], [60, { timeStyle: "medium", hourCycle: "h23" }],
    [86400, { timeStyle: "short", hourCycle: "h23" }], [Infinity, { dateStyle: "medium" }]].map(([below, form]) => [below, new Intl.DateTimeFormat(undefined, form)]);
  const days = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
  const clock = (_, found, _axis, _space, apart) => {
    const [below, form] = clocks.find(([most]) => apart < most);
    const seen = found.map((at) => days.format(at * 1000));
    return found.map((at, index) => form.format(at * 1000) + (below < Infinity && seen[index] !== seen[index - 1] ? `\n${seen[index]}` : ""));
  };
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Exponential moving averages of values. The first ones are not drawn towards 0.
  const smoothed = (values) => {
    let sum = 0, weight = 0;
    return values.map((y) => {
      if (y == null) return y;
      sum = smoothing * sum + y;
      weight = smoothing * weight + 1;
      return sum / weight;
    });
  };
  // Hides, or shows, the lines that belong to a curve with it.
  const hideAll = (u, at, { show }) => {
    if (show === undefined || at == null || u.series[at].class === "hidden") return;
    for (let next = at + 1; u.series[next]?.class === "hidden"; next++) u.setSeries(next, { show });
  };
  const save = (blob, name) => {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name.replace(/[^\p{L}\p{N}._-]+/gu, "-") });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href));
  };
  // A cell of a CSV file, which no spreadsheet computes as a formula.
  const cell = (value) => typeof value === "string" ? `"${/^[=+\-@\t\r]/.test(value) ? "'" : ""}${value.replaceAll('"', '""')}"` : value ?? "";
  const make = (kind, parent, attributes = {}) => {
    const node = document.createElement(kind);
    for (const [name, value] of Object.entries(attributes)) name === "text" ? (node.textContent = value) : node.setAttribute(name, value);
    parent.append(node);
    return node;
  };

  class Chart {
    constructor(node) {
      this.node = node;
      this.data = null;
      this.text = "";
      this.name = node.getAttribute("aria-label");
      this.range = null;
      this.seen = false;
      this.plot = make("div", node, { class: "plot", tabindex: "0", role: "group", "aria-label": `${this.name}. Arrow keys show values, + and - zoom, Escape shows everything.` });
      this.details = make("details", node, { class: "small" });
      this.summary = make("summary", this.details, { text: "Values as a table" });
      this.table = make("div", this.details, { class: "scroll" });
      this.tools = make("div", node, { class: "tools row small" });
      if (node.dataset.axes !== undefined) this.tool("Log scale", `Log scale: ${this.name}`, () => { turn(logs, this.name); keep(localStorage, "dlicmd-logs", logs); redraw(); });
      this.tool("PNG", `Save ${this.name} as PNG`, () => this.png());
      this.tool("CSV", `Save the values of ${this.name} as CSV`, () => this.csv());
      this.blank("Loading…", "late");
      this.said = make("div", node, { class: "visually-hidden", "aria-live": "polite" });
      this.details.addEventListener("toggle", () => this.tabulate());
      this.plot.addEventListener("keydown", (event) => this.key(event));
      for (const name of (node.dataset.live || "").split(",").filter(Boolean)) {
        document.body.addEventListener(name, () => { if (this.seen && node.isConnected && !document.hidden && Date.now() >= this.due) this.load(); });
      }
      new ResizeObserver(() => { if (this.u) requestAnimationFrame(() => this.size()); }).observe(node);
      sight.observe(node);
    }

    tool(text, label, act) {
      make("button", this.tools, { type: "button", class: "link", text, "aria-label": label }).addEventListener("click", act);
    }

    url() {
      const found = new URL(this.node.dataset.chart, location.href);
      if (this.node.dataset.axes !== undefined && across !== "step") found.searchParams.set("axis", across);
      this.asked = Math.max(50, Math.round(this.node.clientWidth));
      found.searchParams.set("width", this.asked);
      if (this.range) { found.searchParams.set("from", this.range[0]); found.searchParams.set("to", this.range[1]); }
      return found;
    }

    async load() {
      if (this.busy) { this.again = true; return; }
      this.busy = true;
      try {
        do {
          this.again = false;
          await this.fetched();
        } while (this.again);
      } finally { this.busy = false; }
    }

    async fetched() {
      this.due = Date.now() + 1000 * (this.node.dataset.pause ?? 0);
      let answer;
      try {
        answer = await fetch(this.url(), { headers: { "HX-Request": "true" }, credentials: "same-origin" });
      } catch { return this.blank("The server does not answer."); }
      const text = await answer.text();
      if (!answer.ok) return this.blank(text.slice(0, 300));
      if (text === this.text) return;
      this.text = text;
      this.show(JSON.parse(text));
    }

    // Draws another axis. Parts of the one before are not comparable.
    turn() {
      this.range = null;
      if (this.u || this.text) this.load();
    }

    // Says why there is no chart. A chart that is there stays.
    blank(sentence, kind = "") {
      if (this.u) return;
      this.plot.textContent = "";
      make("p", this.plot, { class: `soft small ${kind}`, text: sentence });
    }

    show(data) {
      const same = this.u && this.shape(data) === this.shape(this.data);
      this.data = data;
      this.summary.textContent = `Values as a table${data.left ? `; not finite and not drawn: ${number(data.left)}` : ""}`;
      if (!data.series.some((one) => one.x.length)) {
        this.u?.destroy();
        this.u = null;
        return this.blank("No values yet.");
      }
      if (same) this.u.setData(this.joined()); else this.draw();
      this.tabulate();
    }

    shape(data) {
      return JSON.stringify([data.x, data.y, ["x", "y"].map((of) => whole(data.series.map((one) => one[of]))), data.series.map((one) => [one.name, one.color, one.dash, one.step, !one.low])]);
    }

    // The lines of each curve: its values, then the ends of its band or, if it is smoothed, the same values not smoothed. A
    // logarithmic axis has no place for values that are not positive.
    joined() {
      const fits = this.log() ? (found) => found.map((y) => y > 0 ? y : null) : (found) => found;
      return uPlot.join(this.data.series.map((one) => {
        const smooth = this.smooths(one) ? smoothed : (found) => found;
        const more = one.low ? [smooth(one.low), smooth(one.high)] : this.smooths(one) ? [one.y] : [];
        return [one.x, ...[smooth(one.y), ...more].map(fits)];
      }));
    }

    smooths(one) { return smoothing > 0 && this.node.dataset.axes !== undefined && !one.step; }

    log() { return this.node.dataset.axes !== undefined && logs.has(this.name) && this.data.series.some((one) => one.y.some((y) => y > 0)); }

    value(x) { return this.data.x.kind === "time" ? moments.format(new Date(x * 1000)) : number(x); }

    draw() {
      const hidden = new Set([...(this.u?.series || []).filter((one) => !one.show && !unseen.has(one.run)).map((one) => one.label), ...this.data.series.filter((one) => unseen.has(one.run)).map((one) => one.name)]);
      this.u?.destroy();
      this.plot.textContent = "";
      if (this.node.dataset.axes !== undefined) this.tools.firstChild.setAttribute("aria-pressed", logs.has(this.name));
      const options = { ...this.options(hidden), ...this.extent(150) };
      this.u = new uPlot(options, this.joined(), this.plot);
      for (const [at, head] of [...this.plot.querySelectorAll(".u-legend .u-series th")].entries()) {
        if (at === 0) continue;
        head.title = head.textContent;
        head.tabIndex = 0;
        head.setAttribute("role", "button");
        head.addEventListener("keydown", (event) => {
          if (event.key === "Enter" || event.key === " ") { event.preventDefault(); event.stopPropagation(); head.click(); }
        });
      }
      this.size();
    }

    options(hidden) {
      const { data } = this;
      const soft = color("--soft"), line = color("--line");
      const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 18 };
      const bands = [], series = [{ label: data.x.label || "x", value: (_, x) => x == null ? "–" : this.value(x) }];
      for (const [at, one] of data.series.entries()) {
        const stroke = color(`--c${one.color || at % 8 + 1}`);
        series.push({
          label: one.name, run: one.run, stroke, width: 1.5, dash: one.dash ? [6, 4] : undefined, spanGaps: true, show: !hidden.has(one.name),
          paths: one.step ? uPlot.paths.stepped({ align: 1 }) : undefined, points: { show: one.x.length < 60, size: 4, fill: stroke },
          value: (_, y) => y == null ? "–" : number(y),
        });
        const more = { label: one.name, class: "hidden", stroke: `${stroke}40`, width: 1, spanGaps: true, show: !hidden.has(one.name), points: { show: false } };
        if (one.low) {
          series.push({ ...more, width: 0 }, { ...more, width: 0 });
          bands.push({ series: [series.length - 1, series.length - 2], fill: `${stroke}30` });
        } else if (this.smooths(one)) { series.push(more); }
      }
      return {
        series, bands,
        scales: { y: this.log() ? { distr: 3, range: (_, low, high) => low == null ? [1, 10] : uPlot.rangeLog(low, high, 10, false) } : data.y?.zero ? { range: (_, low, high) => uPlot.rangeNum(0, high || 1, .1, true) } : {}, x: { time: data.x.kind === "time", range: (u, low, high) => this.limits(low, u.data[0].length > 1 ? high : low) } },
        padding: [null, data.x.kind === "time" ? 36 : null, null, null],
        axes: [data.x.kind === "time" ? { ...axis, size: 50, space: 96, values: clock } : { ...axis, ...this.ticks("x"), size: 32, label: data.x.label }, { ...axis, ...this.ticks("y"), size: 60, label: data.y?.label || undefined }],
        // All charts over the same axis show the values under the pointer; only the one under it is zoomed.
        cursor: { sync: { key: data.x.label, scales: ["x", null], setSeries: false, filters: { pub: (event) => event === "mousemove" || event === "mouseleave" } }, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => { this.zoom(null); return null; } } },
        hooks: { setSelect: [(u) => this.selected(u)], setSeries: [hideAll], draw: [(u) => this.marks(u)] },
      };
    }

    // Ticks of values that are all whole numbers, such as slots, are whole numbers.
    ticks(of) {
      const values = (_, found) => found.map((one) => one == null ? "" : number(one));
      return whole(this.data.series.map((one) => one[of])) ? { values, incrs: WHOLE } : { values };
    }

    // Around a single time, uPlot would show years.
    limits(low, high) {
      if (this.range) return this.range;
      if (low == null) return [0, 1];
      return low === high ? [low - 1, high + 1] : [low, high];
    }

    selected(u) {
      if (u.select.width < 4) return;
      const from = u.posToVal(u.select.left, "x"), to = u.posToVal(u.select.left + u.select.width, "x");
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      this.zoom([from, to]);
    }

    // Shows a part of the chart at once with the points that are here, then with those of the server.
    zoom(range) {
      if (!this.range) this.whole = [this.u.scales.x.min, this.u.scales.x.max];
      this.range = range;
      this.u.setData(this.u.data);
      this.load();
    }

    marks(u) {
      const { ctx, bbox } = u, unit = devicePixelRatio || 1;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      ctx.strokeStyle = ctx.fillStyle = color("--waits");
      ctx.lineWidth = unit;
      ctx.setLineDash([4 * unit, 4 * unit]);
      ctx.font = `${11 * unit}px system-ui, sans-serif`;
      ctx.textBaseline = "top";
      const ends = [0, 0, 0];
      for (const mark of this.data.marks || []) {
        const at = u.valToPos(mark.x, "x", true), size = ctx.measureText(mark.text).width;
        if (at < bbox.left || at > bbox.left + bbox.width) continue;
        ctx.beginPath();
        ctx.moveTo(at, bbox.top);
        ctx.lineTo(at, bbox.top + bbox.height);
        ctx.stroke();
        const left = at + size + 8 * unit > bbox.left + bbox.width ? at - size - 4 * unit : at + 4 * unit;
        const row = ends.findIndex((end) => end < left);
        if (row < 0) continue;
        ends[row] = left + size + 4 * unit;
        ctx.fillText(mark.text, left, bbox.top + (2 + row * 13) * unit);
      }
      ctx.restore();
    }

    // The element keeps its height: what the legend needs, the chart gives.
    extent(height) { return { width: Math.max(50, this.node.clientWidth), height }; }

    size() {
      if (!this.u || !this.node.clientWidth) return;
      const legend = this.plot.querySelector(".u-legend");
      const height = Math.max(120, this.plot.clientHeight - (legend ? legend.offsetHeight : 0));
      if (this.u.width !== this.node.clientWidth || this.u.height !== height) this.u.setSize(this.extent(height));
      if (Math.abs(this.node.clientWidth - this.asked) > this.asked / 4) this.load();
    }

    key(event) {
      const { u } = this;
      if (!u || event.target !== this.plot) return;
      const xs = u.data[0], last = xs.length - 1, { min, max } = u.scales.x;
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
      if (move !== undefined) {
        const at = Math.min(last, Math.max(0, (u.cursor.idx ?? (move > 0 ? -1 : last + 1)) + move));
        u.setCursor({ left: u.valToPos(xs[at], "x"), top: u.over.clientHeight / 2 });
        this.said.textContent = [`${u.series[0].label} ${this.value(xs[at])}`, ...u.series.slice(1).map((one, number) => [one, u.data[number + 1][at]])
          .filter(([one, y]) => one.show && y != null && one.class !== "hidden").map(([one, y]) => `${one.label} ${number(y)}`)].join(", ");
      } else if (event.key === "+" || event.key === "-") {
        if (event.key === "-" && !this.range) return;
        const middle = u.cursor.idx == null ? (min + max) / 2 : xs[u.cursor.idx], half = (max - min) * (event.key === "+" ? .25 : 1);
        const whole = this.range ? this.whole : [min, max];
        const from = Math.max(whole[0], middle - half), to = Math.min(whole[1], middle + half);
        this.zoom(from <= whole[0] && to >= whole[1] ? null : [from, to]);
      } else if (event.key === "Escape" && this.range) {
        this.zoom(null);
      } else { return; }
      event.preventDefault();
    }

    // The names and the values of the columns of a table.
    columns() {
      const named = ({ name, low }) => low ? ["mean", "low", "high"].map((end) => `${name}: ${end}`) : [name];
      const of = (one) => one.low ? [one.x, one.y, one.low, one.high] : [one.x, one.y];
      const { x, series } = this.data;
      return [[x.label || "x", ...series.flatMap(named)], uPlot.join(series.map(of))];
    }

    // Hides, or shows, a run as the eye beside its name says.
    eye() {
      this.u?.series.forEach((one, at) => { if (one.run && one.show === unseen.has(one.run)) this.u.setSeries(at, { show: !one.show }); });
    }

    // Saves the chart as it is drawn, with its title and the names of the visible curves below.
    png() {
      if (!this.u) return;
      const from = this.u.ctx.canvas, unit = devicePixelRatio || 1, row = 18 * unit, top = 30 * unit, shown = this.u.series.slice(1).filter((one) => one.show && one.class !== "hidden");
      const canvas = Object.assign(document.createElement("canvas"), { width: from.width, height: from.height + top + row * (shown.length + .5) }), ctx = canvas.getContext("2d");
      const text = (words, x, y, font) => { ctx.font = `${font} system-ui, sans-serif`; ctx.fillStyle = color("--text"); ctx.fillText(words, x, y); };
      ctx.fillStyle = color("--surface");
      ctx.fillRect(0, 0, canvas.width, canvas.height);
      text(this.name, 8 * unit, 20 * unit, `600 ${15 * unit}px`);
      ctx.drawImage(from, 0, top);
      for (const [at, one] of shown.entries()) {
        const y = top + from.height + row * (at + .75);
        ctx.fillStyle = one._stroke ?? one.stroke();
        ctx.fillRect(8 * unit, y - 5 * unit, 16 * unit, 3 * unit);
        text(one.label, 32 * unit, y, `${12 * unit}px`);
      }
      canvas.toBlob((blob) => save(blob, `${this.name}.png`));
    }

    // Saves the points that are drawn, also those of hidden curves.
    csv() {
      if (!this.data) return;
      const [names, columns] = this.columns(), moment = (x) => this.data.x.kind === "time" ? new Date(x * 1000).toISOString() : x;
      const rows = Array.from(columns[0], (x, at) => [moment(x), ...columns.slice(1).map((one) => one[at])]);
      save(new Blob([[names, ...rows].map((row) => `${row.map(cell).join()}\r\n`).join("")], { type: "text/csv" }), `${this.name}.csv`);
    }

    // The same values for readers who do not see the chart: at most ROWS rows, evenly chosen.
    tabulate() {
      if (!this.details.open || !this.data) return;
      const [names, columns] = this.columns();
      const count = columns[0].length, every = Math.max(1, Math.ceil(count / ROWS));
      this.table.textContent = "";
      const table = make("table", this.table), head = make("tr", make("thead", table)), body = make("tbody", table);
      for (const name of names) make("th", head, { class: "number", text: name, scope: "col" });
      for (let at = 0; at < count; at += at + every >= count && at < count - 1 ? count - 1 - at : every) {
        const row = make("tr", body);
        make("td", row, { class: "number", text: this.value(columns[0][at]) });
        for (const column of columns.slice(1)) make("td", row, { class: "number", text: column[at] == null ? "" : number(column[at]) });
      }
      for (const mark of this.data.marks || []) make("p", this.table, { text: `${this.data.x.label || "x"} ${this.value(mark.x)}: ${mark.text}` });
    }
  }

  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = charts.get(entry.target);
      if (entry.isIntersecting && !chart.seen) chart.load();
      chart.seen = entry.isIntersecting;
    }
  }, { rootMargin: "200px" });

  const all = (act) => { for (const node of document.querySelectorAll("[data-chart]")) { const chart = charts.get(node); if (chart) act(chart); } };
  const redraw = () => all((chart) => { if (chart.u) chart.draw(); });

  function shown() {
    for (const node of document.querySelectorAll("[data-across]")) node.value = across;
    for (const node of document.querySelectorAll("[data-smooth]")) node.nextElementSibling.value = node.value = smoothing;
    for (const node of document.querySelectorAll("[data-eye]")) node.setAttribute("aria-pressed", !unseen.has(node.dataset.eye));
    for (const node of document.querySelectorAll("[data-eyes]")) node.hidden = !document.querySelector("[data-eye][aria-pressed=false]");
  }

  function find() {
    shown();
    narrow();
    for (const node of document.querySelectorAll("[data-chart]")) if (!charts.has(node)) charts.set(node, new Chart(node));
  }
  document.addEventListener("theme", redraw);
  document.addEventListener("click", ({ target }) => {
    const eye = target.closest("button[data-eye]")?.dataset.eye;
    if (eye) turn(unseen, eye);
    else if (target.dataset.eyes !== undefined) unseen.clear();
    else return;
    keep(sessionStorage, "dlicmd-unseen", unseen);
    shown();
    all((chart) => chart.eye());
  });
  document.addEventListener("change", ({ target }) => {
    if (target.dataset.across === undefined) return;
    across = target.value;
    localStorage.setItem("dlicmd-across", across);
    all((chart) => { if (chart.node.dataset.axes !== undefined) chart.turn(); });
  });
  // Shows the charts whose names contain the text of a field.
  function narrow() {
    const text = document.querySelector("[data-narrow]")?.value.toLowerCase() ?? "";
    for (const node of document.querySelectorAll("[data-axes]")) node.closest("section").hidden = !node.getAttribute("aria-label").toLowerCase().includes(text);
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target.dataset.narrow !== undefined) event.preventDefault(); });
  document.addEventListener("input", (event) => {
    if (event.target.dataset.narrow !== undefined) narrow();
    if (event.target.dataset.smooth === undefined) return;
    smoothing = Number(event.target.value);
    event.target.nextElementSibling.value = smoothing;
    localStorage.setItem("dlicmd-smoothing", smoothing);
    redraw();
  });
  document.addEventListener("htmx:after:swap", find);
  find();
})();
