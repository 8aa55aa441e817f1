// The turns of a chat, as they are shown and as they are sent.

export class Conversation {
  constructor(list) {
    this.list = list;
    this.turns = [];
  }

  /** Add a turn and return it; `extend` makes it grow. */
  add(role, content = "") {
    const turn = new Turn(role, content);
    const follow = this.atEnd();
    this.turns.push(turn);
    this.list.append(turn.element);
    if (follow) this.toEnd();
    return turn;
  }

  extend(turn, text) {
    const follow = this.atEnd();
    turn.extend(text);
    if (follow) this.toEnd();
  }

  /** Take back the last turn, so that its text can be sent again. */
  remove(turn) {
    this.turns = this.turns.filter((each) => each !== turn);
    turn.element.remove();
  }

  clear() {
    this.turns = [];
    this.list.replaceChildren();
  }

  messages() {
    return this.turns.map(({ role, content }) => ({ role, content }));
  }

  /** Whether the reader looks at the end: only then does the list scroll along. */
  atEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.list;
    return scrollHeight - scrollTop - clientHeight < 40;
  }

  toEnd() {
    this.list.scrollTop = this.list.scrollHeight;
  }
}

class Turn {
  constructor(role, content) {
    this.role = role;
    this.content = content;
    this.element = document.createElement("li");
    this.element.className = role;
    this.said = part("span", "said", content);
    this.noted = part("span", "note", "");
    this.element.append(part("span", "who", role === "user" ? "You" : "Answer"), this.said, this.noted);
  }

  extend(text) {
    this.content += text;
    this.said.append(text); // a text node each: what is there is not laid out anew
  }

  note(text) {
    this.noted.textContent = text;
  }
}

function part(kind, name, text) {
  const element = document.createElement(kind);
  element.className = name;
  element.textContent = text;
  return element;
}
