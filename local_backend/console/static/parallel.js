// Parallel coordinates (parts.html, macro parallel). Each line is an experiment of a search, or a run; its color says how
// good its value is. A range is chosen on an axis with the pointer, or with the keys: up and down move the upper end,
// with Shift the lower end, Escape gives the whole axis. The table shows the best experiments within all ranges. Below are
// points of the values over one parameter.
"use strict";
(() => {
  const NS = "http://www.w3.org/2000/svg", HEIGHT = 300, TOP = 44, BOTTOM = 14, SHOWN = 8, PAUSE = 5000, TICKS = 6;
  const make = (name, values, parent) => {
    const node = document.createElementNS(NS, name);
    for (const key in values) node.setAttribute(key, values[key]);
    parent?.append(node);
    return node;
  };
  const cell = (row, name, text) => { const node = document.createElement(name); node.textContent = text; row.append(node); return node; };
  const short = (value) => (typeof value === "number" ? String(Number(value.toPrecision(5))) : value == null ? "" : String(value));

  // Round numbers between two numbers: 1, 2 or 5 times a power of ten, or on a logarithmic axis powers of ten.
  function ticks(low, high, log) {
    const found = [], first = Math.ceil(Math.log10(low)), last = Math.floor(Math.log10(high));
    if (log && last > first) {
      const step = Math.ceil((last - first + 1) / TICKS);
      for (let power = first; power <= last; power += step) found.push(Number(`1e${power}`));
    } else {
      const size = (high - low) / TICKS, power = 10 ** Math.floor(Math.log10(size)), step = [1, 2, 5, 10].find((one) => one * power >= size) * power;
      for (let count = Math.ceil(low / step); count * step <= high; count++) found.push(count * step);
    }
    return found;
  }

  // An axis: `at` gives the place of a value from 0 (low) to 1, null for a missing value; `text` the value at a place;
  // `ticks` are values whose places are marked.
  function axis(name, values, log) {
    const known = values.filter((one) => one != null);
    if (known.every((one) => typeof one === "number") && new Set(known).size > 1) {
      const low = Math.min(...known), high = Math.max(...known), isLog = log && low > 0;
      const way = isLog ? Math.log : (x) => x, back = isLog ? Math.exp : (x) => x, a = way(low), b = way(high);
      return { name, at: (x) => (typeof x === "number" ? (way(x) - a) / (b - a) : null), text: (p) => short(back(a + p * (b - a))), low: short(low), high: short(high), ticks: ticks(low, high, isLog) };
    }
    const kinds = [...new Set(known.map(String))].sort();
    const last = Math.max(1, kinds.length - 1);
    return { name, at: (x) => (x == null ? null : kinds.length > 1 ? kinds.indexOf(String(x)) / last : 0.5), text: (p) => kinds[Math.round(p * last)] ?? kinds[0] ?? "", low: kinds[0] ?? "", high: kinds[kinds.length - 1] ?? "", kinds, ticks: kinds.length > TICKS + 2 ? [] : kinds.slice(1, -1) };
  }

  class Parallel {
    constructor(box) {
      this.box = box;
      this.what = box.dataset.what;
      this.ranges = new Map();
      this.reading = this.read();
      new ResizeObserver(() => { if (this.data && box.clientWidth !== this.width) this.draw(); }).observe(box);
      document.body.addEventListener("changed", () => {
        this.due ??= setTimeout(() => { this.due = null; if (!document.hidden) this.reading = this.reading.then(() => this.read()); }, PAUSE);
      });
    }

    async read() {
      const answer = await fetch(this.box.dataset.parallel, { headers: { "HX-Request": "true" } }).catch(() => null);
      const text = await answer?.text().catch(() => null);
      if (!answer?.ok || text == null) {
        if (!this.text) this.box.textContent = text || "The server does not answer.";
        return;
      }
      if (text === this.text) return;
      this.text = text;
      this.data = JSON.parse(text);
      if (this.data.lines.length) this.draw(); else this.box.textContent = `No ${this.what} has finished yet.`;
    }

    draw() {
      const { axes, lines, metric, maximize } = this.data, focused = document.activeElement?.dataset?.axis;
      this.axes = [...axes.map((one, i) => axis(one.name, lines.map((line) => line.at[i]), one.log)), axis(metric, lines.map((line) => line.value), false)];
      this.rows = lines.map((line) => ({ line, places: this.axes.map((one, i) => one.at(i < line.at.length ? line.at[i] : line.value)) }));
      this.rows.sort((a, b) => (maximize ? b.line.value - a.line.value : a.line.value - b.line.value));
      this.width = this.box.clientWidth;
      const wide = Math.max(this.width, this.axes.length * 84), gap = (wide - 120) / Math.max(1, this.axes.length - 1);
      this.x = (i) => 60 + i * gap;
      this.y = (p) => TOP + (1 - p) * (HEIGHT - TOP - BOTTOM);
      const svg = make("svg", { width: wide, height: HEIGHT, role: "group", "aria-label": `Parallel coordinates of ${lines.length} ${this.what}s` });
      const drawn = make("g", { fill: "none", "stroke-width": 1.5 }, svg);
      const count = this.rows.length;
      this.rows.forEach((row, rank) => {
        let path = "", pen = "M";
        row.places.forEach((p, i) => { if (p == null) pen = "M"; else { path += `${pen}${this.x(i).toFixed(1)} ${this.y(p).toFixed(1)}`; pen = "L"; } });
        row.node = make("path", { d: path }, null);
        row.node.style.stroke = `color-mix(in oklab, var(--c2) ${Math.round((100 * rank) / Math.max(1, count - 1))}%, var(--c1))`;
        drawn.prepend(row.node);
      });
      this.axes.forEach((one, i) => this.drawAxis(svg, one, i));
      const scroll = document.createElement("div");
      scroll.className = "scroll";
      scroll.append(svg);
      this.table = document.createElement("div");
      this.table.className = "scroll";
      this.said = document.createElement("p");
      this.said.className = "soft small";
      this.said.setAttribute("aria-live", "polite");
      this.box.replaceChildren(scroll, this.said, this.table, ...this.scatter());
      if (focused !== undefined) svg.querySelector(`[data-axis="${focused}"]`)?.focus();
      this.choose();
    }

    // A point for each line: a parameter across, the value up.
    scatter() {
      const names = this.axes.slice(0, -1).map((one) => one.name);
      if (!names.length) return [];
      const label = document.createElement("label"), select = document.createElement("select"), svg = make("svg", { width: this.width, height: HEIGHT, role: "group" });
      label.className = "inline";
      select.append(...names.map((name) => new Option(name, name, false, name === this.across)));
      select.addEventListener("change", () => { this.across = select.value; this.drawScatter(svg, select.selectedIndex); this.choose(); });
      label.append("Parameter of the points", select);
      this.drawScatter(svg, select.selectedIndex);
      return [label, svg];
    }

    drawScatter(svg, index) {
      const across = this.axes[index], up = this.axes.at(-1), left = 64, right = this.width - 24, foot = HEIGHT - 40, text = (words, values) => { make("text", values, svg).textContent = words; };
      const x = (p) => left + p * (right - left), y = (p) => 20 + (1 - p) * (foot - 20);
      svg.replaceChildren();
      svg.setAttribute("aria-label", `${up.name} by ${across.name} of ${this.rows.length} ${this.what}s. The table above has the numbers.`);
      make("path", { d: `M${left} 12V${foot + 8}H${right + 8}`, class: "axis", fill: "none" }, svg);
      for (const [p, words] of [[0, across.low], [1, across.high], ...across.ticks.map((tick) => [across.at(tick), short(tick)])]) {
        if (p === 0 || p === 1 || Math.min(p, 1 - p) * (right - left) > 48) text(words, { x: x(p), y: foot + 22, "text-anchor": "middle" });
      }
      for (const [p, words] of [[0, up.low], [1, up.high], ...up.ticks.map((tick) => [up.at(tick), short(tick)])]) {
        if (p === 0 || p === 1 || Math.min(p, 1 - p) * (foot - 20) > 14) text(words, { x: left - 6, y: y(p) + 4, "text-anchor": "end" });
      }
      text(across.name, { x: (left + right) / 2, y: HEIGHT - 2, "text-anchor": "middle", class: "name" });
      text(up.name, { x: 4, y: 10, class: "name" });
      for (const row of this.rows) {
        const { line, places } = row, link = places[index] == null || places.at(-1) == null ? null : make("a", line.run ? { href: `${this.box.dataset.runs}/${encodeURIComponent(line.run)}`, tabindex: -1 } : {}, svg);
        row.point = link && make("circle", { cx: x(places[index]), cy: y(places.at(-1)), r: 5 }, link);
        if (!row.point) continue;
        row.point.style.fill = row.node.style.stroke;
        make("title", {}, row.point).textContent = `${line.id}: ${across.name} ${short(line.at[index])}, ${up.name} ${short(line.value)}`;
      }
    }

    drawAxis(svg, one, i) {
      const x = this.x(i), group = make("g", { tabindex: 0, role: "slider", "data-axis": i, "aria-label": `Range of ${one.name}`, "aria-orientation": "vertical", "aria-valuemin": 0, "aria-valuemax": 100 }, svg);
      make("line", { x1: x, x2: x, y1: this.y(0), y2: this.y(1), class: "axis" }, group);
      for (const tick of one.ticks) {
        const y = this.y(one.at(tick));
        make("line", { x1: x - 3, x2: x + 3, y1: y, y2: y, class: "axis" }, group);
        if (Math.min(y - this.y(1), this.y(0) - y) > 8) make("text", { x: x + 6, y: y + 4, class: "tick" }, group).textContent = short(tick);
      }
      one.bar = make("rect", { x: x - 6, width: 12, class: "brush" }, group);
      const hit = make("rect", { x: x - 16, width: 32, y: TOP - 8, height: HEIGHT - TOP - BOTTOM + 16, fill: "transparent" }, group);
      const label = (text, y, kind) => { const node = make("text", { x, y, "text-anchor": "middle", class: kind }, group); node.textContent = text.length > 13 ? `${text.slice(0, 12)}…` : text; make("title", {}, node).textContent = text; };
      label(one.name, 14, "name");
      label(one.high, 32, "");
      label(one.low, HEIGHT - 1, "");
      const place = (event) => Math.min(1, Math.max(0, 1 - (event.clientY - svg.getBoundingClientRect().top - TOP) / (HEIGHT - TOP - BOTTOM)));
      let from = null;
      hit.addEventListener("pointerdown", (event) => { from = place(event); hit.setPointerCapture(event.pointerId); });
      hit.addEventListener("pointermove", (event) => { if (from !== null) this.range(one, Math.min(from, place(event)), Math.max(from, place(event))); });
      hit.addEventListener("pointerup", (event) => { if (from !== null && Math.abs(place(event) - from) < 0.02) this.range(one, 0, 1); from = null; });
      group.addEventListener("keydown", (event) => {
        const step = (one.kinds && one.kinds.length > 1 ? 1 / (one.kinds.length - 1) : 0.05) * ({ ArrowUp: 1, ArrowDown: -1 }[event.key] ?? 0);
        let [low, high] = this.ranges.get(one.name) ?? [0, 1];
        if (event.key === "Escape") [low, high] = [0, 1];
        else if (!step) return;
        else if (event.shiftKey) low = Math.min(high, Math.max(0, low + step));
        else high = Math.max(low, Math.min(1, high + step));
        event.preventDefault();
        this.range(one, low, high);
      });
      one.group = group;
    }

    range(one, low, high) {
      if (low <= 0 && high >= 1) this.ranges.delete(one.name);
      else this.ranges.set(one.name, [low, high]);
      this.choose();
    }

    choose() {
      for (const one of this.axes) {
        const [low, high] = this.ranges.get(one.name) ?? [0, 1];
        one.bar.setAttribute("y", this.y(high) - 2);
        one.bar.setAttribute("height", this.y(low) - this.y(high) + 4);
        one.bar.classList.toggle("chosen", this.ranges.has(one.name));
        one.group.setAttribute("aria-valuenow", Math.round(high * 100));
        one.group.setAttribute("aria-valuetext", `${one.text(low)} to ${one.text(high)}`);
      }
      const bounds = this.axes.map((one) => this.ranges.get(one.name));
      const chosen = this.rows.filter((row) => {
        const inside = bounds.every((bound, i) => !bound || (row.places[i] != null && row.places[i] >= bound[0] - 1e-9 && row.places[i] <= bound[1] + 1e-9));
        for (const node of [row.node, row.point]) node?.classList.toggle("out", !inside);
        return inside;
      });
      this.said.textContent = `${chosen.length} of ${this.rows.length} ${this.what}s are within the ranges${chosen.length > SHOWN ? `; the best ${SHOWN} are listed` : ""}.`;
      const table = document.createElement("table"), head = document.createElement("tr");
      for (const name of [this.what[0].toUpperCase() + this.what.slice(1), ...this.axes.map((one) => one.name)]) cell(head, "th", name).className = "number";
      table.createTHead().append(head);
      const body = table.createTBody();
      for (const { line } of chosen.slice(0, SHOWN)) {
        const row = body.insertRow(), first = cell(row, "td", line.run ? "" : line.id);
        if (line.run) { const link = document.createElement("a"); link.href = `${this.box.dataset.runs}/${encodeURIComponent(line.run)}`; link.textContent = line.id; first.append(link); }
        for (const value of [...line.at, line.value]) cell(row, "td", short(value));
        for (const one of row.cells) one.className = "number";
      }
      this.table.replaceChildren(table);
    }
  }

  for (const box of document.querySelectorAll("[data-parallel]")) {
    const seen = new IntersectionObserver((found) => { if (found.some((one) => one.isIntersecting)) { seen.disconnect(); new Parallel(box); } });
    seen.observe(box);
  }
})();
