// Puts the page together and draws it, at most once per frame: moving the timeline draws nothing else.
// What browser tests read is in data attributes of the root: number, answered, step, phase, paused, lr, generation,
// points, bars, drawn, draw-ms, bands, recovering, selected, follows, from, to, draws.

function render({ model, el }) {
  const root = element("div", el, "", "headway-console");
  root.setAttribute("role", "region");
  root.setAttribute("aria-label", "Headway run console");
  root.dataset.lmSuppressShortcuts = "true";  // JupyterLab must not take the keys that are meant for us
  const store = storeOf(model);
  let draws = 0, waiting = 0, isAll = false;
  const frame = () => { waiting = 0; (isAll ? draw : drawTimeline)(); isAll = false; };
  const soon = () => { isAll = true; waiting ||= requestAnimationFrame(frame); };
  const moved = () => { waiting ||= requestAnimationFrame(frame); };
  const select = (rank) => { model.set("selected", rank); model.save_changes(); soon(); };

  const head = element("div", root, "", "row head"), line = element("span", head, "", "line");
  const bar = element("progress", head);
  bar.setAttribute("aria-label", "completed steps");
  const error = element("div", root, "", "banner");
  error.setAttribute("role", "alert");
  const charts = new Charts(root, model, soon);
  const timeline = new Timeline(root, model, store, { redraw: moved, select, open: (band) => recoveries.open(band) });
  const ranks = new Ranks(root, model, select);
  const controls = new Controls(root, model);
  const recoveries = new Recoveries(root, model, (band) => timeline.showBand(band));
  element("strong", root, "events");
  const news = element("div", root, "", "news");
  news.tabIndex = 0;
  news.setAttribute("role", "log");
  news.setAttribute("aria-label", "events, newest first");

  const draw = () => {
    const facts = model.get("facts"), colours = theme(root);
    const parts = facts.name ? [facts.name, ...facts.line.split(/ {2,}/)] : ["waiting for the run"];
    while (line.children.length > parts.length) line.lastChild.remove();
    parts.forEach((part, place) => setText(line.children[place] || element("span", line), part));
    bar.max = facts.steps || 1;
    bar.value = facts.step || 0;
    const why = [facts.error && `The newest picture could not be taken; the next one is tried. ${facts.error}`,
      facts.phase === "failed" && `The run failed. ${facts.detail || ""}`].filter(Boolean).join(" ");
    setText(error, why);
    error.hidden = !why;
    charts.draw(store, colours);
    ranks.draw(colours);
    controls.draw();
    recoveries.draw();
    setText(news, model.get("news").slice().reverse().join("\n"));
    const { step = -1, phase, paused, lr, generation } = facts, bands = model.get("bands");
    Object.assign(root.dataset, { number: store.number, answered: model.get("answer").id || "", step, phase, paused, lr, generation, points: store.numPoints,
      bars: store.numBars, bands: bands.length, recovering: bands.some((band) => band.end_s === null) });
    drawTimeline(colours);
  };

  const drawTimeline = (colours = theme(root)) => {
    const began = performance.now(), selected = model.get("selected");
    const drawn = timeline.draw(colours, selected, ranks.ranks.length), { from, to, follows } = timeline.view;
    const drawMs = (performance.now() - began).toFixed(2);
    draws += 1;
    Object.assign(root.dataset, { selected, drawn, drawMs, follows, from, to, draws });
  };

  const names = ["facts", "full", "update", "validation", "skipped", "bands", "ranks", "statuses", "news", "log",
    "answer", "selected", "buttons"];
  for (const name of names) model.on(`change:${name}`, soon);
  model.on("msg:custom", soon);
  const observer = new ResizeObserver(soon);
  observer.observe(root);
  const forget = onTheme(soon);
  soon();
  return () => {
    observer.disconnect();
    forget();
    model.off("msg:custom", soon);
    for (const name of names) model.off(`change:${name}`, soon);
  };
}

function initialize({ model }) { storeOf(model); }

export default { initialize, render };
