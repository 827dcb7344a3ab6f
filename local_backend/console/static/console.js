// What every page does: theme, keys, copying, questions. Pages work with attributes, never with scripts of
// their own:
//   data-copy="text"            a button that copies
//   data-ask="question"         a form or button that asks first
//   data-dialog="id"            opens a dialog, which an hx-get of the same button fills; data-close closes it
//   data-theme-toggle           changes between light and dark
//   data-check-all="name"       checks all boxes of this name
//   data-names="id"             a field of files that fills the empty field of this id with their name
//   data-count="name"           shows how many boxes of this name are checked; data-least="2" disables a button of the
//                               same form below that number; {n} and {active} in data-ask are the numbers of checked
//                               boxes, and of those with data-active
"use strict";
(() => {
  // Shows times in the zone of the browser: <time datetime="…Z"> keeps the server's time in its title.
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const soon = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });

  function relative(seconds) {
    const size = Math.abs(seconds);
    if (size < 60) return soon.format(Math.round(seconds), "second");
    if (size < 3600) return soon.format(Math.round(seconds / 60), "minute");
    if (size < 86400) return soon.format(Math.round(seconds / 3600), "hour");
    return null;
  }

  function show(node) {
    const at = new Date(node.getAttribute("datetime"));
    if (Number.isNaN(at.getTime())) return;
    const exact = local.format(at);
    if (!node.dataset.server) node.dataset.server = node.title || node.textContent;
    const text = (node.dataset.near !== undefined && relative((at - Date.now()) / 1000)) || exact;
    if (node.textContent !== text) node.textContent = text;
    node.title = `${exact} · server: ${node.dataset.server}`;
  }

  const times = (root) => root.querySelectorAll("time[datetime]").forEach(show);

  // As the server shows numbers (rendering.py): 5 digits of fractions, and groups of 3 digits.
  function number(value) {
    const size = Math.abs(value), isWhole = Number.isInteger(value);
    if (!Number.isFinite(value)) return String(value);
    if (size >= 1e15 || (size < 1e-4 && !isWhole)) return Number(value.toPrecision(5)).toExponential();
    const [digits, rest] = String(isWhole ? value : Number(value.toPrecision(5))).split(".");
    return digits.replace(/\B(?=(\d{3})+$)/g, "\u202f") + (rest ? `.${rest}` : "");
  }

  function toast(text, bad) {
    const box = document.getElementById("toast");
    const note = document.createElement("div");
    note.className = bad ? "notice bad" : "notice";
    note.textContent = text;
    box.append(note);
    setTimeout(() => note.remove(), bad ? 12000 : 5000);
  }

  // Says that something is going on, if it takes a while (console.css).
  function late(box, text) {
    box.textContent = "";
    box.append(Object.assign(document.createElement("span"), { className: "late", textContent: text }));
  }

  function ask(question) {
    const box = document.getElementById("ask");
    box.querySelector("p").textContent = question;
    box.returnValue = "";
    box.showModal();
    return new Promise((resolve) => box.addEventListener("close", () => resolve(box.returnValue === "yes"), { once: true }));
  }

  document.addEventListener("click", (event) => {
    const node = event.target.closest("[data-copy],[data-dialog],[data-close],[data-theme-toggle],[data-check-all]");
    if (!node) return;
    if (node.dataset.copy !== undefined) {
      navigator.clipboard.writeText(node.dataset.copy).then(() => toast("Copied"), () => toast("The browser does not permit copying", true));
    } else if (node.dataset.dialog) {
      const dialog = document.getElementById(node.dataset.dialog);
      if (node.hasAttribute("hx-get")) late(dialog, "Loading…");
      dialog.showModal();
    } else if (node.dataset.close !== undefined) {
      node.closest("dialog").close();
    } else if (node.dataset.themeToggle !== undefined) {
      localStorage.setItem("dlicmd-theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
      dlicmdEarly.applyTheme();
    } else {
      for (const box of document.querySelectorAll(`input[type=checkbox][name="${CSS.escape(node.dataset.checkAll)}"]`)) {
        if (box.checked !== node.checked) { box.checked = node.checked; box.dispatchEvent(new Event("change", { bubbles: true })); }
      }
    }
  });

  // A picture that the browser cannot draw is said in a sentence.
  const drawn = (image) => {
    if (!image.matches?.("img[data-picture]") || !image.complete || image.naturalWidth) return;
    image.replaceWith(Object.assign(document.createElement("p"), { className: "soft small", textContent: "The browser cannot draw this picture. It may be damaged." }));
  };
  document.addEventListener("error", ({ target }) => drawn(target), true);
  for (const image of document.images) if (image.loading !== "lazy") drawn(image);

  // The list of files of a run marks the one that is shown.
  document.addEventListener("click", ({ target, ctrlKey, metaKey }) => {
    const link = target.closest(".files a");
    if (!link || ctrlKey || metaKey) return;
    link.closest(".files").querySelector("[aria-current]")?.removeAttribute("aria-current");
    link.setAttribute("aria-current", "true");
  });

  function counted(form, text) {
    const boxes = form.querySelectorAll("tbody input[type=checkbox]:checked");
    return text?.replace("{n}", boxes.length).replace("{active}", [...boxes].filter((box) => box.dataset.active !== undefined).length);
  }

  function count() {
    for (const node of document.querySelectorAll("[data-count]")) {
      const form = node.closest("form"), boxes = [...form.querySelectorAll(`input[type=checkbox][name="${CSS.escape(node.dataset.count)}"]`)];
      const checked = boxes.filter((box) => box.checked);
      node.textContent = checked.length;
      for (const button of form.querySelectorAll("[data-least]")) button.disabled = checked.length < button.dataset.least;
      for (const box of boxes) box.closest("tr")?.setAttribute("aria-selected", box.checked);
      const all = form.querySelector("[data-check-all]");
      if (all) { all.checked = boxes.length > 0 && checked.length === boxes.length; all.indeterminate = checked.length > 0 && !all.checked; }
    }
  }
  document.addEventListener("change", count);
  document.addEventListener("change", ({ target }) => {
    const field = document.getElementById(target.dataset.names ?? ""), [file] = target.files ?? [];
    if (!field || !file || field.value) return;
    const name = file.webkitRelativePath.split("/")[0] || file.name.replace(/(\.tar)?\.[^.]+$/, "");
    field.value = name.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[^A-Za-z0-9]+/, "");
  });

  // A form that is being sent is not sent again by a second click: until its answer, or until the page of the answer is
  // here. Uploads, and forms that htmx sends with hx-sync, have rules of their own.
  let sent = new WeakSet();
  const isOnce = (form) => form.method === "post" && form.dataset.upload === undefined && (!form.hasAttribute("hx-sync") || form.hasAttribute("hx-trigger"));
  const setSent = (form, is) => { sent[is ? "add" : "delete"](form); form.toggleAttribute("data-sent", is); };
  addEventListener("pageshow", () => {
    sent = new WeakSet();
    for (const form of document.querySelectorAll("form[data-sent]")) setSent(form, false);
  });
  document.addEventListener("htmx:finally:request", ({ detail: { ctx } }) => {
    const form = ctx.sourceElement;
    if (sent.has(form) && !form.hasAttribute("hx-trigger") && !ctx.hx?.redirect) setSent(form, false);
  });

  // The browser sends a form, if htmx does not, only if the server answers: its page for an error would replace what was
  // typed. The forms whose changes htmx sends are such forms.
  const byHtmx = (form) => form.matches("[hx-post],[hx-get]") && /\bsubmit\b/.test(form.getAttribute("hx-trigger") ?? "submit");
  const isPlain = (form) => form.hasAttribute("action") && form.dataset.upload === undefined && !byHtmx(form);
  const resend = (form, submitter, step) => {
    form.dataset.step = step;
    form.requestSubmit(submitter || undefined);
    delete form.dataset.step;
  };
  async function reach(form, submitter) {
    const answer = await fetch(document.querySelector("link[rel=icon]").href, { cache: "no-store" }).catch(() => null);
    setSent(form, false);
    if (answer) return resend(form, submitter, "reached");
    missed();
    toast("The server does not answer. Nothing was sent.", true);
  }

  // A question before a form is sent, also before htmx sends it.
  document.addEventListener("submit", (event) => {
    if (sent.has(event.target)) { event.preventDefault(); return event.stopImmediatePropagation(); }
    const { target, submitter } = event, { step } = target.dataset;
    const asked = !step && counted(target, submitter?.dataset.ask || target.dataset.ask);
    const isSent = !asked && (step === "reached" || !isPlain(target));
    if (!isSent) {
      event.preventDefault();
      event.stopImmediatePropagation();
    }
    if (asked) return ask(asked).then((yes) => { if (yes) resend(target, submitter, "asked"); });
    if (isOnce(target) || !isSent) setSent(target, true);
    if (!isSent) reach(target, submitter);
  }, true);

  // g and the key of a section open it; / goes to the search; ? shows the keys.
  let before = "";
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox]),select,textarea,[contenteditable],dialog")) return;
    const first = before;
    before = event.key === "g" ? "g" : "";
    if (first === "g") {
      const link = document.querySelector(`.nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
    } else if (event.key === "/") {
      const field = document.querySelector("[data-search]");
      if (field) { event.preventDefault(); field.focus(); }
    } else if (event.key === "?") {
      document.getElementById("keys").showModal();
    }
  });

  // A press ends the change of a text field. The answer to the change may move what is pressed, and the click would be
  // lost: so the change waits for the end of the press. While the list of a select is open, the page gets no pointerup.
  let isPress = false;
  document.addEventListener("pointerdown", ({ target }) => {
    isPress = !target.closest("select");
    setTimeout(() => { isPress = false; });
  }, true);
  document.addEventListener("change", (event) => {
    if (!isPress) return;
    event.stopImmediatePropagation();
    const ended = new AbortController(), told = () => event.target.dispatchEvent(new Event("change", { bubbles: true }));
    for (const name of ["pointerup", "pointercancel"]) {
      document.addEventListener(name, () => { ended.abort(); setTimeout(told); }, { capture: true, signal: ended.signal });
    }
  }, true);

  // A request of a form with rows replaces the one before it, and repeats its buttons that have no answer yet.
  const unanswered = new WeakMap();
  const rowsOf = ({ sourceElement, request }) => {
    const form = sourceElement.closest?.("form[data-rows]");
    return form?.getAttribute("hx-post") === request.action ? form : null;
  };
  document.addEventListener("htmx:config:request", ({ detail: { ctx } }) => {
    const form = rowsOf(ctx), { body } = ctx.request;
    if (!form) return;
    ctx.ops = [...(unanswered.get(form) ?? []), ...body.getAll("op")];
    unanswered.set(form, ctx.ops);
    body.delete("op");
    for (const op of ctx.ops) body.append("op", op);
  });
  document.addEventListener("htmx:after:request", ({ detail: { ctx } }) => {
    const form = rowsOf(ctx);
    if (form) unanswered.set(form, unanswered.get(form).slice(ctx.ops.length));
  });

  // A refused change is said in the sentence of the server. A part of a page that could not be read stays as it was.
  document.addEventListener("htmx:after:request", (event) => {
    const { ctx } = event.detail;
    const status = ctx?.response?.status ?? 0;
    if (status >= 400 && ctx.request.method !== "GET" && !(status < 410 && ctx.sourceElement.hasAttribute("hx-status:40x"))) {
      toast(ctx.text || `The server refused this (${status})`, true);
    }
  });
  // The page says that it shows an old state, until the server answers again.
  const lost = document.getElementById("lost");
  const missed = (status) => {
    lost.textContent = status === 401 ? "Your session has ended. Load the page again to log on." : "The server does not answer. This page shows its last state, and continues when the server answers again.";
    lost.hidden = false;
  };
  document.addEventListener("htmx:sse:error", ({ detail }) => missed(detail.status));
  document.addEventListener("htmx:error", ({ detail: { ctx } }) => {
    if (!ctx) return;
    missed();
    if (ctx.request.method !== "GET" && !rowsOf(ctx)) toast("The server did not answer. Before you repeat the change, check whether it was stored.", true);
  });
  for (const name of ["htmx:after:request", "htmx:sse:after:connection"]) document.addEventListener(name, () => { lost.hidden = true; });
  // A link that the browser cannot open would replace the last state by an error page.
  document.addEventListener("click", async (event) => {
    const link = event.target.closest("a[href]");
    if (lost.hidden || event.defaultPrevented || !link || link.hash || link.origin !== location.origin) return;
    if (link.target || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const answers = await fetch(link.href, { method: "HEAD" }).then(() => true, () => false);
    if (answers) location.assign(link.href);
    else toast("The server does not answer.", true);
  });
  // htmx-sse.js connects again after a stream has ended, but not after its first connection has failed.
  const tries = new WeakMap();
  document.addEventListener("htmx:finally:request", (event) => {
    const { ctx } = event.detail;
    const node = ctx.sourceElement, stream = node?.getAttribute?.("hx-sse:connect");
    const status = ctx.response?.status ?? 0;
    if (!stream || node._htmx?.sse || (status && status !== 429 && status < 500)) return;
    const before = tries.get(node) ?? 0;
    tries.set(node, before + 1);
    setTimeout(() => {
      if (node.isConnected && !node._htmx?.sse) htmx.ajax("GET", stream, { source: node });
    }, Math.min(60, 2 ** before) * 1000);
  });
  document.addEventListener("htmx:after:swap", () => { times(document); count(); });
  document.body.addEventListener("said", (event) => toast(event.detail.value ?? event.detail));
  const said = document.body?.dataset.said;
  if (said) toast(said);
  times(document);
  count();
  setInterval(() => { if (!document.hidden) times(document); }, 15000);
  globalThis.dlicmdConsole = { toast, late, ask, number };
})();
