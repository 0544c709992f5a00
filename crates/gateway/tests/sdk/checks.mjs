// What the Node tests of the SDKs share. The settings are those of checks.py, from the environment.

import crypto from "node:crypto";

export const env = (name, fallback = "") => process.env[name] ?? fallback;
export const baseUrl = env("BASE_URL").replace(/\/+$/, "");
export const apiKey = env("API_KEY");
export const model = env("MODEL");
export const embeddingModel = env("EMBEDDING_MODEL");
export const poorKey = env("POOR_KEY");
const upstreamUrl = env("UPSTREAM_URL");
export const countsWords = env("USAGE") === "words";
const isHoldfast = env("HOLDFAST") === "1";
const skip = env("SKIP").split(",").filter(Boolean);

const checks = [];

/** Adds a check; `needs` answers why it cannot run here, or nothing. */
export const check = (name, run, needs = () => undefined) => checks.push({ name, run, needs });

export const needsHoldfast = () => (isHoldfast ? undefined : "needs HOLDFAST=1");
export const needsPoorKey = () => needsHoldfast() ?? (poorKey ? undefined : "needs POOR_KEY");
export const needsUpstream = () => (upstreamUrl ? undefined : "needs UPSTREAM_URL");
export const needsEmbeddingModel = () => (embeddingModel ? undefined : "needs EMBEDDING_MODEL");

export const words = (text) => text.split(/\s+/).filter(Boolean).length;

/** Runs all checks and says what became of each; fails if one failed or if a name in SKIP is of none. */
export async function run(title) {
  let ok = 0;
  let skipped = 0;
  let failed = 0;
  for (const { name, run, needs } of checks) {
    const why = skip.includes(name) ? "named in SKIP" : needs();
    if (why) {
      skipped += 1;
      console.log(`SKIP ${title} ${name}: ${why}`);
      continue;
    }
    try {
      await run();
      ok += 1;
      console.log(`ok   ${title} ${name}`);
    } catch (error) {
      failed += 1;
      console.error(error);
      console.log(`FAIL ${title} ${name}`);
    }
  }
  for (const name of skip.filter((name) => !checks.some((check) => check.name === name))) {
    failed += 1;
    console.log(`FAIL ${title} ${name}: named in SKIP, and there is no such check`);
  }
  console.log(`${title}: ${ok} ok, ${skipped} skipped, ${failed} failed`);
  process.exitCode = failed > 0 || ok === 0 ? 1 : 0;
}

/** Tells the upstream what to do with one call; returns the tag (`user`) that this call must have. */
export async function script(line) {
  const tag = `sdk-${crypto.randomUUID()}`;
  const answer = await fetch(`${upstreamUrl}/__script`, { method: "POST", body: JSON.stringify([{ ...line, tag }]) });
  if (!answer.ok) throw new Error(`the upstream refused the script: ${answer.status}`);
  return tag;
}

/** Decimal credits as whole millionths, never through a float. */
function micro(text) {
  const found = /^(\d+)(?:\.(\d{1,6}))?$/.exec(text ?? "");
  if (!found) throw new Error(`not an amount: ${text}`);
  return BigInt(found[1]) * 1_000_000n + BigInt((found[2] ?? "").padEnd(6, "0"));
}

/** Holdfast's own headers: there, well formed, and the cost is the usage at its price. */
export function checkHeaders(headers, inputTokens, outputTokens) {
  if (!headers.get("x-holdfast-request-id")) throw new Error("no x-holdfast-request-id");
  const charged = micro(headers.get("x-holdfast-cost-cu"));
  micro(headers.get("x-holdfast-balance-cu"));
  const [input, output] = [env("INPUT_PRICE"), env("OUTPUT_PRICE")];
  if (!input || !output) return;
  // Millionths of a dollar per million tokens × tokens × credits per dollar = 10⁻¹² credits.
  const pico = BigInt(inputTokens) * micro(input) + BigInt(outputTokens) * micro(output);
  const expected = (pico * BigInt(env("CREDITS_PER_USD", "100"))) / 1_000_000n;
  if (charged !== expected) throw new Error(`charged ${charged}, expected ${expected} millionths`);
}

/** The error that a promise fails with. */
export async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("it succeeded");
}

/** A `fetch` that counts the requests that the SDK sends. */
export function countingFetch() {
  const counting = async (...arguments_) => {
    counting.count += 1;
    return fetch(...arguments_);
  };
  counting.count = 0;
  return counting;
}
