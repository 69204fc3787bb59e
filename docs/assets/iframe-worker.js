/* Search without a server. Browsers refuse to start a Worker for a page that was opened from a disk (file://). Here the
   worker's script runs in a hidden frame instead, with the few globals that it expects of a worker. On a server this
   file does nothing. */
(() => {
  if (location.protocol !== "file:") return

  const load = (inner, url) => new Promise((done, failed) => {
    const script = inner.document.createElement("script")
    script.src = new URL(url, document.baseURI).href
    script.onload = done
    script.onerror = () => failed(new Error(`cannot load ${url}`))
    inner.document.head.append(script)
  })

  class IFrameWorker extends EventTarget {
    #frame
    #ready

    constructor(url) {
      super()
      this.#frame = document.createElement("iframe")
      this.#frame.hidden = true
      document.body.append(this.#frame)
      const inner = this.#frame.contentWindow
      inner.document.open()
      inner.document.write("<!doctype html><title>worker</title>")
      inner.document.close()
      inner.importScripts = (...urls) => urls.reduce((before, u) => before.then(() => load(inner, u)), Promise.resolve())
      inner.postMessage = data => setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })))
      this.#ready = load(inner, url).then(() => inner)
    }

    postMessage(data) {
      this.#ready.then(inner => inner.dispatchEvent(new inner.MessageEvent("message", { data })))
    }

    terminate() {
      this.#frame.remove()
    }
  }

  /* The search worker looks for this very name in its parent to find its language files. */
  window.IFrameWorker = IFrameWorker
  window.Worker = IFrameWorker
})()
