// Replies of `/admin`. The field names match the JSON.

export interface MinuteStats {
  calls: number;
  errors: number;
  per_minute: number[];
  errors_per_minute: number[];
  p50: number | null;
  p95: number | null;
  p99: number | null;
}

export interface Server {
  server: string;
  transport: string;
  state: string;
  era: string | null;
  protocol: string | null;
  pid: number | null;
  restarts: number;
  in_flight: number;
  last_error: string | null;
  stderr: string;
  next_retry: number | null;
  since: number;
  why: string;
  hint: string;
  tools: number;
  stale: boolean;
  problems: string[];
  nodes: string[]; // nodes of a cluster that own it
}

export interface ServerRow extends Server {
  minutes: MinuteStats;
  breaker: string;
  open_tools: number;
  limit: number;
  queued: number;
  retries: number;
  retries_denied: number;
}

export interface Overview {
  now: number;
  servers: ServerRow[];
  minutes: MinuteStats;
  calls: number;
  last_event: number;
  cluster?: boolean; // true if the gateway is a node of a cluster
}

export interface Node {
  id: string;
  address: string;
  version: string;
  capacity: number;
  servers: number;
  labels: string[];
  state: string;
  seen: number; // seconds ago
}

export interface Cluster {
  cluster: string;
  tenant: string;
  node: string; // the node that replied
  nats: boolean;
  nodes: Node[];
  unowned: number;
}

export interface Breaker {
  server: string;
  tool: string;
  position: string;
  wait: number;
  consecutive_failures: number;
  ended: number;
  failures: number;
  opened_count: number;
}

export interface GatewayEvent {
  n: number;
  at: number;
  kind: string;
  server: string;
  text: string;
  state?: string;
}

export interface ServerDetail {
  now: number;
  status: Server;
  timeline: { at: number; state: string; why: string }[];
  minutes: MinuteStats;
  definition: Record<string, unknown>;
  origins: { path: string; value: string; file: string; line: number | null }[];
  breakers: Breaker[];
  events: GatewayEvent[];
  load: { queued: number; retries: number; retries_denied: number };
}

export type OutcomeWord = "ok" | "tool error" | "not run" | "unknown" | "waiting";

export interface Call {
  id: string;
  at: number;
  server: string;
  tool: string;
  name: string;
  method: string;
  outcome: OutcomeWord;
  failed: boolean;
  code: string;
  executed: string;
  certainty: string;
  effect: string;
  seconds: number;
  attempts: number;
  principal: string;
  trace: string;
  source: string;
  message: string;
  detail: string;
  hint: string;
}

export interface Phase {
  name: string;
  began: number;
  seconds: number;
}

export interface Attempt {
  number: number;
  began: number;
  seconds: number;
  outcome: OutcomeWord;
  code: string;
  certainty: string;
  phases: Phase[];
}

export interface CallDetail extends Call {
  attempt_details: Attempt[];
  arguments: unknown;
}

export interface FoundTool {
  server: string;
  tool: string;
  description: string;
  score: number;
  reasons: { kind: string; text: string; fields: string[]; weight: number }[];
}

export interface SearchAnswer {
  fits: boolean;
  total_tools: number;
  total_servers: number;
  tools: FoundTool[];
}

export interface Searches {
  fits: number;
  nothing: number;
  rejected: number;
  calls: Record<string, number>;
  unmet: { query: string; times: number; at: number; fits: boolean; found: string[] }[];
}

export interface Tokens {
  endpoints: { path: string; tools: number; tokens: number; search: boolean }[];
  servers: { server: string; tools: number; tokens: number }[];
  advice: string;
}

export interface ToolRow {
  server: string;
  tool: string;
  model_name: string;
  title: string;
  description: string;
  size: number;
  read_only: boolean;
  destructive: boolean;
}

export interface ToolDetail extends ToolRow {
  raw: { inputSchema?: Schema; outputSchema?: Schema; annotations?: Record<string, unknown> };
}

export interface Schema {
  type?: string | string[];
  properties?: Record<string, Schema>;
  required?: string[];
  enum?: unknown[];
  items?: Schema;
  description?: string;
  title?: string;
  default?: unknown;
  minimum?: number;
  maximum?: number;
}

export interface Toolset {
  name: string;
  path: string;
  patterns: string[];
  tools: number;
  size: number;
  search: boolean; // clients find its tools by search
  servers: string[];
}

