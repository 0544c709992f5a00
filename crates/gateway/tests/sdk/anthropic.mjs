// The official `@anthropic-ai/sdk` package against a server: Holdfast, or the mock upstream itself. Settings: see checks.py.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import {
  apiKey, baseUrl, check, checkHeaders, countingFetch, countsWords, failure, model, needsHoldfast, needsPoorKey, needsUpstream, poorKey,
  run, script, words,
} from "./checks.mjs";

const text = "The quick brown fox jumps over the lazy dog";
const messages = [{ role: "user", content: text }];
const call = { role: "user", content: 'call weather {"city":"Oslo"}' };
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "weather", description: "tells", input_schema: schema }];

const client = (options = {}) =>
  new Anthropic({ baseURL: baseUrl, apiKey, maxRetries: 0, timeout: 30_000, ...options });
const asked = (ask) => ({ model, messages, max_tokens: 1000, ...ask });
const create = (ask = {}, options = {}) => client(options).messages.create(asked(ask));

function checkUsage(usage) {
  assert.ok(usage.input_tokens > 0 && usage.output_tokens > 0);
  if (countsWords) assert.deepEqual([usage.input_tokens, usage.output_tokens], [words(text), words(text)]);
}

check("plain_message", async () => {
  const answer = await create();
  assert.deepEqual(answer.content.map((block) => block.text), [text]);
  assert.equal(answer.stop_reason, "end_turn");
  checkUsage(answer.usage);
});

check("streaming", async () => {
  const parts = [];
  const stream = client().messages.stream(asked()).on("text", (part) => parts.push(part));
  const answer = await stream.finalMessage();
  assert.equal(parts.join(""), text);
  assert.ok(parts.length > 2, "not streamed in parts");
  assert.equal(answer.content[0].text, text);
  checkUsage(answer.usage);
});

check("max_tokens_cuts_the_answer", async () => {
  const answer = await create({ max_tokens: 3 });
  assert.deepEqual([answer.stop_reason, answer.usage.output_tokens], ["max_tokens", 3]);
});

check("tools", async () => {
  const first = await create({ messages: [call], tools });
  const use = first.content.find((block) => block.type === "tool_use");
  assert.deepEqual([first.stop_reason, use.name, use.input], ["tool_use", "weather", { city: "Oslo" }]);
  const result = { type: "tool_result", tool_use_id: use.id, content: "12 degrees" };
  const thanks = { role: "user", content: [result, { type: "text", text: "and now say done" }] };
  const answer = await create({ messages: [call, { role: "assistant", content: first.content }, thanks], tools });
  assert.equal(answer.content[0].text, "and now say done");
});

check("tools_streamed", async () => {
  const answer = await client().messages.stream(asked({ messages: [call], tools })).finalMessage();
  const use = answer.content.find((block) => block.type === "tool_use");
  assert.deepEqual([use.name, use.input], ["weather", { city: "Oslo" }]);
});

check("models", async () => {
  const names = [];
  for await (const { id } of client().models.list()) names.push(id);
  assert.ok(names.includes(model), names.join(" "));
});

check("bad_key", async () => {
  const error = await failure(create({}, { apiKey: "hf_live_wrong" }));
  assert.ok(error instanceof Anthropic.AuthenticationError, String(error));
});

check("unknown_model", async () => {
  const error = await failure(create({ model: "no-such-model" }));
  assert.ok(error instanceof Anthropic.NotFoundError || error instanceof Anthropic.BadRequestError, String(error));
});

check("timeout", async () => {
  const user = await script({ do: "hang" });
  const error = await failure(create({ metadata: { user_id: user } }, { timeout: 300 }));
  assert.ok(error instanceof Anthropic.APIConnectionTimeoutError, String(error));
}, needsUpstream);

check("too_little_money", async () => {
  // The client's usual retries, so that one that is not wanted would be seen.
  const counting = countingFetch();
  const error = await failure(create({}, { apiKey: poorKey, maxRetries: 2, fetch: counting }));
  assert.ok(error instanceof Anthropic.APIError, String(error));
  assert.equal(error.status, 402);
  assert.equal(error.error.error.type, "billing_error");
  assert.match(JSON.stringify(error.error), /insufficient_balance/);
  assert.equal(counting.count, 1, "the SDK tried again");
}, needsPoorKey);

check("holdfast_headers", async () => {
  const { data, response } = await create().withResponse();
  checkHeaders(response.headers, data.usage.input_tokens, data.usage.output_tokens);
}, needsHoldfast);

await run("anthropic-node");
