import { CallGrid } from "../parts/callgrid";

export function Calls() {
  return (
    <div className="page full">
      <h1>Calls</h1>
      <CallGrid />
    </div>
  );
}
