// The images and audio that go with the next message of a chat: chosen, dropped or pasted, each can be removed.

import { h, setText } from "./dom.js";
import { bytes } from "./format.js";
import { partOf } from "./message_parts.js";

/**
 * Return the field with its list.
 *
 * @param most the bytes that a request may have
 * @param size tells how many bytes the request would have with these parts
 */
export function attachments(most, size) {
  const input = h("input", { type: "file", multiple: true, accept: "image/*,audio/*", onchange: () => add([...input.files]) });
  const note = h("small", { role: "status" });
  const list = h("ul", { class: "attached", ariaLabel: "Attached" });
  const label = h("label", { class: "field" }, h("span", {}, "Images and audio"), input);
  let chosen = [];

  /** Add files; say which cannot be sent, and why. */
  async function add(files) {
    const refused = [];
    for (const file of files) {
      const why = await refusal(file);
      if (why) refused.push(`${file.name}: ${why}`);
    }
    input.value = "";
    show(refused.join(" "));
  }

  async function refusal(file) {
    if (file.size > most) return tooLarge(file.size);
    const part = await partOf(file).catch((error) => error);
    if (part instanceof Error) return `it cannot be read (${part.message}).`;
    if (!part) return "it is neither an image nor audio.";
    const whole = size([...parts(), part]);
    if (whole > most) return tooLarge(whole);
    chosen.push({ name: file.name, size: file.size, part });
    return null;
  }

  function tooLarge(whole) {
    return `with it the request would have ${bytes(whole)}, and the server takes ${bytes(most)} (max_request_size).`;
  }

  function remove(one) {
    chosen = chosen.filter((each) => each !== one);
    show();
    input.focus();
  }

  function show(refused = "") {
    const items = chosen.map((one) => {
      const button = h("button", { type: "button", class: "small", ariaLabel: `Remove ${one.name}`, onclick: () => remove(one) }, "Remove");
      return h("li", {}, `${one.name}, ${bytes(one.size)} `, button);
    });
    list.replaceChildren(...items);
    list.hidden = !items.length;
    const used = items.length ? `The request has ${bytes(size(parts()))} of ${bytes(most)}.` : `A request may have ${bytes(most)}; files grow by a third in it.`;
    setText(note, refused || used);
    note.classList.toggle("bad", Boolean(refused));
  }

  const parts = () => chosen.map((each) => each.part);
  show();
  return {
    element: h("div", { class: "attachments" }, label, note, list),
    add,
    chosen: () => chosen,
    say: show,
    clear() {
      chosen = [];
      show();
    },
  };
}
