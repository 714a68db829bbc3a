// The grid in three dimensions: replicas across, tensor parallel ranks upwards, stages in depth.

const GRID = { height: 460, labels: 12, near: 12, periodMs: 2400, yaw: -0.5, pitch: 0.4 };
const AXES = ["dp", "tp", "pp"], PEER_COLOURS = { tp: "#b565d9", dp: "#2ba36b", pp: "#4c8bf5" };

class Grid3 extends Sheet {
  constructor(figure, picture, page) {
    super(figure, picture, page);
    Object.assign(this, { yaw: GRID.yaw, pitch: GRID.pitch, scale: 1, x: new Float32Array(0), y: new Float32Array(0) });
    this.why = new Map([...this.data.marked].map((rank, place) => [rank, this.data.why[place]]));
    this.isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    for (const axis of ["tp", "dp", "pp"]) {
      const key = element("span", this.head, `${axis} peers`);
      key.style.borderBottom = `3px solid ${PEER_COLOURS[axis]}`;
    }
    page.list(this.head, this.data.marked, (rank) => this.why.get(rank));
  }

  get size() { const { tp, pp, dp } = this.data.grid; return tp * pp * dp; }

  height() { return GRID.height; }

  drag(dx, dy) {
    this.yaw += dx / 150;
    this.pitch = Math.max(-1.5, Math.min(1.5, this.pitch + dy / 150));
  }

  zoom(factor) { this.scale = Math.max(0.5, Math.min(20, this.scale * factor)); }

  // Per axis: how far one rank further is on the screen, to the right, downwards and away from the reader. An
  // axis is as long as the square root of its ranks, so that a long one leaves room for the others.
  vectors(width) {
    const { grid } = this.data, turn = (yaw, pitch) => {
      const [sinA, cosA, sinB, cosB] = [Math.sin(yaw), Math.cos(yaw), Math.sin(pitch), Math.cos(pitch)];
      const turned = { dp: [cosA, -sinA * sinB, -sinA * cosB], tp: [0, -cosB, sinB], pp: [-sinA, -cosA * sinB, cosA * cosB] };
      return AXES.map((axis) => turned[axis].map((value) => value / Math.sqrt(grid[axis])));
    };
    const extent = (k) => turn(GRID.yaw, GRID.pitch).reduce((sum, axis, place) => sum + Math.abs(axis[k]) * grid[AXES[place]], 0.1);
    const zoom = this.scale * Math.min(0.85 * width / extent(0), 0.85 * GRID.height / extent(1));
    return turn(this.yaw, this.pitch).map((axis) => axis.map((value) => value * zoom));
  }

  draw(pen, width, height) {
    const view = [this.yaw, this.pitch, this.scale].map((value) => value.toFixed(4)).join(" ");
    pen.drawImage(this.layer("points", view, width, height, (under) => this.drawPoints(under, width)), 0, 0, width, height);
    const rank = this.page.selected;
    const isShown = rank >= 0 && rank < this.size;
    if (isShown) this.drawPeers(pen, rank);
    this.drawMarks(pen);
    if (isShown) this.drawFlow(pen, rank);
    const why = this.why.get(rank), place = isShown ? placeText(placeOf(this.data.grid, rank)) : "";
    setText(this.words, isShown ? `rank ${rank} (${place})${why ? `: ${why}` : ""}` : "no rank is selected");
    this.publish({ drawn: this.size, marked: this.why.size });
  }

