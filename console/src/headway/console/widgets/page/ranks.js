// The ranks and the log of the selected one: buttons for a few ranks, a heat map above 64.

const FEW_RANKS = 64, CELL = 14, RANK_COLUMNS = 5;

function ranksOf(model) {
  const values = new Int32Array(bytesOf(model.get("ranks")).buffer), statuses = model.get("statuses"), found = [];
  for (let k = 0; k + RANK_COLUMNS <= values.length; k += RANK_COLUMNS) {
    const [rank, node, pid, status, step] = values.subarray(k, k + RANK_COLUMNS);
    found.push({ rank, node, pid, status: statuses[status] || "unknown", step });
  }
  return found;
}

class Ranks {
  constructor(parent, model, select) {
    Object.assign(this, { model, select, ranks: [] });
    const head = element("div", parent, "", "row");
    element("strong", head, "ranks");
    this.summary = element("span", head, "", "soft");
    this.grid = element("div", parent, "", "row ranks");
    this.grid.setAttribute("role", "group");
    this.grid.setAttribute("aria-label", "ranks; choose one to see its log");
    this.map = element("canvas", parent, "", "map");
    this.map.tabIndex = 0;
    this.map.setAttribute("role", "img");
    this.log = element("pre", parent, "", "log");
    this.log.tabIndex = 0;
    this.map.addEventListener("click", (event) => {
      const at = Math.floor(event.offsetY / CELL) * this.columns() + Math.floor(event.offsetX / CELL);
      if (this.ranks[at]) this.select(this.ranks[at].rank);
    });
    this.map.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns(), ArrowUp: -this.columns() }[event.key];
      if (!move) return;
      event.preventDefault();
      event.stopPropagation();
      const last = this.ranks.length - 1, selected = this.model.get("selected");
      this.select(Math.max(0, Math.min(last, selected < 0 ? 0 : selected + move)));
    });
  }

  columns() { return Math.max(1, Math.floor((this.map.clientWidth || 600) / CELL)); }

  draw(colours) {
    this.ranks = ranksOf(this.model);
    const isFew = this.ranks.length <= FEW_RANKS, selected = this.model.get("selected");
    this.grid.hidden = !isFew;
    this.map.hidden = isFew;
    if (isFew) this.drawButtons(selected); else this.drawMap(selected, colours);
    const counts = new Map();
    for (const { status } of this.ranks) counts.set(status, (counts.get(status) || 0) + 1);
    const words = [...counts].map(([status, count]) => `${count} ${status}`), chosen = this.ranks.find(({ rank }) => rank === selected);
    if (chosen) words.push(`rank ${chosen.rank}: ${this.describe(chosen)}`);
    setText(this.summary, words.join(" · ") || this.unknown());
    this.map.setAttribute("aria-label", `Heat map of ${this.ranks.length} ranks: ${words.join(", ")}. Arrow keys choose a rank.`);
    this.drawLog(selected);
  }

  unknown() {
    const { is_over: isOver, phase } = this.model.get("facts");
    return isOver ? `the run is ${phase}` : "not known while no driver answers";
  }

  // Ranks report a step of their own only when their status changes, so a running one has none here.
  describe({ node, pid, status, step }) {
    return `node ${node}, pid ${pid}, ${status}${status === "running" ? "" : ` at step ${step}`}`;
  }

  drawButtons(selected) {
    while (this.grid.children.length > this.ranks.length) this.grid.lastChild.remove();
    this.ranks.forEach((rank, place) => {
      const made = this.grid.children[place] || element("button", this.grid, "", "rank");
      setText(made, this.ranks.length <= 16 ? `rank ${rank.rank} · node ${rank.node}` : String(rank.rank));
      made.style.borderLeftColor = STATUS_COLOURS[rank.status] || LOST_COLOUR;
      made.title = `rank ${rank.rank}: ${this.describe(rank)}`;
      made.setAttribute("aria-label", made.title);
      made.setAttribute("aria-pressed", String(rank.rank === selected));
      made.onclick = () => this.select(rank.rank === this.model.get("selected") ? -1 : rank.rank);
    });
  }

  // Colour is the status.
  drawMap(selected, colours) {
    const columns = this.columns(), { pen } = prepare(this.map, Math.ceil(this.ranks.length / columns) * CELL + 1);
    this.ranks.forEach(({ rank, status }, place) => {
      const x = place % columns * CELL, y = Math.floor(place / columns) * CELL;
      pen.fillStyle = STATUS_COLOURS[status] || LOST_COLOUR;
      pen.fillRect(x + 1, y + 1, CELL - 2, CELL - 2);
      if (rank === selected) { pen.strokeStyle = colours.ink; pen.lineWidth = 2; pen.strokeRect(x + 1, y + 1, CELL - 2, CELL - 2); }
    });
  }

  drawLog(selected) {
    const lines = this.model.get("log");
    this.log.hidden = selected < 0;
    if (selected < 0) return;
    const isAtEnd = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 4;
    this.log.setAttribute("aria-label", `newest log lines of rank ${selected}`);
    setText(this.log, lines.join("\n") || `no log line of rank ${selected} yet`);
    if (isAtEnd) this.log.scrollTop = this.log.scrollHeight;
  }
}
