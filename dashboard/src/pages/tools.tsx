import { ToolTable } from "../components/tool_table";

export function Tools() {
  return (
    <div className="page full">
      <h1>Tools</h1>
      <ToolTable />
    </div>
  );
}
