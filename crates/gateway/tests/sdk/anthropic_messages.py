"""The official `anthropic` package against a server: Holdfast, or the mock upstream itself. Settings: see checks.py."""

import anthropic
from checks import (API_KEY, BASE_URL, COUNTS_WORDS, MODEL, POOR_KEY, check, check_headers, holdfast, poor_key, run,
                    script, upstream, words)

TEXT = "The quick brown fox jumps over the lazy dog"
ASK = {"model": MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": TEXT}]}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"name": "weather", "description": "tells", "input_schema": SCHEMA}]
CALL = {"role": "user", "content": 'call weather {"city":"Oslo"}'}


def client(key=API_KEY, **options):
    return anthropic.Anthropic(base_url=BASE_URL, api_key=key, **{"max_retries": 0, "timeout": 30, **options})


def check_usage(usage):
    assert usage.input_tokens > 0 and usage.output_tokens > 0, usage
    assert not COUNTS_WORDS or (usage.input_tokens, usage.output_tokens) == (words(TEXT), words(TEXT)), usage


@check()
def plain_message():
    answer = client().messages.create(**ASK)
    assert [block.text for block in answer.content] == [TEXT], answer
    assert answer.stop_reason == "end_turn" and answer.type == "message", answer
    check_usage(answer.usage)


@check()
def streaming():
    with client().messages.stream(**ASK) as stream:
        parts = list(stream.text_stream)
        answer = stream.get_final_message()
    assert "".join(parts) == TEXT and len(parts) > 2, parts
    assert answer.content[0].text == TEXT and answer.stop_reason == "end_turn", answer
    check_usage(answer.usage)


@check()
def usage_is_the_same_whole_and_streamed():
    whole = client().messages.create(**ASK).usage
    with client().messages.stream(**ASK) as stream:
        streamed = stream.get_final_message().usage
    assert (whole.input_tokens, whole.output_tokens) == (streamed.input_tokens, streamed.output_tokens)


@check()
def max_tokens_cuts_the_answer():
    answer = client().messages.create(**{**ASK, "max_tokens": 3})
    assert answer.stop_reason == "max_tokens" and answer.usage.output_tokens == 3, answer


@check()
def tools():
    answer = client().messages.create(**{**ASK, "messages": [CALL]}, tools=TOOLS)
    (use,) = [block for block in answer.content if block.type == "tool_use"]
    assert answer.stop_reason == "tool_use" and (use.name, use.input) == ("weather", {"city": "Oslo"}), answer
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "12 degrees"}
    thanks = {"role": "user", "content": [result, {"type": "text", "text": "and now say done"}]}
    said = [CALL, {"role": "assistant", "content": answer.content}, thanks]
    answer = client().messages.create(**{**ASK, "messages": said}, tools=TOOLS)
    assert answer.content[0].text == "and now say done", answer


@check()
def tools_streamed():
    with client().messages.stream(**{**ASK, "messages": [CALL]}, tools=TOOLS) as stream:
        answer = stream.get_final_message()
    (use,) = [block for block in answer.content if block.type == "tool_use"]
    assert (use.name, use.input) == ("weather", {"city": "Oslo"}), use


@check()
def models():
    names = [model.id for model in client().models.list()]
    assert MODEL in names, names


@check()
def bad_key():
    try:
        client(key="hf_live_wrong").messages.create(**ASK)
    except anthropic.AuthenticationError as error:
        assert error.status_code == 401 and error.body["error"]["type"] == "authentication_error", error.body
    else:
        raise AssertionError("a wrong key was let in")


@check()
def unknown_model():
    try:
        client().messages.create(**{**ASK, "model": "no-such-model"})
    except (anthropic.NotFoundError, anthropic.BadRequestError) as error:
        assert error.body["type"] == "error" and error.body["error"]["message"], error.body
    else:
        raise AssertionError("an unknown model answered")


@check(upstream)
def timeout():
    tag = script(do="hang")
    try:
        client(timeout=0.3).messages.create(**ASK, metadata={"user_id": tag})
    except anthropic.APITimeoutError:
        pass
    else:
        raise AssertionError("a call that hangs was answered")


@check(upstream)
def cached_tokens():
    tag = script(do="answer", cached_tokens=4)
    usage = client().messages.create(**ASK, metadata={"user_id": tag}).usage
    assert (usage.cache_read_input_tokens, usage.input_tokens) == (4, words(TEXT) - 4), usage


@check(poor_key)
def too_little_money():
    # The client's usual retries, so that one that is not wanted would be seen.
    try:
        client(key=POOR_KEY, max_retries=2).messages.create(**ASK)
    except anthropic.APIStatusError as error:
        assert error.status_code == 402, error
        assert error.body["type"] == "error" and error.body["error"]["type"] == "billing_error", error.body
        assert "insufficient_balance" in str(error.body), error.body
        assert error.response.headers["x-should-retry"] == "false", error.response.headers
        assert error.request.headers["x-stainless-retry-count"] == "0", "the SDK tried again"
    else:
        raise AssertionError("somebody without money was served")


@check(holdfast)
def holdfast_headers():
    raw = client().messages.with_raw_response.create(**ASK)
    usage = raw.parse().usage
    check_headers(raw.headers, usage.input_tokens, usage.output_tokens)


if __name__ == "__main__":
    run("anthropic-python")
