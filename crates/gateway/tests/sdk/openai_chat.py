"""The official `openai` package against a server: Holdfast, or the mock upstream itself. Settings: see checks.py."""

import json
import uuid

import openai
from checks import (API_KEY, BASE_URL, COUNTS_WORDS, EMBEDDING_MODEL, MODEL, POOR_KEY, check,
                    check_headers, embedding_model, holdfast, poor_key, run, script, upstream, words)

TEXT = "The quick brown fox jumps over the lazy dog"
ASK = [{"role": "user", "content": TEXT}]
CALL = 'call weather {"city":"Oslo"}'
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "tells", "parameters": PARAMETERS}}


def client(key=API_KEY, **options):
    return openai.OpenAI(base_url=f"{BASE_URL}/v1", api_key=key, **{"max_retries": 0, "timeout": 30, **options})


def check_usage(usage, input_text=TEXT, output_text=TEXT):
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0, usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    if COUNTS_WORDS:
        assert (usage.prompt_tokens, usage.completion_tokens) == (words(input_text), words(output_text)), usage


@check()
def plain_chat():
    answer = client().chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content == TEXT, answer
    assert answer.choices[0].finish_reason == "stop", answer
    check_usage(answer.usage)


@check()
def usage_is_the_same_whole_and_streamed():
    whole = client().chat.completions.create(model=MODEL, messages=ASK).usage
    options = {"include_usage": True}
    chunks = list(client().chat.completions.create(model=MODEL, messages=ASK, stream=True, stream_options=options))
    streamed = [chunk.usage for chunk in chunks if chunk.usage]
    assert len(streamed) == 1, streamed
    numbers = lambda usage: (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
    assert numbers(streamed[0]) == numbers(whole), (streamed, whole)


@check()
def streaming():
    options = {"include_usage": True}
    stream = client().chat.completions.create(model=MODEL, messages=ASK, stream=True, stream_options=options)
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == TEXT, text
    assert len([chunk for chunk in chunks if chunk.choices]) > 2, "not streamed in parts"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == ["stop"], reasons
    assert chunks[-1].usage, "the last chunk has the usage"
    check_usage(chunks[-1].usage)


@check()
def max_tokens_cuts_the_answer():
    answer = client().chat.completions.create(model=MODEL, messages=ASK, max_tokens=3)
    assert answer.choices[0].finish_reason == "length", answer
    assert answer.usage.completion_tokens == 3, answer.usage
    assert TEXT.startswith(answer.choices[0].message.content), answer


@check()
def tools():
    asked = [{"role": "user", "content": CALL}]
    answer = client().chat.completions.create(model=MODEL, messages=asked, tools=[TOOL])
    assert answer.choices[0].finish_reason == "tool_calls", answer
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"city": "Oslo"}, call
    asked += [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}]
    asked += [{"role": "user", "content": "and now say done"}]
    answer = client().chat.completions.create(model=MODEL, messages=asked, tools=[TOOL])
    assert answer.choices[0].message.content == "and now say done", answer


@check()
def tools_streamed():
    asked = [{"role": "user", "content": CALL}]
    stream = client().chat.completions.create(model=MODEL, messages=asked, tools=[TOOL], stream=True)
    calls = [call for chunk in stream if chunk.choices for call in chunk.choices[0].delta.tool_calls or []]
    assert calls[0].id and calls[0].function.name == "weather", calls
    assert json.loads("".join(call.function.arguments or "" for call in calls)) == {"city": "Oslo"}, calls


@check()
def responses():
    answer = client().responses.create(model=MODEL, input=TEXT)
    assert answer.output_text == TEXT and answer.status == "completed", answer
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens, answer.usage
    if COUNTS_WORDS:
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (words(TEXT), words(TEXT)), answer.usage


