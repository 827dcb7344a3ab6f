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
  const axes = new Set((localStorage.getItem("dlicmd-axes") || "").split(","));
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
  // Hides, or shows, the values behind a smoothed curve with it.
  const hideBoth = (u, at, { show }) => {
    if (show !== undefined && at != null && u.series[at + 1]?.class === "hidden") u.setSeries(at + 1, { show });
  };
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
      this.range = null;
      this.seen = false;
      this.plot = make("div", node, { class: "plot", tabindex: "0", role: "group", "aria-label": `${node.getAttribute("aria-label")}. Arrow keys show values, + and - zoom, Escape shows everything.` });
      this.details = make("details", node, { class: "small" });
      this.summary = make("summary", this.details, { text: "Values as a table" });
      this.table = make("div", this.details, { class: "scroll" });
      this.blank("Loading…", "late");
      this.said = make("div", node, { class: "visually-hidden", "aria-live": "polite" });
      this.details.addEventListener("toggle", () => this.tabulate());
      this.plot.addEventListener("keydown", (event) => this.key(event));
      for (const name of (node.dataset.live || "").split(",").filter(Boolean)) {
        document.body.addEventListener(name, () => { if (this.seen && node.isConnected && !document.hidden) this.load(); });
      }
      new ResizeObserver(() => { if (this.u) requestAnimationFrame(() => this.size()); }).observe(node);
      sight.observe(node);
    }

    url() {
      const found = new URL(this.node.dataset.chart, location.href);
      if (this.over("time")) found.searchParams.set("axis", "time");
      this.asked = Math.max(50, Math.round(this.node.clientWidth));
      found.searchParams.set("width", this.asked);
      if (this.range) { found.searchParams.set("from", this.range[0]); found.searchParams.set("to", this.range[1]); }
      return found;
    }

    // Whether the chart has this view now: "time" for its points, "log" for its values.
    over(axis) { return axes.has(axis) && this.node.dataset.axes !== undefined; }

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

    // Draws anew after another view was chosen. Parts of another axis are not comparable.
    change(axis) {
      if (axis === "time") {
        this.range = null;
        if (this.u || this.text) this.load();
      } else if (this.u) { this.draw(); }
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
      return JSON.stringify([data.x, data.y, ["x", "y"].map((of) => whole(data.series.map((one) => one[of]))), data.series.map((one) => [one.name, one.color, one.dash, one.step])]);
    }

    // The lines of each curve: its values, and the same not smoothed. A logarithmic axis has no place for values that are
    // not positive.
    joined() {
      const fits = this.log() ? (found) => found.map((y) => y > 0 ? y : null) : (found) => found;
      return uPlot.join(this.data.series.map((one) => this.smooths(one) ? [one.x, fits(smoothed(one.y)), fits(one.y)] : [one.x, fits(one.y)]));
    }

    smooths(one) { return smoothing > 0 && this.node.dataset.axes !== undefined && !one.step; }

    log() { return this.over("log") && this.data.series.some((one) => one.y.some((y) => y > 0)); }

    value(x) { return this.data.x.kind === "time" ? moments.format(new Date(x * 1000)) : number(x); }

    draw() {
      const hidden = new Set((this.u?.series || []).filter((one) => !one.show).map((one) => one.label));
      this.u?.destroy();
      this.plot.textContent = "";
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
      const series = [{ label: data.x.label || "x", value: (_, x) => x == null ? "–" : this.value(x) }];
      for (const [at, one] of data.series.entries()) {
        const stroke = color(`--c${one.color || at % 8 + 1}`);
        series.push({
          label: one.name, stroke, width: 1.5, dash: one.dash ? [6, 4] : undefined, spanGaps: true, show: !hidden.has(one.name),
          paths: one.step ? uPlot.paths.stepped({ align: 1 }) : undefined, points: { show: one.x.length < 60, size: 4, fill: stroke },
          value: (_, y) => y == null ? "–" : number(y),
        });
        if (this.smooths(one)) series.push({ label: one.name, class: "hidden", stroke: `${stroke}40`, width: 1, spanGaps: true, show: !hidden.has(one.name), points: { show: false } });
      }
      return {
        series,
        scales: { y: this.log() ? { distr: 3, range: (_, low, high) => low == null ? [1, 10] : uPlot.rangeLog(low, high, 10, false) } : data.y?.zero ? { range: (_, low, high) => uPlot.rangeNum(0, high || 1, .1, true) } : {}, x: { time: data.x.kind === "time", range: (u, low, high) => this.limits(low, u.data[0].length > 1 ? high : low) } },
        padding: [null, data.x.kind === "time" ? 36 : null, null, null],
        axes: [data.x.kind === "time" ? { ...axis, size: 50, space: 96, values: clock } : { ...axis, ...this.ticks("x"), size: 32, label: data.x.label }, { ...axis, ...this.ticks("y"), size: 60, label: data.y?.label || undefined }],
        // All charts over the same axis show the values under the pointer; only the one under it is zoomed.
        cursor: { sync: { key: data.x.label, scales: ["x", null], setSeries: false, filters: { pub: (event) => event === "mousemove" || event === "mouseleave" } }, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => { this.zoom(null); return null; } } },
        hooks: { setSelect: [(u) => this.selected(u)], setSeries: [hideBoth], draw: [(u) => this.marks(u)] },
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

    // The same values for readers who do not see the chart: at most ROWS rows, evenly chosen.
    tabulate() {
      if (!this.details.open || !this.data) return;
      const columns = uPlot.join(this.data.series.map((one) => [one.x, one.y]));
      const count = columns[0].length, every = Math.max(1, Math.ceil(count / ROWS));
      this.table.textContent = "";
      const table = make("table", this.table), head = make("tr", make("thead", table)), body = make("tbody", table);
      for (const name of [this.data.x.label || "x", ...this.data.series.map((one) => one.name)]) make("th", head, { class: "number", text: name, scope: "col" });
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

  function shown() {
    for (const node of document.querySelectorAll("button[data-axis]")) node.setAttribute("aria-pressed", axes.has(node.dataset.axis));
    for (const node of document.querySelectorAll("[data-smooth]")) node.nextElementSibling.value = node.value = smoothing;
  }

  function find() {
    shown();
    for (const node of document.querySelectorAll("[data-chart]")) if (!charts.has(node)) charts.set(node, new Chart(node));
  }
  document.addEventListener("theme", () => {
    for (const node of document.querySelectorAll("[data-chart]")) { const chart = charts.get(node); if (chart?.u) chart.draw(); }
  });
  document.addEventListener("click", (event) => {
    const axis = event.target.closest("button[data-axis]")?.dataset.axis;
    if (!axis) return;
    axes.has(axis) ? axes.delete(axis) : axes.add(axis);
    localStorage.setItem("dlicmd-axes", [...axes].join(","));
    shown();
    for (const node of document.querySelectorAll("[data-axes]")) charts.get(node)?.change(axis);
  });
  document.addEventListener("input", (event) => {
    if (event.target.dataset.smooth === undefined) return;
    smoothing = Number(event.target.value);
    event.target.nextElementSibling.value = smoothing;
    localStorage.setItem("dlicmd-smoothing", smoothing);
    for (const node of document.querySelectorAll("[data-axes]")) charts.get(node)?.change("smooth");
  });
  document.addEventListener("htmx:after:swap", find);
  find();
})();
