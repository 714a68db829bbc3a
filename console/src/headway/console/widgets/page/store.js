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

// Bars of one rank, sorted by their start. `reach` is the latest end of a bar and all before it, so that
// the first bar of a window is found by halving.
class Lane {
  constructor() {
    this.count = 0;
    this.start = new Float64Array(64);
    this.end = new Float64Array(64);
    this.reach = new Float64Array(64);
    this.microBatch = new Uint8Array(64);
    this.kind = new Uint8Array(64);
  }

  // They arrive nearly in order, so that few bars make room for them.
  merge(bars) {
    bars.sort((one, other) => one.start - other.start);
    this.reserve(this.count + bars.length);
    let old = this.count - 1, place = this.count + bars.length - 1;
    for (let k = bars.length - 1; k >= 0; place--) {
      if (old >= 0 && this.start[old] > bars[k].start) {
        for (const column of [this.start, this.end, this.microBatch, this.kind]) column[place] = column[old];
        old -= 1;
      } else {
        for (const name of ["start", "end", "microBatch", "kind"]) this[name][place] = bars[k][name];
        k -= 1;
      }
    }
    this.count += bars.length;
    this.measure(place + 1);
  }

  // Drop what is not wanted; returns how many bars stay.
  keep(wanted) {
    let kept = 0;
    for (let row = 0; row < this.count; row++) {
      if (!wanted(this.start[row], this.end[row])) continue;
      for (const column of [this.start, this.end, this.microBatch, this.kind]) column[kept] = column[row];
      kept += 1;
    }
    this.count = kept;
    this.measure(0);
    return kept;
  }

  // The first bar that may end after a moment.
  first(at) {
    let low = 0, high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.reach[middle] < at) low = middle + 1; else high = middle;
    }
    return low;
  }

  measure(from) {
    let reach = from ? this.reach[from - 1] : -Infinity;
    for (let row = from; row < this.count; row++) this.reach[row] = reach = Math.max(reach, this.end[row]);
  }

  reserve(count) {
    if (count <= this.start.length) return;
    const size = 2 ** Math.ceil(Math.log2(count));
    for (const name of ["start", "end", "reach", "microBatch", "kind"]) {
      const grown = new this[name].constructor(size);
      grown.set(this[name]);
      this[name] = grown;
    }
  }
}

class Store {
  // Kinds whose bars are painted behind the others, beside waits.
  constructor(behind = new Set()) {
    this.behind = behind;
    this.number = 0;
    this.points = new Float32Array(0);
    this.lanes = new Map();
    this.numBars = 0;
    this.newest = 0;
    this.numRanks = 1;
  }

  get numPoints() { return this.points.length / POINT.columns; }

  point(row, column) { return this.points[row * POINT.columns + column]; }

  // The bars of a rank: those painted behind, or those in front.
  lane(rank, isBehind) {
    const key = rank * 2 + (isBehind ? 1 : 0);
    if (!this.lanes.has(key)) this.lanes.set(key, new Lane());
    return this.lanes.get(key);
  }

  // Everything the kernel has; bars from before its window stay.
  replace(full) {
    if (!full || !full.number) return;
    this.points = floats(full.points);
    const first = full.base_s || Infinity;
    this.keep((_, end) => end <= first);
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
    this.keep((start) => start < from || start >= window.to_s);
    this.append(window.base_s, bars, from);
  }

  // Bars that begin at `since` or later; the page has those from before.
  append(baseS, bars, since = -Infinity) {
    const bytes = bytesOf(bars), view = new DataView(bytes.buffer), found = new Map();
    for (let at = 0; at + BAR_BYTES <= bytes.length; at += BAR_BYTES) {
      const start = baseS + view.getUint32(at, true) * 1e-6, end = start + view.getUint32(at + 4, true) * 1e-6;
      if (start < since) continue;
      const rank = view.getUint16(at + 8, true), kind = view.getUint8(at + 11);
      const lane = this.lane(rank, kind >= WAITS || this.behind.has(kind));
      if (!found.has(lane)) found.set(lane, []);
      found.get(lane).push({ start, end, microBatch: view.getUint8(at + 10), kind });
      this.newest = Math.max(this.newest, end);
      this.numRanks = Math.max(this.numRanks, rank + 1);
    }
    for (const [lane, added] of found) {
      lane.merge(added);
      this.numBars += added.length;
    }
    while (this.numBars > MAX_BARS) this.forget();
  }

  // The oldest quarter of the fullest lane, and all bars of the others from that time.
  forget() {
    const fullest = [...this.lanes.values()].reduce((one, other) => (other.count > one.count ? other : one));
    const until = fullest.start[Math.floor(fullest.count / 4)];
    this.keep((start) => start > until);
  }

  keep(wanted) {
    this.numBars = 0;
    for (const lane of this.lanes.values()) this.numBars += lane.keep(wanted);
  }

  // The bar of a rank at a time: work before the wait that surrounds it. Null if there is none.
  find(rank, at, slack = 0) {
    let found = null;
    for (const isBehind of [false, true]) {
      const lane = this.lane(rank, isBehind);
      for (let row = lane.first(at - slack); row < lane.count && lane.start[row] <= at + slack; row++) {
        if (lane.end[row] < at - slack) continue;
        const length = lane.end[row] - lane.start[row];
        if (found && length >= found.end - found.start) continue;
        found = { start: lane.start[row], end: lane.end[row], microBatch: lane.microBatch[row], kind: lane.kind[row] };
      }
    }
    return found;
  }
}

const STORES = new WeakMap();

// One store per model, however many views of it a page shows.
function storeOf(model) {
  if (!STORES.has(model)) {
    const kinds = Object.entries(model.get("kinds")).filter(([, name]) => SURROUNDS.has(name));
    const store = new Store(new Set(kinds.map(([kind]) => Number(kind))));
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
