// The official `openai` package against a server: Holdfast, or the mock upstream itself. Settings: see checks.py.

import assert from "node:assert/strict";
import OpenAI from "openai";
import {
  apiKey, baseUrl, check, checkHeaders, countingFetch, countsWords, embeddingModel, failure, model, needsEmbeddingModel,
  needsHoldfast, needsPoorKey, needsUpstream, poorKey, run, script, words,
} from "./checks.mjs";

const text = "The quick brown fox jumps over the lazy dog";
const messages = [{ role: "user", content: text }];
const call = [{ role: "user", content: 'call weather {"city":"Oslo"}' }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", description: "tells", parameters } }];

const client = (options = {}) =>
  new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey, maxRetries: 0, timeout: 30_000, ...options });
const create = (ask = {}, options = {}) => client(options).chat.completions.create({ model, messages, ...ask });

function checkUsage(usage) {
  assert.ok(usage.prompt_tokens > 0 && usage.completion_tokens > 0);
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
  if (countsWords) assert.deepEqual([usage.prompt_tokens, usage.completion_tokens], [words(text), words(text)]);
}

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

check("plain_chat", async () => {
  const answer = await create();
  assert.equal(answer.choices[0].message.content, text);
  assert.equal(answer.choices[0].finish_reason, "stop");
  checkUsage(answer.usage);
});

check("streaming", async () => {
  const chunks = await collect(await create({ stream: true, stream_options: { include_usage: true } }));
  const parts = chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta.content ?? ""));
  assert.equal(parts.join(""), text);
  assert.ok(parts.length > 2, "not streamed in parts");
  checkUsage(chunks.at(-1).usage);
});

check("max_tokens_cuts_the_answer", async () => {
  const answer = await create({ max_tokens: 3 });
  assert.equal(answer.choices[0].finish_reason, "length");
  assert.equal(answer.usage.completion_tokens, 3);
});

check("tools", async () => {
  const { message } = (await create({ messages: call, tools })).choices[0];
  assert.equal(message.tool_calls.length, 1);
  const { id, function: called } = message.tool_calls[0];
  assert.deepEqual([called.name, JSON.parse(called.arguments)], ["weather", { city: "Oslo" }]);
  const result = { role: "tool", tool_call_id: id, content: "12 degrees" };
  const done = { role: "user", content: "and now say done" };
  const answer = await create({ messages: [...call, message, result, done], tools });
  assert.equal(answer.choices[0].message.content, "and now say done");
});

check("tools_streamed", async () => {
  const stream = client().chat.completions.stream({ model, messages: call, tools });
  const { message } = (await stream.finalChatCompletion()).choices[0];
  assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), { city: "Oslo" });
});

check("responses", async () => {
  const answer = await client().responses.create({ model, input: text });
  assert.equal(answer.output_text, text);
  assert.equal(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens);
});

check("responses_streamed", async () => {
  const events = await collect(await client().responses.create({ model, input: text, stream: true }));
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  assert.equal(deltas.map((event) => event.delta).join(""), text);
  assert.equal(events.at(-1).type, "response.completed");
  assert.ok(events.at(-1).response.usage.output_tokens > 0);
});

check("embeddings", async () => {
  const ask = { model: embeddingModel, input: ["one two", "three"] };
  // Without a format the SDK asks for base64 and decodes it.
  const usual = await client().embeddings.create(ask);
  const floats = await client().embeddings.create({ ...ask, encoding_format: "float" });
  assert.equal(usual.data.length, 2);
  assert.ok(usual.data[0].embedding.length > 1);
  assert.deepEqual(Array.from(usual.data[0].embedding), floats.data[0].embedding);
  assert.notDeepEqual(floats.data[0].embedding, floats.data[1].embedding);
  if (countsWords) assert.equal(usual.usage.prompt_tokens, 3);
}, needsEmbeddingModel);

check("models", async () => {
  const names = (await collect(await client().models.list())).map((model) => model.id);
  assert.ok(names.includes(model), names.join(" "));
});

check("bad_key", async () => {
  const error = await failure(create({}, { apiKey: "hf_live_wrong" }));
  assert.ok(error instanceof OpenAI.AuthenticationError, String(error));
});

check("unknown_model", async () => {
  const error = await failure(create({ model: "no-such-model" }));
  assert.ok(error instanceof OpenAI.NotFoundError || error instanceof OpenAI.BadRequestError, String(error));
  assert.ok(error.code, String(error));
});

check("timeout", async () => {
  const user = await script({ do: "hang" });
  const error = await failure(create({ user }, { timeout: 300 }));
  assert.ok(error instanceof OpenAI.APIConnectionTimeoutError, String(error));
}, needsUpstream);

check("too_little_money", async () => {
  // The client's usual retries, so that one that is not wanted would be seen.
  const counting = countingFetch();
  const error = await failure(create({ max_tokens: 1000 }, { apiKey: poorKey, maxRetries: 2, fetch: counting }));
  assert.ok(error instanceof OpenAI.APIError, String(error));
  assert.deepEqual([error.status, error.code, error.type], [402, "insufficient_balance", "insufficient_quota"]);
  assert.equal(error.headers.get("x-should-retry"), "false");
  assert.equal(counting.count, 1, "the SDK tried again");
}, needsPoorKey);

check("holdfast_headers", async () => {
  const { data, response } = await create().withResponse();
  checkHeaders(response.headers, data.usage.prompt_tokens, data.usage.completion_tokens);
}, needsHoldfast);

await run("openai-node");
