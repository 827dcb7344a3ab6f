// Sends the form with data-upload, and shows its progress: fetch cannot tell how much of a body it has sent. A page has
// one such form; data-upload="id" with hx-swap is the part of the page that gets an answer without a redirect.
"use strict";
(() => {
  const size = (bytes) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (bytes >= 1024 && at < units.length - 1) { bytes /= 1024; at += 1; }
    return `${at ? bytes.toFixed(1) : bytes} ${units[at]}`;
  };

  function send(form, button) {
    const said = document.querySelector("[data-said]"), bar = said.parentNode.querySelector("progress"), cancel = document.querySelector("[data-cancel]");
    const say = (text, bad) => { said.textContent = text; said.className = bad ? "small bad" : "small"; };
    const files = [...form.elements].flatMap((one) => [...(one.files ?? [])]);
    const total = files.reduce((sum, file) => sum + file.size, 0);
    if (!files.length && form.dataset.mostFiles) return say("Choose files or a folder first.", true);
    if (files.length > form.dataset.mostFiles) return say(`These are ${files.length} files. At most ${form.dataset.mostFiles} files can be uploaded at once.`, true);
    if (total > form.dataset.most) return say(`These files have ${size(total)}. At most ${size(form.dataset.most)} can be uploaded at once.`, true);

    const call = new XMLHttpRequest();
    const busy = (is) => { button.disabled = is; cancel.hidden = bar.hidden = !is; };
    const leaving = (event) => event.preventDefault();
    cancel.onclick = () => call.abort();
    call.upload.onprogress = (event) => {
      bar.value = event.total ? event.loaded / event.total : 1;
      say(event.loaded < event.total ? `${size(event.loaded)} of ${size(event.total)}` : "The server stores the files…");
    };
    call.onload = () => {
      const to = call.getResponseHeader("HX-Redirect");
      removeEventListener("beforeunload", leaving);
      if (to) return location.assign(to);
      if (call.status === 200) return htmx.swap({ target: `#${form.dataset.upload}`, text: call.responseText, swap: form.getAttribute("hx-swap") });
      say(call.responseText.slice(0, 500) || `The server refused this (${call.status})`, true);
    };
    call.onerror = () => say("The connection to the server was lost. Nothing was stored, unless the upload was complete.", true);
    call.onabort = () => say("Canceled. Nothing was stored.");
    call.onloadend = () => { busy(false); removeEventListener("beforeunload", leaving); };
    addEventListener("beforeunload", leaving);
    busy(true);
    say(`0 B of ${size(total)}`);
    call.open("POST", form.action);
    for (const [name, value] of Object.entries(JSON.parse(document.body.getAttribute("hx-headers:inherited")))) call.setRequestHeader(name, value);
    call.setRequestHeader("HX-Request", "true");
    call.send(new FormData(form));
  }

  document.addEventListener("submit", (event) => {
    if (event.target.dataset.upload === undefined) return;
    event.preventDefault();
    send(event.target, event.submitter);
  });
})();
