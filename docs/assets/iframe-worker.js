// Search runs in a Web Worker, which browsers refuse to pages opened from the file system. There an
// invisible frame of the same page stands in for it; over HTTP this script does nothing.
if (window.location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.answer(data);
      inside.importScripts = (...addresses) =>
        addresses.reduce((earlier, one) => earlier.then(() => this.load(one)), Promise.resolve());
      this.started = this.load(address);
    }
    load(address) {
      const inner = this.frame.contentDocument;
      return new Promise((resolve, reject) => {
        const script = inner.createElement("script");
        script.src = new URL(address, document.baseURI).href;
        script.onload = () => resolve();
        script.onerror = () => reject(new Error(`${script.src} cannot be loaded`));
        inner.body.appendChild(script);
      });
    }
    answer(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }
    postMessage(data) {
      this.started.then(() =>
        this.frame.contentWindow.dispatchEvent(
          new this.frame.contentWindow.MessageEvent("message", { data })));
    }
    terminate() { this.frame.remove(); }
  };
  window.Worker = window.IFrameWorker;
}
