// Buttons that steer the run, as the kernel describes them: each with its fields, its question, and the
// shell command and the line of Python that do the same.

const CONFIRM_MS = 5000, COPIED_MS = 1200;

class Controls {
  constructor(parent, model) {
    Object.assign(this, { model, sent: 0, shown: "", buttons: new Map() });
    this.bar = element("div", parent, "", "row");
    this.bar.setAttribute("role", "group");
    this.bar.setAttribute("aria-label", "steering");
    this.answer = element("div", parent, "", "row answer");
    this.answer.setAttribute("role", "status");
    this.answer.setAttribute("aria-live", "polite");
    this.folded = element("details", parent, "", "drills");
    element("summary", this.folded, "drills: break something on purpose");
    this.drills = element("div", this.folded, "", "row");
    this.drills.setAttribute("role", "group");
    this.drills.setAttribute("aria-label", "drills");
    this.recipe(parent);
  }

  recipe(parent) {
    const table = element("div", parent, "", "recipe");
    this.same = element("span", table, "", "soft");
    this.lines = [["CLI", "cli"], ["Python", "python"]].map(([name, key]) => {
      const bar = element("div", table, "", "row"), label = `copy as ${name}`;
      const copy = element("button", bar, label), line = element("code", bar);
      copy.onclick = async () => {
        await copyText(line.textContent);
        setText(copy, "copied");
        setTimeout(() => setText(copy, label), COPIED_MS);
      };
      line.dataset.line = copy.dataset.copies = key;
      return { line, key };
    });
  }

  // With a question it takes a second press within five seconds.
  add(about) {
    const bar = about.is_drill ? this.drills : this.bar, group = element("span", bar, "", "control");
    const look = () => { this.shown = about.name; this.draw(); };
    const fields = about.fields.map(({ name, label, example }) => {
      const field = element("input", group);
      field.placeholder = example;
      field.setAttribute("aria-label", label);
      field.dataset.field = name;
      field.oninput = field.onfocus = look;
      field.onkeydown = (event) => { if (event.key === "Enter") made.click(); };
      return [name, field];
    });
    const made = element("button", group, about.name), entry = { about, made, fields: new Map(fields) };
    let asked = 0;
    const calm = () => { clearTimeout(asked); asked = 0; setText(made, about.name); made.classList.remove("asks"); };
    made.onclick = () => {
      if (about.question && !asked) {
        setText(made, `${this.fill(about.question, entry)} press again`);
        made.classList.add("asks");
        asked = setTimeout(calm, CONFIRM_MS);
        return;
      }
      calm();
      this.send(entry);
    };
    made.onpointerenter = made.onfocus = look;
    made.dataset.name = about.name;
    made.dataset.asks = Boolean(about.question);
    this.buttons.set(about.name, entry);
  }

  send({ about, fields }) {
    this.sent += 1;
    const id = `${Date.now()}-${Math.random().toString(36).slice(2)}-${this.sent}`;
    const texts = Object.fromEntries([...fields].map(([name, field]) => [name, field.value.trim()]));
    this.model.set("command", { id, button: about.name, rank: this.model.get("selected"), fields: texts });
    this.model.save_changes();
  }

  // A line or question with what the page knows in place of %NAME%; names stand for what is missing.
  fill(text, { about, fields }, quote = (value) => value) {
    const rank = this.model.get("selected");
    return text.replace(/%(\w+)%/g, (_, name) => {
      if (!fields.has(name)) return rank < 0 ? "RANK" : String(rank);
      const value = fields.get(name).value.trim();
      const { is_text: isText, is_optional: isOptional } = about.fields.find((field) => field.name === name);
      if (!value && !isOptional) return name.toUpperCase();
      return isText ? quote(value) : value;
    });
  }

  // Why a button cannot be pressed now; empty if it can.
  obstacle({ operation, on_rank: onRank }) {
    const facts = this.model.get("facts");
    if (!facts.name) return "waiting for the run";
    if (facts.is_over) return `the run is ${facts.phase}`;
    if (facts.phase === "interrupted") return "none of the run's processes is running";
    if (operation === "pause" && facts.paused) return "the run is paused";
    if (operation === "resume" && !facts.paused) return "the run is not paused";
    if (onRank && this.model.get("selected") < 0) return "select a rank first";
    return "";
  }

  draw() {
    for (const about of this.model.get("buttons")) if (!this.buttons.has(about.name)) this.add(about);
    const said = this.model.get("answer");
    for (const entry of this.buttons.values()) {
      const obstacle = this.obstacle(entry.about), { hint, name } = entry.about;
      entry.made.disabled = Boolean(obstacle);
      entry.made.title = obstacle ? `${hint}: not now, ${obstacle}` : hint;
      for (const field of entry.fields.values()) {
        field.disabled = Boolean(obstacle);
        field.setAttribute("aria-invalid", String(Boolean(said.is_error && said.button === name)));
      }
    }
    this.answer.className = said.is_error ? "row answer error" : "row answer";
    setText(this.answer, said.text || "");
    const shown = this.buttons.get(this.shown) || this.buttons.values().next().value;
    if (!shown) return;
    setText(this.same, `"${shown.about.name}" by hand:`);
    const quotes = { cli: shellQuoted, python: JSON.stringify };
    for (const { line, key } of this.lines) setText(line, this.fill(shown.about[key], shown, quotes[key]));
  }
}

function shellQuoted(text) { return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`; }
