// Each recovery in words: why it came and what it cost. The newest is on top; a band of the timeline opens it.

const SHOWN_RECOVERIES = 20;

class Recoveries {
  constructor(parent, model, show) {
    Object.assign(this, { model, show, entries: new Map() });
    this.section = element("section", parent);
    this.title = element("strong", this.section, "recoveries");
    this.list = element("div", this.section, "", "recoveries");
  }

  draw() {
    const bands = this.model.get("bands"), shown = bands.slice(-SHOWN_RECOVERIES);
    this.section.hidden = !bands.length;
    setText(this.title, `recoveries: ${bands.length}`);
    const known = new Set(shown.map((band) => band.start_s));
    for (const [key, entry] of this.entries) {
      if (!known.has(key)) { entry.details.remove(); this.entries.delete(key); }
    }
    for (const band of shown) {
      const entry = this.entries.get(band.start_s) || this.add(band);
      setText(entry.summary, `${clock(band.at_unix_s)} ${band.reason}`);
      setText(entry.cost, band.cost);
      entry.band = band;
    }
  }

  add(band) {
    const details = document.createElement("details");
    this.list.prepend(details);
    const entry = { details, summary: element("summary", details), cost: element("p", details), band };
    const button = element("button", details, "show on the timeline");
    button.onclick = () => this.show(entry.band);
    this.entries.set(band.start_s, entry);
    return entry;
  }

  open(band) {
    const entry = this.entries.get(band.start_s);
    if (!entry) return;
    entry.details.open = true;
    entry.details.scrollIntoView({ block: "nearest" });
  }
}