export interface Endpoints {
  all: { path: string; tools: number };
  toolsets: Toolset[];
  servers: string[];
}

export interface Key {
  id: string;
  name: string;
  access: string[] | null;
  admin: boolean;
  created: number;
}

export interface Config {
  file: string;
  text: string;
  versions: { version: number; until: number; bytes: number; changes?: string[] }[];
  problems: { severity: string; server: string; message: string; hint: string; line: number | null }[];
}

export interface Check {
  name: string;
  state: string;
  message: string;
  detail: string;
  hint: string;
  copy?: string;
  code?: string;
}

export interface Report {
  state: string;
  first_line: string;
  subjects: { kind: string; name: string; way?: string; source?: string; checks: Check[] }[];
}

export interface Result {
  id: string;
  result: {
    content?: Block[];
    structuredContent?: unknown;
    isError?: boolean;
    [key: string]: unknown;
  };
  seconds: number;
  attempts: number;
}

export interface Block {
  type: string;
  text?: string;
  data?: string;
  mimeType?: string;
  uri?: string;
  name?: string;
  resource?: { uri?: string; text?: string; mimeType?: string };
}

export interface Alert {
  name: string;
  kind: string;
  message: string;
  detail: string;
  hint: string;
  server: string;
  tool: string;
  call: string;
  at: number;
}

/** A call that needs an administrator, or was decided recently. Argument values are JSON strings. */
export interface Approval {
  id: string;
  state: "pending" | "approved" | "denied" | "used";
  caller: string;
  server: string;
  tool: string;
  effect: string;
  /** Of what will be sent: an approval covers nothing else. */
  digest: string;
  arguments: { name: string; value: string; note: string }[];
  /** False in a list, if arguments are cut there. */
  complete: boolean;
  asked_at: number;
  until: number;
  who: string;
  reason: string;
}

export interface ApprovalList {
  enabled: boolean;
  requests: Approval[];
}

/** A definition that differs from its pin. Values of definitions are JSON strings in ASCII. */
export interface PinDeviation {
  name: string;
  server: string;
  kind: string;
  item: string;
  reason: string;
  on_hold: boolean;
  since: number;
  digest: string;
  findings: string[];
  changes: { path: string; old: string | null; new: string | null }[];
  complete: boolean;
}

export interface Pins {
  enabled: boolean;
  servers: { server: string; pins: number }[];
  deviations: PinDeviation[];
}

export interface RunRow {
  id: string;
  workflow: string;
  state: string;
  principal: string;
  created: number;
  ended: number | null;
  due: number | null;
  code: string;
  questions: { step: string; kind: string; title: string; until: number | null }[];
}

export interface RunStep {
  step: string;
  attempt: number;
  kind: string;
  tool: string;
  effect: string;
  state: string;
  via: string;
  began: number;
  ended: number | null;
  life: number;
  arguments: string;
  outcome: string;
}

export interface RunAction {
  action: string;
  step: string;
  label: string;
  effect: string;
  body: Record<string, unknown>;
  form?: Record<string, unknown> | null;
}

export interface RunDetail extends RunRow {
  input: string;
  output: string;
  error: string;
  steps: RunStep[];
  more: boolean;
  messages: { kind: string; step: string; by: string; at: number }[];
  actions: RunAction[];
}

export interface AgentRow extends RunRow {
  model: string;
  prompt: string;
  turns: number;
  calls: number;
  input_tokens: number;
  output_tokens: number;
  usd: number | null;
  place: "gateway" | "command";
}

interface AgentCall {
  tool: string;
  arguments: string;
  effect: string;
}

export interface AgentMessage {
  role: string;
  step: string;
  content: string;
  error: string;
  model: string;
  input_tokens: number;
  output_tokens: number;
  usd: number | null;
  tool_calls: AgentCall[];
  tool: string;
  executed: string;
  approved_by: string;
}

export interface AgentDetail extends AgentRow {
  error: string;
  instructions: string;
  tools: string[];
  approve: string;
  untrusted: string[];
  budget: { unit: string; used: number | null; limit: number | null }[];
  questions: (RunRow["questions"][number] & AgentCall)[];
  conversation: AgentMessage[];
  steps: RunStep[];
  more: boolean;
  messages: RunDetail["messages"];
  actions: RunAction[];
  resume: string;
}