@check()
def responses_streamed():
    events = list(client().responses.create(model=MODEL, input=TEXT, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == TEXT, text
    assert events[-1].type == "response.completed", events[-1]
    assert events[-1].response.output_text == TEXT and events[-1].response.usage.output_tokens > 0, events[-1]


@check()
def responses_tools():
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}
    asked = [{"role": "user", "content": CALL}]
    answer = client().responses.create(model=MODEL, input=asked, tools=[tool])
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert call.name == "weather" and json.loads(call.arguments) == {"city": "Oslo"}, call
    asked += [{"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}]
    asked += [{"type": "function_call_output", "call_id": call.call_id, "output": "12 degrees"}]
    asked += [{"role": "user", "content": "and now say done"}]
    assert client().responses.create(model=MODEL, input=asked, tools=[tool]).output_text == "and now say done"


@check(embedding_model)
def embeddings():
    ask = {"model": EMBEDDING_MODEL, "input": ["one two", "three"]}
    # Without a format the SDK asks for base64 and decodes it.
    default = client().embeddings.create(**ask)
    floats = client().embeddings.create(**ask, encoding_format="float")
    assert len(default.data) == 2 and len(default.data[0].embedding) > 1, default
    assert [one.embedding for one in default.data] == [one.embedding for one in floats.data]
    assert default.data[0].embedding != default.data[1].embedding
    assert default.usage.prompt_tokens > 0 and default.usage.total_tokens == default.usage.prompt_tokens
    assert not COUNTS_WORDS or default.usage.prompt_tokens == 3, default.usage


@check()
def models():
    names = [model.id for model in client().models.list()]
    assert MODEL in names, names


@check()
def bad_key():
    try:
        client(key="hf_live_wrong").chat.completions.create(model=MODEL, messages=ASK)
    except openai.AuthenticationError as error:
        assert error.status_code == 401 and error.body["message"], error.body
    else:
        raise AssertionError("a wrong key was let in")


@check()
def unknown_model():
    try:
        client().chat.completions.create(model="no-such-model", messages=ASK)
    except (openai.NotFoundError, openai.BadRequestError) as error:
        assert error.code, error.body
    else:
        raise AssertionError("an unknown model answered")


@check(upstream)
def timeout():
    tag = script(do="hang")
    try:
        client(timeout=0.3).chat.completions.create(model=MODEL, messages=ASK, user=tag)
    except openai.APITimeoutError:
        pass
    else:
        raise AssertionError("a call that hangs was answered")


@check(upstream)
def cached_and_reasoning_tokens():
    tag = script(do="answer", cached_tokens=4, reasoning_tokens=5)
    usage = client().chat.completions.create(model=MODEL, messages=ASK, user=tag).usage
    assert usage.prompt_tokens_details.cached_tokens == 4, usage
    assert usage.completion_tokens_details.reasoning_tokens == 5, usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (words(TEXT), words(TEXT) + 5), usage


@check(upstream)
def rate_limit_of_the_provider():
    tag = script(do="status", status=429, retry_after_s=1, times=100)
    try:
        client().chat.completions.create(model=MODEL, messages=ASK, user=tag)
    except (openai.RateLimitError, openai.InternalServerError) as error:
        assert error.body["message"], error.body
    else:
        raise AssertionError("a refused call was answered")
    # The provider asked to be left alone for a second, and is.
    client(max_retries=5).chat.completions.create(model=MODEL, messages=ASK)


@check(poor_key)
def too_little_money():
    # The client's usual retries, so that one that is not wanted would be seen.
    try:
        client(key=POOR_KEY, max_retries=2).chat.completions.create(model=MODEL, messages=ASK, max_tokens=1000)
    except openai.APIStatusError as error:
        assert error.status_code == 402, error
        assert error.code == "insufficient_balance" and error.type == "insufficient_quota", error.body
        assert error.body["required"] and error.body["available"] is not None, error.body
        assert error.response.headers["x-should-retry"] == "false", error.response.headers
        assert error.request.headers["x-stainless-retry-count"] == "0", "the SDK tried again"
    else:
        raise AssertionError("somebody without money was served")


@check(holdfast)
def holdfast_headers():
    raw = client().chat.completions.with_raw_response.create(model=MODEL, messages=ASK)
    usage = raw.parse().usage
    check_headers(raw.headers, usage.prompt_tokens, usage.completion_tokens)


@check(holdfast)
def one_idempotency_key_is_one_answer():
    ask = {"model": MODEL, "messages": ASK, "extra_headers": {"Idempotency-Key": f"sdk-{uuid.uuid4()}"}}
    first = client().chat.completions.with_raw_response.create(**ask)
    second = client().chat.completions.with_raw_response.create(**ask)
    name = "x-holdfast-request-id"
    assert first.headers[name] == second.headers[name], (first.headers, second.headers)
    assert first.parse().id == second.parse().id


if __name__ == "__main__":
    run("openai-python")
