import { CallTable } from "../components/call_table";
import { SavedViews } from "../components/saved_views";

export function Calls() {
  return (
    <div className="page full">
      <div className="bar"><h1>Calls</h1><SavedViews page="/calls" /></div>
      <CallTable />
    </div>
  );
}
