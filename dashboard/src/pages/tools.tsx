import { ToolGrid } from "../parts/toolgrid";

export function Tools() {
  return (
    <div className="page full">
      <h1>Tools</h1>
      <ToolGrid />
    </div>
  );
}
