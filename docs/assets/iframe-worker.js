/* From disk a browser refuses workers. The search then runs in a hidden frame that has the same interface: messages go
   in by postMessage, and come out as events of the page. The theme asks for a frame by the name IFrameWorker. */
"use strict";
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      const give = (data) => {
        const event = new MessageEvent("message", { data });
        this.onmessage?.(event);
        this.dispatchEvent(event);
      };
      this.ready = new Promise((done) => {
        const begin = () => {
          document.body.appendChild(this.frame);
          const inside = this.frame.contentWindow, page = inside.document;
          inside.IFrameWorker = IFrameWorker;
          inside.postMessage = give;
          inside.importScripts = (...addresses) => addresses.reduce((before, each) => before.then(() => this.load(page, each)), Promise.resolve());
          this.load(page, new URL(address, location.href).href).then(() => done(inside));
        };
        if (document.body) begin(); else addEventListener("DOMContentLoaded", begin);
      });
    }
    load(page, address) {
      return new Promise((done, failed) => {
        const script = page.createElement("script");
        Object.assign(script, { src: address, onload: done, onerror: failed });
        page.body.appendChild(script);
      });
    }
    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
    terminate() { this.frame.remove(); }
  }
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}
