// Records the microphone as WAV, or hands out pieces of half a second while it records.

import { h, setText } from "./dom.js";
import { bytes, duration } from "./format.js";

const WANTED_RATE = 16_000;
const PIECE = 0.5;
const MOST_SECONDS = 120;

/** Return the recorder's panel; `onPiece(pcm, rate)` may be set to get 16-bit pieces as they are heard. */
export function microphone(signal) {
  const note = h("p", { class: "note", role: "status" }, "Nothing is recorded.");
  const level = h("meter", { min: 0, max: 1, value: 0, ariaLabel: "Loudness" });
  const button = h("button", { type: "button", id: "record", onclick: () => (running ? stop() : start()) }, "Record");
  const player = h("audio", { controls: true, hidden: true });
  const save = h("a", { class: "button small", download: "recording.wav", hidden: true }, "Save"); // a copied request sends this file
  const recorder = { element: h("div", { class: "recorder" }, button, level, note, save, player), recording: () => recorded, onPiece: null };
  let running = null;
  let recorded = null;

  async function start() {
    try {
      running = await listening((samples, rate) => {
        const seconds = running.add(samples);
        level.value = Math.min(1, 4 * Math.sqrt(samples.reduce((sum, each) => sum + each * each, 0) / samples.length));
        setText(note, `Recording: ${duration(seconds)}`);
        recorder.onPiece?.(pcm(samples), rate);
        if (seconds > MOST_SECONDS) stop();
      });
      setText(button, "Stop");
    } catch (error) {
      setText(note, `The microphone cannot be used: ${error.message}`);
    }
  }

  function stop() {
    const { samples, rate, close } = running;
    running = null;
    close();
    level.value = 0;
    recorded = wav(samples, rate);
    URL.revokeObjectURL(player.src);
    save.href = player.src = URL.createObjectURL(recorded);
    save.hidden = player.hidden = false;
    setText(button, "Record again");
    setText(note, `Recorded ${bytes(recorded.size)}.`);
  }

  signal.addEventListener("abort", () => running && stop());
  return recorder;
}

/** Open the microphone; `heard(samples, rate)` gets half seconds of numbers from -1 to 1. */
async function listening(heard) {
  if (!navigator.mediaDevices) throw new Error("browsers allow it only over https, or on this machine");
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const context = new AudioContext();
  await context.audioWorklet.addModule("pcm_recorder.js");
  const step = Math.max(1, Math.floor(context.sampleRate / WANTED_RATE));
  const rate = Math.round(context.sampleRate / step);
  const node = new AudioWorkletNode(context, "pcm-recorder", { processorOptions: { step, length: Math.round(rate * PIECE) } });
  node.port.onmessage = ({ data }) => heard(data, rate);
  context.createMediaStreamSource(stream).connect(node);
  return {
    samples: [],
    rate,
    add(samples) {
      this.samples.push(samples);
      return this.samples.length * PIECE;
    },
    close() {
      node.port.onmessage = null; // pieces may be waiting
      stream.getTracks().forEach((track) => track.stop());
      context.close();
    },
  };
}

function pcm(samples) {
  return new Uint8Array(Int16Array.from(samples, (each) => Math.max(-1, Math.min(1, each)) * 32_767).buffer);
}

function wav(pieces, rate) {
  const data = pieces.map(pcm);
  const size = data.reduce((sum, each) => sum + each.length, 0);
  const head = new DataView(new ArrayBuffer(44));
  const text = (at, word) => [...word].forEach((letter, index) => head.setUint8(at + index, letter.charCodeAt(0)));
  text(0, "RIFF");
  head.setUint32(4, 36 + size, true);
  text(8, "WAVEfmt ");
  head.setUint32(16, 16, true);
  head.setUint16(20, 1, true); // PCM
  head.setUint16(22, 1, true); // one channel
  head.setUint32(24, rate, true);
  head.setUint32(28, 2 * rate, true);
  head.setUint16(32, 2, true);
  head.setUint16(34, 16, true);
  text(36, "data");
  head.setUint32(40, size, true);
  return new Blob([head, ...data], { type: "audio/wav" });
}
