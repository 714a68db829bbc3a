// What the page knows of the run: points of the curves and bars of the timeline, on absolute time.
// The kernel sends all of it once and then only what is new; a gap makes the page ask for all again.

const POINT = { step: 0, loss: 1, rate: 2, norm: 3, p50: 4, p99: 5, columns: 6 };
const BAR_BYTES = 12, NO_MICRO_BATCH = 255, WAITS = 128, MAX_BARS = 120000;

function bytesOf(view) {
  if (!view || !view.byteLength) return new Uint8Array(0);
  const buffer = view.buffer ?? view, offset = view.byteOffset ?? 0;
  return new Uint8Array(buffer.slice(offset, offset + view.byteLength));
}

function floats(view) { return new Float32Array(bytesOf(view).buffer); }

class Store {
  constructor() {
    this.number = 0;
    this.points = new Float32Array(0);
    this.start = new Float64Array(1024);
    this.end = new Float64Array(1024);
    this.rank = new Uint16Array(1024);
    this.microBatch = new Uint8Array(1024);
    this.kind = new Uint8Array(1024);
    this.numBars = 0;
    this.newest = 0;
    this.numRanks = 1;
  }

  get numPoints() { return this.points.length / POINT.columns; }

  point(row, column) { return this.points[row * POINT.columns + column]; }

  // Everything the kernel has; bars from before its window stay.
  replace(full) {
    if (!full || !full.number) return;
    this.points = floats(full.points);
    const first = full.base_s || Infinity;
    this.keep((row) => this.end[row] <= first);
    this.append(full.base_s, full.bars);
    this.number = full.number;
  }

  // What is new; false if something before it is missing.
  apply(update) {
    if (!update || !update.number || update.number <= this.number) return true;
    if (update.number !== this.number + 1) return false;
    const added = floats(update.points), points = new Float32Array(update.kept * POINT.columns + added.length);
    points.set(this.points.subarray(0, update.kept * POINT.columns));
    points.set(added, update.kept * POINT.columns);
    this.points = points;
    this.append(update.base_s, update.bars);
    this.number = update.number;
    return true;
  }

  // Every action of a window in place of the chosen few that were sent as they happened.
  fill(window, bars) {
    if (!bars || !bars.byteLength) return;
    const from = Math.max(window.from_s, window.since_s);
    this.keep((row) => this.end[row] <= from || this.start[row] >= window.to_s);
    this.append(window.base_s, bars);
  }

  append(baseS, bars) {
    const bytes = bytesOf(bars), view = new DataView(bytes.buffer), count = Math.floor(bytes.length / BAR_BYTES);
    if (this.numBars + count > MAX_BARS) {
      const drop = Math.max(this.numBars + count - MAX_BARS, MAX_BARS / 4);
      this.keep((row) => row >= drop);
    }
    this.reserve(this.numBars + count);
    for (let k = 0; k < count; k++) {
      const at = k * BAR_BYTES, row = this.numBars + k, start = baseS + view.getUint32(at, true) * 1e-6;
      this.start[row] = start;
      this.end[row] = start + view.getUint32(at + 4, true) * 1e-6;
      this.rank[row] = view.getUint16(at + 8, true);
      this.microBatch[row] = view.getUint8(at + 10);
      this.kind[row] = view.getUint8(at + 11);
      this.newest = Math.max(this.newest, this.end[row]);
      this.numRanks = Math.max(this.numRanks, this.rank[row] + 1);
    }
    this.numBars += count;
  }

  keep(wanted) {
    let kept = 0;
    for (let row = 0; row < this.numBars; row++) {
      if (!wanted(row)) continue;
      for (const column of [this.start, this.end, this.rank, this.microBatch, this.kind]) column[kept] = column[row];
      kept += 1;
    }
    this.numBars = kept;
  }

  reserve(count) {
    if (count <= this.start.length) return;
    const size = 2 ** Math.ceil(Math.log2(count));
    for (const name of ["start", "end", "rank", "microBatch", "kind"]) {
      const grown = new this[name].constructor(size);
      grown.set(this[name]);
      this[name] = grown;
    }
  }

  // The bar of a rank at a time: work before the wait that surrounds it. -1 if there is none.
  find(rank, at, slack = 0) {
    let found = -1;
    for (let row = 0; row < this.numBars; row++) {
      if (this.rank[row] !== rank || this.start[row] > at + slack || this.end[row] < at - slack) continue;
      if (found < 0 || this.end[row] - this.start[row] < this.end[found] - this.start[found]) found = row;
    }
    return found;
  }
}

const STORES = new WeakMap();

// One store per model, however many views of it a page shows.
function storeOf(model) {
  if (!STORES.has(model)) {
    const store = new Store();
    STORES.set(model, store);
    store.replace(model.get("full"));
    store.apply(model.get("update"));
    model.on("change:full", () => store.replace(model.get("full")));
    model.on("msg:custom", (content, buffers) => {
      if (content.kind === "window") store.fill(content, buffers?.[0]);
    });
    model.on("change:update", () => { if (!store.apply(model.get("update"))) model.send({ kind: "full" }); });
  }
  return STORES.get(model);
}
