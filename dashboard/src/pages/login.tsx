import { type FormEvent, useState } from "react";
import { type Failure, enter } from "../api";
import { start } from "../live";
import { Copyable, Problem } from "../parts/bits";

export function Login() {
  const [token, setToken] = useState("");
  const [error, setError] = useState<Failure | null>(null);
  const refused = sessionStorage.getItem("toolway-refused");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    enter({ token }).then(
      () => {
        sessionStorage.removeItem("toolway-refused");
        start();
      },
      (failed: Failure) => setError(failed),
    );
    setToken("");
  };
  return (
    <main className="login" id="main">
      <h1>Toolway</h1>
      {refused && <p className="muted">{refused}</p>}
      <p>Open this page from a terminal on the gateway’s machine:</p>
      <Copyable text="toolway ui" />
      <form onSubmit={submit}>
        <label>
          Or hand in a token of an administrator
          <input type="password" autoComplete="off" value={token} onChange={(event) => setToken(event.target.value)} />
        </label>
        <button type="submit" className="primary" disabled={!token}>Enter</button>
      </form>
      {error && <Problem of={error} />}
    </main>
  );
}
