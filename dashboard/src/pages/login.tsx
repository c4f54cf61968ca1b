import { type FormEvent, useState } from "react";
import { type ApiError, login } from "../api";
import { start } from "../live";
import { Copyable, ErrorBox } from "../components/common";

export function Login() {
  const [token, setToken] = useState("");
  const [error, setError] = useState<ApiError | null>(null);
  const loginError = sessionStorage.getItem("toolway-login-error");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    login({ token }).then(
      () => {
        sessionStorage.removeItem("toolway-login-error");
        start();
      },
      (failed: ApiError) => setError(failed),
    );
    setToken("");
  };
  return (
    <main className="login" id="main">
      <h1>Toolway</h1>
      {loginError && <p className="muted">{loginError}</p>}
      <p>Open this page from a terminal on the gateway’s machine:</p>
      <Copyable text="toolway ui" />
      <form onSubmit={submit}>
        <label>
          Or enter an administrator's API key
          <input type="password" autoComplete="off" value={token} onChange={(event) => setToken(event.target.value)} />
        </label>
        <button type="submit" className="primary" disabled={!token}>Log in</button>
      </form>
      {error && <ErrorBox error={error} />}
    </main>
  );
}
