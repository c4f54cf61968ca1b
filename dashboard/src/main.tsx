import { createRoot } from "react-dom/client";
import { enter } from "./api";
import { App } from "./app";
import { start } from "./live";

// The code of a link works once. It is taken out of the address bar, and out of the history, before anything else.
async function begin(): Promise<void> {
  const code = /^#code=([\w-]+)$/.exec(location.hash)?.[1];
  if (code) {
    history.replaceState(null, "", location.pathname);
    await enter({ code }).catch((error: unknown) => sessionStorage.setItem("toolway-refused", String((error as Error).message)));
  }
  start();
  createRoot(document.getElementById("root") as HTMLElement).render(<App />);
}

void begin();
