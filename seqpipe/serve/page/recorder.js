// The samples of the microphone, block by block, as the audio thread has them.

class Recorder extends AudioWorkletProcessor {
  process([[samples]]) {
    if (samples) this.port.postMessage(samples.slice());
    return true;
  }
}

registerProcessor("recorder", Recorder);
