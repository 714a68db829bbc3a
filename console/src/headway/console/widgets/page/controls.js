// Buttons that steer the run. Each shows the shell command and the line of Python that do the same.

const CONFIRM_MS = 5000;

class Controls {
  constructor(parent, model) {
    Object.assign(this, { model, sent: 0, shown: "pause", buttons: new Map() });
    const bar = element("div", parent, "", "row");
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", "steering");
    this.button(bar, "pause", "pause", "hold all ranks at their next step", () => this.send("pause"));
    this.button(bar, "resume", "resume", "resume a paused run", () => this.send("resume"));
    this.button(bar, "checkpoint", "checkpoint", "write the next state to disk", () => this.send("checkpoint"));
    this.button(bar, "stop", "stop", "end the run with a checkpoint", () => this.send("stop"), () => "stop the run?");
    this.lr = element("input", bar);
    this.lr.placeholder = "3e-4";
    this.lr.setAttribute("aria-label", "learning rate");
    const set = () => this.send("set", { name: "lr", value: this.lr.value.trim() });
    this.lr.onkeydown = (event) => { if (event.key === "Enter") set(); };
    this.lr.oninput = () => { this.shown = "set"; this.draw(); };
    this.button(bar, "set", "set lr", "hold the learning rate at this value from the next step on", set);
    this.button(bar, "unset", "unset lr", "let the schedule decide again", () => this.send("unset", { name: "lr" }));
    this.answer = element("div", parent, "", "row answer");
    this.answer.setAttribute("role", "status");
    this.answer.setAttribute("aria-live", "polite");
    this.drills(parent);
    this.recipe(parent);
  }

  drills(parent) {
    const folded = element("details", parent, "", "drills");
    element("summary", folded, "drills: break something on purpose");
    const bar = element("div", folded, "", "row");
    const inject = (fault) => this.send("inject", { name: "worker", fault, rank: this.model.get("selected") });
    const question = (what) => () => `${what} rank ${this.model.get("selected")}?`;
    this.button(bar, "kill", "kill rank", "end the process of the selected rank", () => inject("kill"), question("kill"));
    this.button(bar, "inject-stop", "freeze rank (SIGSTOP)", "stop the process of the selected rank",
      () => inject("stop"), question("freeze"));
  }

  recipe(parent) {
    const bar = element("div", parent, "", "row recipe");
    element("span", bar, "the same by hand:", "soft");
    this.lines = ["shell", "Python"].map((name, place) => {
      const line = element("code", bar), copy = element("button", bar, `copy as ${name === "shell" ? "CLI" : name}`);
      copy.onclick = async () => {
        await copyText(line.textContent);
        setText(copy, "copied");
        setTimeout(() => setText(copy, `copy as ${place ? "Python" : "CLI"}`), 1200);
      };
      return line;
    });
  }

  // With a question it takes a second press within five seconds.
  button(parent, name, label, hint, action, question = null) {
    const made = element("button", parent, label);
    let isAsked = false;
    const calm = () => { isAsked = false; setText(made, label); made.classList.remove("asks"); };
    made.onclick = () => {
      if (question && !isAsked) {
        isAsked = true;
        setText(made, `${question()} press again`);
        made.classList.add("asks");
        setTimeout(calm, CONFIRM_MS);
        return;
      }
      calm();
      action();
    };
    made.onpointerenter = made.onfocus = () => { this.shown = name; this.draw(); };
    made.dataset.name = name;
    this.buttons.set(name, { made, hint });
  }

  send(operation, options = {}) {
    this.sent += 1;
    const id = `${Date.now()}-${Math.random().toString(36).slice(2)}-${this.sent}`;
    this.model.set("command", { id, operation, ...options });
    this.model.save_changes();
  }

  // Why a button cannot be pressed now; empty if it can.
  obstacle(name) {
    const facts = this.model.get("facts");
    if (!facts.name) return "waiting for the run";
    if (facts.is_over) return `the run is ${facts.phase}`;
    if (facts.phase === "interrupted") return "none of the run's processes is running";
    if (name === "pause" && facts.paused) return "the run is paused";
    if (name === "resume" && !facts.paused) return "the run is not paused";
    if ((name === "kill" || name === "inject-stop") && this.model.get("selected") < 0) return "select a rank first";
    return "";
  }

  draw() {
    for (const [name, { made, hint }] of this.buttons) {
      const obstacle = this.obstacle(name);
      made.setAttribute("aria-disabled", String(Boolean(obstacle)));
      made.disabled = Boolean(obstacle);
      made.title = obstacle ? `${hint}: not now, ${obstacle}` : hint;
    }
    this.lr.disabled = Boolean(this.obstacle("set"));
    const recipes = this.model.get("recipes"), key = this.shown === "inject-stop" ? "stop rank" : this.shown;
    const selected = this.model.get("selected"), rank = selected < 0 ? "RANK" : String(selected);
    (recipes[key] || ["", ""]).forEach((line, place) => {
      setText(this.lines[place], line.replace("VALUE", this.lr.value.trim() || "VALUE").replace("RANK", rank));
    });
    const said = this.model.get("answer");
    this.answer.className = said.is_error ? "row answer error" : "row answer";
    setText(this.answer, said.text || "");
    this.lr.setAttribute("aria-invalid", String(Boolean(said.is_error && (said.text || "").startsWith("set"))));
  }
}
