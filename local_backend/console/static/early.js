// Runs before the page is drawn, so that a dark page never flashes white.
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
  globalThis.dlicmdEarly = { applyTheme };
})();
