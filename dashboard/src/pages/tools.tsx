import { SavedViews } from "../components/saved_views";
import { ToolTable } from "../components/tool_table";

export function Tools() {
  return (
    <div className="page full">
      <div className="bar"><h1>Tools</h1><SavedViews page="/tools" /></div>
      <ToolTable />
    </div>
  );
}
