// Runs in the audio thread: thins the samples out, and sends them on in pieces.

class PcmRecorder extends AudioWorkletProcessor {
  constructor({ processorOptions: { step, length } }) {
    super();
    this.step = step;
    this.length = length;
    this.rest = [];
    this.piece = [];
  }

  process([[channel]]) {
    for (const sample of channel ?? []) {
      this.rest.push(sample);
      if (this.rest.length < this.step) continue;
      this.piece.push(this.rest.reduce((sum, each) => sum + each, 0) / this.step);
      this.rest.length = 0;
      if (this.piece.length < this.length) continue;
      this.port.postMessage(Float32Array.from(this.piece));
      this.piece.length = 0;
    }
    return true;
  }
}

registerProcessor("pcm-recorder", PcmRecorder);
