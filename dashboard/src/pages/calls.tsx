import { CallTable } from "../components/call_table";

export function Calls() {
  return (
    <div className="page full">
      <h1>Calls</h1>
      <CallTable />
    </div>
  );
}
