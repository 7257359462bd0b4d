// What the page can do without this file it does without it: this adds the copy buttons, and the page that renews itself in place.
"use strict";
(() => {
  const say = (text) => { document.getElementById("news").textContent = text; };
  const offer = () => { for (const button of document.querySelectorAll("button[data-copy]")) button.hidden = false; };

  const copy = async (button) => {
    const code = document.getElementById(button.dataset.copy);
    let done = false;
    try {
      await navigator.clipboard.writeText(code.textContent);
      done = true;
    } catch { // only localhost and https have a clipboard: select it, as a hand would
      getSelection().selectAllChildren(code);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Selected";
    say(done ? "copied" : "selected: copy it with the keyboard");
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };

  const open = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") target.open = true;
  };

  let tag = "", on = true, waiting = 0;
  const label = () => {
    const button = document.getElementById("renew");
    if (!button) return 0;
    button.hidden = false;
    button.textContent = on ? "Renew: on" : "Renew: off";
    button.setAttribute("aria-pressed", String(on));
    return Number(button.dataset.seconds);
  };

  // Whoever marks a line to copy it must not lose it.
  const busy = () => document.hidden || !getSelection().isCollapsed;

  const put = (html) => {
    const next = new DOMParser().parseFromString(html, "text/html");
    const fresh = next.querySelector("main"), old = document.querySelector("main");
    if (!fresh) return;
    for (const each of old.querySelectorAll("details[open]")) {
      const same = each.id && fresh.querySelector(`[id="${CSS.escape(each.id)}"]`);
      if (same) same.open = true;
    }
    const focused = document.activeElement, owner = focused && focused.closest("[id]");
    const path = focused && old.contains(focused) && { id: owner && owner.id, copy: focused.dataset.copy, tag: focused.tagName };
    if (old.querySelector("h1").textContent !== fresh.querySelector("h1").textContent) say(next.title);
    document.title = next.title;
    old.replaceWith(document.adoptNode(fresh));
    offer();
    label();
    if (!path) return;
    const again = path.copy ? document.querySelector(`button[data-copy="${CSS.escape(path.copy)}"]`) : path.id && document.getElementById(path.id);
    if (again) (path.tag === "SUMMARY" ? again.querySelector("summary") || again : again).focus({ preventScroll: true });
  };

  const renew = async () => {
    if (on && !busy()) {
      try {
        const answer = await fetch("./", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
        if (answer.ok) {
          tag = answer.headers.get("ETag") || "";
          put(await answer.text());
        }
        document.body.classList.remove("is-old");
      } catch {
        const when = document.querySelector(".when");
        if (!document.body.classList.contains("is-old")) {
          document.body.classList.add("is-old");
          when.textContent += ", and the agent has not answered since";
          say("the agent does not answer");
        }
      }
    }
    plan();
  };

  const plan = () => {
    const seconds = label();
    clearTimeout(waiting);
    if (seconds) waiting = setTimeout(renew, 1000 * seconds);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.copy) copy(button);
    if (button.id === "renew") { on = !on; plan(); }
  });
  addEventListener("hashchange", open);
  offer();
  open();
  plan();
})();
