// The script of all pages. Everything it does is asked for by `data-` attributes; without it, pages still work.
(() => {
  "use strict";

  const FRAGMENT = { "X-Evertick-Fragment": "1" };
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  // --- Fragments: change only what differs, so that focus, scrolling and open details stay ---

  const parse = (html) => {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  };

  const morph = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
      old.replaceWith(fresh);
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.nodeValue = fresh.nodeValue;
      return;
    }
    if (old === document.activeElement && "value" in old) return;
    if (old.nodeName === "DIALOG" && old.open) return; // somebody is about to use it
    if (old.type === "checkbox" && old.value !== fresh.value) old.checked = fresh.checked; // it is of another row now
    const keeps = (name) => fresh.hasAttribute(name) || (name === "open" && old.nodeName === "DETAILS");
    for (const { name } of [...old.attributes]) if (!keeps(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const olds = [...old.childNodes], freshes = [...fresh.childNodes];
    freshes.forEach((child, place) => (olds[place] ? morph(olds[place], child) : old.append(child)));
    olds.slice(freshes.length).forEach((child) => child.remove());
  };

  // Puts the elements of a fragment in the place of those with the same ids.
  const swap = (html) => {
    const before = $("[data-outdates-results]")?.dataset.outdatesResults;
    for (const fresh of $$("[id]", parse(html)).filter((each) => !each.parentElement?.closest("[id]"))) {
      const old = document.getElementById(fresh.id);
      if (old) morph(old, fresh);
    }
    refresh();
    if ($("[data-outdates-results]")?.dataset.outdatesResults !== before) showResults();
  };

  const get = async (url, options = {}) => {
    const response = await fetch(url, { ...options, headers: { ...FRAGMENT, ...options.headers } });
    if (response.status === 401) location.reload();
    return response;
  };

  // --- Times: relative, kept current, with the absolute ones of this browser's zone in their titles ---

  const UNITS = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  const duration = (seconds) => {
    const parts = [];
    for (const [size, unit] of UNITS) {
      if (seconds >= size) parts.push(Math.floor(seconds / size) + unit);
      seconds %= size;
    }
    return parts.slice(0, 2).join(" ");
  };
  const relative = (at) => {
    const left = Math.trunc((at - Date.now()) / 1000);
    return left === 0 ? "now" : left > 0 ? `in ${duration(left)}` : `${duration(-left)} ago`;
  };
  const localTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const showTimes = () => {
    for (const each of $$("time[data-relative]")) {
      const at = new Date(each.dateTime), text = relative(at);
      if (each.textContent !== text) each.textContent = text;
      const title = `${localTime.format(at)}\n${each.dateTime}`;
      if (each.title !== title) each.title = title;
    }
    for (const each of $$("time[data-local]")) each.textContent = localTime.format(new Date(each.dateTime));
  };

  // --- Live fragments: one stream for each, while the page is visible ---

  const streams = new Map();
  const startLive = () => {
    for (const element of $$("[data-live]")) {
      if (streams.has(element)) continue;
      const stream = new EventSource(element.dataset.live);
      stream.onmessage = ({ data }) => swap(data);
      stream.onerror = () => {
        // A response that is no stream, such as 401 or 429, ends it for good: try again later, as a page.
        if (stream.readyState !== EventSource.CLOSED) return;
        streams.delete(element);
        setTimeout(() => get(element.dataset.live, { method: "GET", signal: AbortSignal.timeout(2000) })
          .catch(() => {}).finally(startLiveIfVisible), 10000);
      };
      streams.set(element, stream);
    }
  };
  const stopLive = () => {
    for (const stream of streams.values()) stream.close();
    streams.clear();
  };
  const startLiveIfVisible = () => (document.hidden ? stopLive() : startLive());

  // --- Forms: filters that fetch as one types, previews ---

  const debounced = (work, milliseconds) => {
    let timer;
    return (...given) => {
      clearTimeout(timer);
      timer = setTimeout(() => work(...given), milliseconds);
    };
  };
  let asked = 0, results = location.href;
  const showResults = async (url = results) => {
    const number = ++asked;
    results = url; // before the answer is here: what outdates the results must not bring back the filter before
    const response = await get(url);
    const html = await response.text();
    if (number !== asked || !response.ok) return;
    const fresh = parse(html).querySelector("#results");
    if (fresh) morph($("#results"), fresh);
    history.replaceState(null, "", url);
    refresh();
  };
  const filterUrl = (form) => {
    const given = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
    const query = given.toString();
    return form.getAttribute("action") + (query ? `?${query}` : "");
  };
  const filter = debounced((form) => showResults(filterUrl(form)), 200);
  let previewed = 0;
  const preview = debounced(async (form) => {
    const number = ++previewed;
    const response = await get(form.dataset.preview, { method: "POST", body: new URLSearchParams(new FormData(form)) });
    const into = $(form.dataset.into), html = await response.text();
    if (!into || !response.ok || number !== previewed) return;
    into.replaceChildren(...parse(html).childNodes);
    refresh();
  }, 250);

  document.addEventListener("input", ({ target }) => {
    const form = target.form;
    if (form?.matches("[data-filter]")) filter(form);
    if (form?.matches("[data-preview]")) preview(form);
  });
  document.addEventListener("submit", (event) => {
    if (event.target.matches("[data-filter]")) {
      event.preventDefault();
      showResults(filterUrl(event.target));
    }
  });

  // --- Many rows: how many are selected ---

  const showSelected = () => {
    const form = $("[data-bulk]");
    if (!form) return;
    const boxes = $$("input[name=job_id]", form), count = boxes.filter((box) => box.checked).length;
    const isAll = Boolean($("input[name=all]", form)?.checked);
    $("[data-selected]", form).textContent = isAll ? "All that match:" : count ? `${count} selected:` : "None selected";
    for (const button of $$("button[name=action]", form)) button.disabled = !count && !isAll;
    const head = $("[data-select-all]", form);
    head.checked = count > 0 && count === boxes.length;
    head.indeterminate = count > 0 && count < boxes.length;
  };
  document.addEventListener("change", ({ target }) => {
    if (target.matches("[data-select-all]")) for (const box of $$("input[name=job_id]")) box.checked = target.checked;
    if (target.closest("[data-bulk]")) showSelected();
  });

  // --- Buttons ---

  const setTheme = () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme === "dark" || (root.dataset.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
    root.dataset.theme = isDark ? "light" : "dark";
    document.cookie = `evertick_theme=${root.dataset.theme}; path=${root.dataset.prefix || "/"}; max-age=31536000; samesite=lax`;
  };
  const toast = (text) => {
    const shown = document.createElement("p");
    shown.className = "toast";
    shown.textContent = text;
    $(".toasts")?.replaceChildren(shown);
    fadeToasts();
  };
  const fadeToasts = () => setTimeout(() => $(".toasts")?.replaceChildren(), 6000);

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button, [role=button], [data-copy]");
    if (!button) return;
    if (button.matches("[role=button]")) event.preventDefault(); // a link, which leads there without this script
    if (button.dataset.refresh) get(button.dataset.refresh).then((answer) => (answer.ok ? answer.text().then(swap) : null));
    if (button.dataset.confirm) document.getElementById(button.dataset.confirm)?.showModal();
    if ("close" in button.dataset) button.closest("dialog").close();
    if ("help" in button.dataset) $("#help").showModal();
    if ("themeToggle" in button.dataset) setTheme();
    if (button.dataset.toggle) {
      const isOpen = $(button.dataset.toggle).classList.toggle("is-open");
      button.setAttribute("aria-expanded", String(isOpen));
    }
    if (button.dataset.copy) {
      navigator.clipboard?.writeText($(button.dataset.copy).textContent.trim()).then(() => toast("Copied."));
    }
  });
  document.addEventListener("click", ({ target }) => {
    if (target instanceof HTMLDialogElement) target.close(); // on its backdrop
  });

  // --- Keyboard ---

  const rows = () => $$("[data-rows] > *").map((row) => $("a, button", row)).filter(Boolean);
  const move = (by) => {
    const all = rows();
    if (!all.length) return;
    const here = all.findIndex((each) => each.closest("[data-rows] > *").contains(document.activeElement));
    const next = here < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(here + by, 0), all.length - 1);
    all[next].focus();
    all[next].scrollIntoView({ block: "nearest" });
  };
  let isGoing = 0;
  const KEYS = {
    "/": () => {
      const field = $("[data-search]") ?? $("form[role=search] :is(input, select):not([type=hidden])");
      field?.focus();
      field?.select?.();
    },
    "?": () => $("#help")?.showModal(),
    j: () => move(1),
    k: () => move(-1),
    x: () => document.activeElement?.closest("[data-rows] > *")?.querySelector("input[type=checkbox]")?.click(),
    t: setTheme,
    g: () => { isGoing = Date.now(); },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === " " && event.target.matches("[role=button]")) {
      event.preventDefault();
      event.target.click();
    }
    const isTyping = event.target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]");
    if (event.key === "Escape" && isTyping) event.target.blur();
    if (isTyping || $("dialog[open]")) return;
    if (isGoing && Date.now() - isGoing < 1500) {
      isGoing = 0;
      const link = $(`[data-go="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    const act = KEYS[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  // --- Start ---

  const refresh = () => {
    showTimes();
    showSelected();
  };
  refresh();
  for (const form of $$("[data-preview-now]")) preview(form);
  for (const form of $$("[data-continue]")) setTimeout(() => form.requestSubmit(), 200);
  setInterval(showTimes, 1000);
  startLiveIfVisible();
  document.addEventListener("visibilitychange", startLiveIfVisible);
  addEventListener("pagehide", stopLive);
  addEventListener("pageshow", startLiveIfVisible);
  if ($(".toast")) fadeToasts();
})();
