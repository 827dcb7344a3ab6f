// The log of a run: a window of lines that moves over a file of any size. The server sends lines around an offset; the
// page keeps at most MOST of them, follows the end while it is in view, and searches on the server.
"use strict";
(() => {
  const box = document.getElementById("log");
  if (!box) return;
  const MOST = 3000, NEAR = 400;
  const place = document.getElementById("log-place"), found = document.getElementById("log-found");
  const state = { start: Number(box.dataset.start), end: Number(box.dataset.end), size: Number(box.dataset.size), follow: box.dataset.atEnd !== undefined };
  let busy = false, searching = 0;

  const get = async (what, query) => {
    const answer = await fetch(`${box.dataset.url}/${what}?${new URLSearchParams({ log: box.dataset.log, ...query })}`, { headers: { "HX-Request": "true" } })
      .catch(() => { throw new Error("The server does not answer."); });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  };
  const row = (line) => {
    const node = document.createElement("div");
    node.dataset.at = line.at;
    node.textContent = line.text;
    return node;
  };
  const last = () => box.scrollHeight - box.scrollTop - box.clientHeight < 8;

  function tell() {
    const share = state.size ? Math.round(100 * state.end / state.size) : 100;
    place.textContent = state.follow && state.end >= state.size ? (box.dataset.live !== undefined ? "At the end. New lines appear here" : "At the end") : `${share} % of ${(state.size / 1048576).toFixed(1)} MiB`;
  }

  function put(part) {
    box.replaceChildren(...part.lines.map(row));
    Object.assign(state, { start: part.start, end: part.end, size: part.size });
  }

  async function later() {
    const part = await get("window", { after: state.end });
    // The last line may have grown: it comes again, as a whole.
    while (box.lastChild && Number(box.lastChild.dataset?.at) >= part.start) box.lastChild.remove();
    box.append(...part.lines.map(row));
    Object.assign(state, { end: part.end, size: part.size });
    const surplus = [...box.children].slice(0, Math.max(0, box.children.length - MOST));
    if (surplus.length) {
      const height = box.scrollHeight, top = box.scrollTop;
      for (const node of surplus) node.remove();
      box.scrollTop = top - (height - box.scrollHeight);
    }
    state.start = Number(box.firstElementChild?.dataset.at ?? state.start);
    if (state.follow) box.scrollTop = box.scrollHeight;
  }

  async function earlier() {
    const part = await get("window", { before: state.start }), before = box.scrollHeight;
    box.prepend(...part.lines.map(row));
    box.scrollTop += box.scrollHeight - before;
    state.start = part.start;
    while (box.children.length > MOST) box.lastElementChild.remove();
    const end = box.lastElementChild;
    if (end && box.children.length >= MOST) { state.end = Number(end.dataset.at); end.remove(); }
  }

  async function once(work) {
    if (busy) return;
    busy = true;
    try { await work(); } catch (problem) { place.textContent = String(problem.message || problem).slice(0, 200); return; } finally { busy = false; }
    tell();
  }
  async function go(query, follow) {
    while (busy) await new Promise((done) => setTimeout(done, 20));
    await once(async () => {
      put(await get("window", query));
      state.follow = follow;
      box.scrollTop = follow ? box.scrollHeight : 0;
    });
  }

  box.addEventListener("scroll", () => {
    state.follow = last() && state.end >= state.size;
    if (box.scrollTop < NEAR && state.start > 0) once(earlier);
    else if (box.scrollHeight - box.scrollTop - box.clientHeight < NEAR && state.end < state.size) once(later);
    tell();
  });
  document.getElementById("log-first").addEventListener("click", () => go({ after: 0 }, false));
  document.getElementById("log-last").addEventListener("click", () => go({}, true));
  for (const name of ["changed", "tick"]) document.body.addEventListener(name, () => { if (state.follow && !document.hidden) once(later); });

  // The server searches for a bounded time per call; the page asks again until it reaches the end.
  document.getElementById("log-search").addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = event.target.elements.text.value, turn = ++searching;
    found.hidden = !text;
    found.textContent = "";
    if (!text) return;
    const said = document.createElement("p"), list = document.createElement("div"), more = document.createElement("button");
    list.className = "logs short";
    more.type = "button";
    more.textContent = "Continue the search";
    found.append(said, list, more);
    dlicmdConsole.late(said, "Searching…");
    let start = 0, count = 0;
    const step = async () => {
      more.hidden = true;
      const most = count + 100;
      while (start !== null && count < most && turn === searching) {
        let part;
        try { part = await get("search", { text, start }); } catch (problem) { said.textContent = String(problem.message).slice(0, 200); return; }
        for (const line of part.found) {
          const button = document.createElement("button");
          button.type = "button";
          button.className = "link";
          button.textContent = line.text || "(empty line)";
          button.addEventListener("click", () => go({ after: line.at }, false).then(() => box.focus()));
          list.append(button, document.createElement("br"));
          count += 1;
        }
        start = part.next;
        said.textContent = start === null ? `${count} ${count === 1 ? "line" : "lines"} found` : `${count} lines found, ${Math.round(100 * start / part.size)} % searched`;
      }
      if (turn === searching) more.hidden = start === null;
    };
    more.addEventListener("click", step);
    list.hidden = false;
    await step();
    list.hidden = count === 0;
  });
  if (state.follow) box.scrollTop = box.scrollHeight;
  tell();
})();
