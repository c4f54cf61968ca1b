// Icons as SVG paths, because no common font contains all of them.

const PATHS: Record<string, string> = {
  home: "M3 9 9 3.5 15 9M4.5 8v6.5h9V8",
  servers: "M3 4h12v4H3zM3 10h12v4H3zM5.5 6h.01M5.5 12h.01",
  nodes: "M7 2.5h4v4H7zM2.5 11.5h4v4h-4zM11.5 11.5h4v4h-4zM9 6.5v2.5M4.5 11.5V9h9v2.5",
  calls: "M3 6h11l-3-3M15 12H4l3 3",
  runs: "M4 3.5h4v4H4zM10 10.5h4v4h-4zM6 7.5v5h4M8 5.5h6v2",
  agents: "M4 6.5h10v7H4zM9 6.5v-3M7 10h.01M11 10h.01M2.5 9v2.5M15.5 9v2.5",
  tools: "M11.5 3a3.5 3.5 0 0 0-3 5.2L3 13.7 4.6 15l5.3-5.3A3.5 3.5 0 0 0 15 6l-2.2 1.4-1.6-1.6z",
  reliability: "M2.5 9h3l2-5 3 10 2-5h3",
  usage: "M3 15V9M7 15V4M11 15v-4M15 15V7",
  toolsets: "M3 3h5v5H3zM10 3h5v5h-5zM3 10h5v5H3zM12.5 10v5M10 12.5h5",
  keys: "M2.5 9a3.2 3.2 0 1 0 6.4 0 3.2 3.2 0 1 0-6.4 0M8.9 9H16v3.2M13 9v2.4",
  config: "M3 5h7M13 5h2M3 9h2M8 9h7M3 13h7M13 13h2M10 3.5v3M5 7.5v3M10 11.5v3",
  doctor: "M3 9h3l1.5-3 2.5 6 1.5-3H15M9 2.5a6.5 6.5 0 1 0 .01 0",
  events: "M9 2.5a6.5 6.5 0 1 0 .01 0M9 5.5V9l2.5 1.5",
  alerts: "M9 2.5a4 4 0 0 1 4 4v3l1.5 3h-11L5 9.5v-3a4 4 0 0 1 4-4M7.5 15h3",
  approvals: "M9 2.5a6.5 6.5 0 1 0 .01 0M6 9l2.2 2.2L12.2 7",
  definitions: "M4 2.5h7l3 3v10H4zM6.5 9l1.7 1.7L12 7",
  menu: "M3 5h12M3 9h12M3 13h12",
  find: "M8 3a5 5 0 1 0 .01 0M11.6 11.6 15 15",
};

export function Icon({ name }: { name: string }) {
  return (
    <svg className="icon" viewBox="0 0 18 18" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
