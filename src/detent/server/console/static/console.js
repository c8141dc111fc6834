// The console's own script. Every page works without it: it keeps pages live, and adds keys.
"use strict";

(() => {
  const quiet = 500; // milliseconds between two refreshes of a page
  const poll = 5000; // how often a page asks that gets no stream
  const stale = 25000; // a stream that says nothing for so long is lost
  let source = null;
  let heard = 0;
  let rung = 0;
  let waiting = 0;
  let polling = 0;

  const say = (state, words) => {
    for (const mark of document.querySelectorAll("[data-pulse]")) {
      mark.dataset.pulse = state;
      mark.title = words;
      mark.firstElementChild.textContent = words;
    }
  };

  const ring = () => {
    waiting = 0;
    rung = Date.now();
    for (const part of document.querySelectorAll("[data-bell]")) {
      const still = part.matches(":hover") && part.dataset.bell === "still";
      if (!still) htmx.trigger(part, "bell");
    }
  };

  const changed = () => {
    if (!waiting) waiting = setTimeout(ring, Math.max(0, quiet - (Date.now() - rung)));
  };

  const close = () => {
    if (source) source.close();
    source = null;
    clearInterval(polling);
    polling = 0;
  };

  const listen = () => {
    close();
    if (document.hidden || !document.querySelector("[data-bell]")) return;
    source = new EventSource(document.body.dataset.live);
    heard = Date.now();
    source.onopen = () => {
      say("on", "Live");
      heard = Date.now();
      changed();
    };
    source.onmessage = (event) => {
      heard = Date.now();
      if (event.data === "changed") changed();
    };
    source.onerror = () => {
      say("off", "Not live: the server does not answer");
      if (source && source.readyState === EventSource.CLOSED) {
        close();
        polling = setInterval(changed, poll);
        setTimeout(listen, poll);
      }
    };
  };

  setInterval(() => {
    if (source && Date.now() - heard > stale) listen();
  }, poll);
  document.addEventListener("visibilitychange", listen);
  window.addEventListener("pagehide", close);

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      document.getElementById("find").focus();
    }
  });

  document.addEventListener("DOMContentLoaded", () => {
    const zone = document.querySelector("[data-zone]");
    if (zone && !zone.value) zone.placeholder = Intl.DateTimeFormat().resolvedOptions().timeZone;
    listen();
  });
})();