  // From the far end of each axis to the near one, so that what is near covers what is far.
  drawPoints(pen, width) {
    const { grid, overall } = this.data, [dp, tp, pp] = this.vectors(width), order = (count, away) => Array.from({ length: count }, (_, k) => (away > 0 ? count - 1 - k : k));
    if (this.x.length !== this.size) [this.x, this.y] = [new Float32Array(this.size), new Float32Array(this.size)];
    const least = Math.min(...[dp, tp, pp].map(([x, y, z]) => Math.hypot(x, y, z))), side = Math.max(1.5, Math.min(14, least * 0.45));
    const middle = [dp, tp, pp].map((_, k) => (grid[AXES[k]] - 1) / 2);
    for (const stage of order(grid.pp, pp[2])) {
      for (const replica of order(grid.dp, dp[2])) {
        for (const part of order(grid.tp, tp[2])) {
          const rank = (stage * grid.dp + replica) * grid.tp + part, at = [replica - middle[0], part - middle[1], stage - middle[2]];
          const x = this.x[rank] = width / 2 + at[0] * dp[0] + at[1] * tp[0] + at[2] * pp[0];
          const y = this.y[rank] = GRID.height / 2 + at[0] * dp[1] + at[1] * tp[1] + at[2] * pp[1];
          pen.fillStyle = LEVEL_COLOURS[overall[rank]];
          pen.fillRect(x - side / 2, y - side / 2, side, side);
        }
      }
    }
    this.side = side;
  }

  group(axis, rank) {
    const { grid } = this.data, place = placeOf(grid, rank);
    return Array.from({ length: grid[axis] }, (_, k) => rankOf(grid, { ...place, [axis]: k }));
  }

  drawPeers(pen, rank) {
    pen.lineWidth = 2;
    for (const axis of AXES) {
      const peers = this.group(axis, rank);
      pen.strokeStyle = PEER_COLOURS[axis];
      pen.beginPath();
      peers.forEach((peer) => pen.lineTo(this.x[peer], this.y[peer]));
      pen.stroke();
    }
    pen.strokeStyle = this.page.colours.ink;
    pen.strokeRect(this.x[rank] - this.side / 2 - 2, this.y[rank] - this.side / 2 - 2, this.side + 4, this.side + 4);
  }

  drawMarks(pen) {
    pen.strokeStyle = pen.fillStyle = this.page.colours.mark;
    pen.lineWidth = 2.5;
    let labels = 0;
    for (const [rank] of this.why) {
      pen.beginPath();
      pen.arc(this.x[rank], this.y[rank], this.side / 2 + 5, 0, 7);
      pen.stroke();
      if (labels++ < GRID.labels) pen.fillText(`rank ${rank}`, this.x[rank] + this.side / 2 + 8, this.y[rank] + 4);
    }
  }

  // A micro-batch on its way forward through the stages, and its gradients on the way back.
  drawFlow(pen, rank) {
    const stages = this.group("pp", rank), last = stages.length - 1;
    if (!last || this.isCalm) return;
    const phase = performance.now() % GRID.periodMs / GRID.periodMs;
    for (const [at, colour] of [[phase * last, PEER_COLOURS.pp], [(1 - phase) * last, "#e08a1e"]]) {
      const from = stages[Math.floor(at)], to = stages[Math.min(last, Math.floor(at) + 1)], part = at % 1;
      pen.fillStyle = colour;
      pen.beginPath();
      pen.arc(this.x[from] + (this.x[to] - this.x[from]) * part, this.y[from] + (this.y[to] - this.y[from]) * part, 5, 0, 7);
      pen.fill();
    }
    const { top, bottom } = this.canvas.getBoundingClientRect();
    if (bottom > 0 && top < window.innerHeight) this.page.redraw(this);
  }

  find(x, y) {
    let best = -1, least = GRID.near ** 2;
    for (let rank = 0; rank < this.x.length; rank++) {
      const far = (this.x[rank] - x) ** 2 + (this.y[rank] - y) ** 2;
      if (far < least) [best, least] = [rank, far];
    }
    return best;
  }

  hint(x, y) {
    const rank = this.find(x, y), level = this.data.overall[rank];
    if (rank < 0) return "";
    const parts = [`rank ${rank} (${placeText(placeOf(this.data.grid, rank))})`];
    if (level !== LEVELS.unknown) parts.push(ratioText(level));
    if (this.why.has(rank)) parts.push(this.why.get(rank));
    return parts.join(": ");
  }

  click(x, y) { const rank = this.find(x, y); if (rank >= 0) this.page.select(rank); }

  move(by) { this.page.select(Math.max(0, Math.min(this.size - 1, this.page.selected + by))); }
}
