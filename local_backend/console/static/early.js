// Runs before the page is drawn, so that a dark page never flashes white, and that nothing moves when a time changes to
// the zone of the browser: <time datetime="…Z"> keeps the server's time in its title.
"use strict";
(() => {
  const wanted = localStorage.getItem("dlicmd-theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const applyTheme = () => {
    const chosen = localStorage.getItem("dlicmd-theme");
    document.documentElement.dataset.theme = chosen || (dark.matches ? "dark" : "light");
    document.dispatchEvent(new CustomEvent("theme"));
  };
  if (wanted !== null && wanted !== "light" && wanted !== "dark") localStorage.removeItem("dlicmd-theme");
  dark.addEventListener("change", applyTheme);
  applyTheme();

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

  // The callback runs before the drawing, with what the parser or htmx changed. The parser can add the text of a time in
  // pieces, and after this script has replaced the first piece: it then writes into the text that is there.
  const drawn = new MutationObserver((found) => {
    const nodes = new Set(found.flatMap(({ target, addedNodes }) => [target, target.parentNode, ...addedNodes]));
    for (const node of nodes) {
      if (node?.nodeName === "TIME" && node.dateTime) show(node);
    }
  });
  drawn.observe(document, { childList: true, characterData: true, subtree: true });
  globalThis.dlicmdEarly = { applyTheme, times };
})();
