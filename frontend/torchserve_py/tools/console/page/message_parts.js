// The parts of a chat's message, as OpenAI's API has them: text, images and audio, from files and shown again.

import { h, visible } from "./dom.js";

/** Names of formats where they are not the second half of the media type. */
const FORMATS = { mpeg: "mp3", "x-wav": "wav", wave: "wav", "vnd.wave": "wav", "x-flac": "flac", "x-m4a": "m4a" };
const TYPES = { mp3: "audio/mpeg" };

/** Return the part that a file is; null if it is neither an image nor audio. */
export async function partOf(file) {
  const [kind, subtype] = file.type.split("/");
  if (kind !== "image" && kind !== "audio") return null;
  const data = await base64(file);
  if (kind === "image") return { type: "image_url", image_url: { url: `data:${file.type};base64,${data}` } };
  return { type: "input_audio", input_audio: { data, format: FORMATS[subtype] ?? subtype } };
}

/** Return the element that shows a part: text, an image or a player; what is of no known type as JSON. */
export function shownPart(part, name) {
  const sound = part.input_audio ?? part.audio;
  if (typeof part.text === "string") return document.createTextNode(visible(part.text));
  if (part.type === "image_url") return shownImage(part.image_url?.url ?? "", name);
  if (sound?.data) return media("audio", new Blob([decoded(sound.data)], { type: soundType(sound.format) }), name ?? "Audio");
  return document.createTextNode(visible(JSON.stringify(part)));
}

/** Return a player of audio that has come in pieces of base64. */
export function shownSound(pieces, format) {
  return media("audio", new Blob(pieces.map(decoded), { type: soundType(format) }), "Audio of the answer");
}

/** Let go of what the images and players in an element hold. */
export function release(element) {
  element.querySelectorAll("img, audio").forEach((each) => URL.revokeObjectURL(each.src));
}

function shownImage(url, name = "Image") {
  const [, type, data] = /^data:(image\/[^;,]+);base64,(.*)$/s.exec(url) ?? [];
  if (data !== undefined) return media("img", new Blob([decoded(data)], { type }), name);
  // The page loads nothing from elsewhere; whoever wants to see it follows the link.
  return /^https?:/.test(url) ? h("a", { href: url, rel: "noreferrer", target: "_blank" }, url) : document.createTextNode(visible(url));
}

function media(tag, blob, label) {
  const src = URL.createObjectURL(blob);
  return tag === "img" ? h(tag, { src, alt: label }) : h(tag, { src, controls: true, ariaLabel: label });
}

function soundType(format = "wav") {
  return TYPES[format] ?? `audio/${format}`;
}

function decoded(data) {
  return Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
}

async function base64(file) {
  const reader = new FileReader();
  const done = new Promise((resolve, reject) => Object.assign(reader, { onload: resolve, onerror: () => reject(reader.error) }));
  reader.readAsDataURL(file);
  await done;
  return reader.result.slice(reader.result.indexOf(",") + 1);
}
