import { createRoot } from "react-dom/client";
import { login } from "./api";
import { App } from "./app";
import { start } from "./live";

// The code of a dashboard link works once. It is first removed from the address bar and from the history.
async function main(): Promise<void> {
  const code = /^#code=([\w-]+)$/.exec(location.hash)?.[1];
  if (code) {
    history.replaceState(null, "", location.pathname);
    await login({ code }).catch((error: unknown) => sessionStorage.setItem("toolway-login-error", String((error as Error).message)));
  }
  start();
  createRoot(document.getElementById("root") as HTMLElement).render(<App />);
}

void main();
