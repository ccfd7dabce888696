// A program on the types that are generated from a node's OpenAPI document: what it calls exists, and is called so.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

declare const process: { argv: string[] };

const api = createClient<paths, "application/json" | "application/problem+json">({ baseUrl: process.argv[2] });

function must<T>(answer: { data?: T; error?: unknown; response: Response }): T {
  if (answer.data === undefined) throw new Error(`${answer.response.status}: ${JSON.stringify(answer.error)}`);
  return answer.data;
}

const made = must(await api.POST("/v1/topics", { body: { name: "generated", partitions: 2 } }));
const records: components["schemas"]["Record"][] = [
  { key: "a", value: { item: "tea" }, partition: 1, headers: { source: "typescript" } },
  { key: "b", value: "text", partition: 1 },
];
const produced = must(
  await api.POST("/v1/topics/{topic}/records", { params: { path: { topic: made.name } }, body: { records } }),
);
const read = must(
  await api.GET("/v1/topics/{topic}/partitions/{partition}/records", {
    params: { path: { topic: "generated", partition: 1 }, query: { offset: "earliest", max_records: 10 } },
  }),
);
const committed = await api.POST("/v1/groups/{group}/offsets", {
  params: { path: { group: "generated" } },
  body: { offsets: [{ topic: "generated", partition: 1, offset: read.next_offset }] },
});
const missing = await api.GET("/v1/topics/{topic}", { params: { path: { topic: "missing" } } });
const problem: components["schemas"]["Problem"] | undefined = missing.error;

console.log(JSON.stringify({
  partitions: made.partitions.length,
  produced: produced.record_count,
  keys: read.records.map((record) => record.key),
  committed: committed.response.status,
  problem: problem?.code,
}));
